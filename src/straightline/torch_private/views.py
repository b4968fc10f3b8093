"""Read torch's recorded view chains as public operations and plain arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import _functionalization
from torch._functorch._aot_autograd.functional_utils import ViewMetaSequence
from torch._ops import OpOverload
from torch._subclasses import fake_tensor

from straightline.capture.contract import ViewStep

Render = Callable[[torch.SymInt], str | None]

_SUFFIX = "_ViewMeta"
# torch names a record after the operation and its overload, joined by an underscore; in-place
# metadata changes are recorded under the in-place name and replay as the view they stand for.
_IRREGULAR: dict[str, str] = {
    "t_": "t.default",
    "detach_": "detach.default",
    "as_strided_": "as_strided.default",
    "squeeze_": "squeeze.default",
    "squeeze__dim": "squeeze.dim",
    "squeeze__dims": "squeeze.dims",
    "transpose_": "transpose.int",
    "unsqueeze_": "unsqueeze.default",
}


def _operation(record: str) -> OpOverload | None:
    """The view operation that a record of this name replays, or None when torch has none."""
    name = _IRREGULAR.get(record)
    if name is not None:
        packet, overload = name.split(".")
    elif hasattr(torch.ops.aten, record):
        packet, overload = record, "default"
    else:
        packet, _, overload = record.rpartition("_")
        if not packet or not hasattr(torch.ops.aten, packet):
            return None
    found = getattr(getattr(torch.ops.aten, packet), overload, None)
    if not isinstance(found, OpOverload) or "!" in str(found._schema):
        return None
    return found


def _plain(value: Any, render: Render) -> tuple[object, bool]:
    """`value` without torch's symbols, and whether that was possible."""
    match value:
        case torch.SymInt():
            text = render(value)
            return text, text is not None
        case list() | tuple():
            items = [_plain(v, render) for v in value]
            return tuple(item for item, _ in items), all(ok for _, ok in items)
        case _:
            return value, True


def replay(
    sequence: ViewMetaSequence | None, base: object, view: object, render: Render
) -> tuple[ViewStep, ...] | None:
    """How to get from an intermediate to a view of it, both given as their values in the graph.

    torch records the way from the first owner of the memory. That is not the way from `base` when
    this is a view itself, or changed its geometry in place: then the view is taken by geometry.
    """
    recorded = steps(sequence, render)
    if sequence is None or recorded is None or not (_strided(base) and _strided(view)):
        return recorded
    assert isinstance(base, torch.Tensor)
    assert isinstance(view, torch.Tensor)
    # What was written in place may come out of the graph in memory of its own; only torch's first
    # look at the function has then seen the view where it belongs.
    shared = base.untyped_storage()._cdata == view.untyped_storage()._cdata
    wanted = (tuple(view.size()), view.stride(), view.storage_offset())
    if not shared:
        seen = sequence.metadata
        if seen.stride is None or seen.storage_offset is None:
            return recorded
        wanted = (
            tuple(s.val for s in seen.size),
            tuple(s.val for s in seen.stride),
            seen.storage_offset.val,
        )
    kinds = {(t.dtype, t.is_conj(), t.is_neg()) for t in (base, view)}
    reached = _reached(base, sequence.sequence)
    if reached != _expressions(wanted):
        # The base may stand some way down the chain.
        for start in range(1, len(recorded)):
            if _reached(base, sequence.sequence[start:]) == _expressions(wanted):
                return recorded[start:]
    if len(kinds) > 1 or reached == _expressions(wanted):
        return recorded
    in_place = any(_record_name(record) in _IRREGULAR for record in sequence.sequence)
    same_size = reached is not None and reached[0] == _expressions(wanted)[0]
    if not shared and not in_place and same_size:
        return recorded
    geometry, known = _plain(wanted, render)
    return (ViewStep("aten::as_strided", geometry),) if known else None  # type: ignore[arg-type]


def rest(
    sequence: ViewMetaSequence | None, base: ViewMetaSequence | None, render: Render
) -> tuple[ViewStep, ...] | None:
    """How to get to a view from another that is on the way to it."""
    to_view, to_base = steps(sequence, render), steps(base, render)
    if to_view is None or to_base is None or to_view[: len(to_base)] != to_base:
        return None
    return to_view[len(to_base) :]


def _strided(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _reached(base: torch.Tensor, records: list[Any]) -> Any:
    """The geometry that the recorded views lead to from `base`; None when they do not apply."""
    logged, fake_tensor.log.disabled = fake_tensor.log.disabled, True  # it logs what we expect
    try:
        with torch.no_grad():
            out = _functionalization.apply_view_meta_sequence(base, records)
    except (RuntimeError, IndexError):
        return None
    finally:
        fake_tensor.log.disabled = logged
    return _expressions((tuple(out.size()), out.stride(), out.storage_offset()))


def _expressions(value: Any) -> Any:
    """Sizes for comparison: no comparison of these adds a guard."""
    match value:
        case tuple():
            return tuple(_expressions(v) for v in value)
        case torch.SymInt():
            return value.node.expr
        case _:
            return value


def _record_name(record: object) -> str:
    return type(record).__name__.removesuffix(_SUFFIX)


def steps(sequence: ViewMetaSequence | None, render: Render) -> tuple[ViewStep, ...] | None:
    """The chain as view steps, or None when a record or a size has no public form.

    `render` turns a symbolic size into an expression over what the program receives.
    """
    if sequence is None:
        return None
    result = []
    for record in sequence.sequence:
        operation = _operation(_record_name(record))
        if operation is None:
            return None
        # torch's stubs do not know the method.
        _symbolic, *rest = record.as_tuple()  # type: ignore[attr-defined]
        pick: int | None = None
        if not isinstance(rest[0], bool):
            pick, *rest = rest
        values = rest[2:]
        parameters = operation._schema.arguments[1:]
        if len(values) != len(parameters):
            return None
        positional: list[object] = []
        keywords: list[tuple[str, object]] = []
        for parameter, value in zip(parameters, values, strict=True):
            plain, known = _plain(value, render)
            if not known:
                return None
            if not parameter.kwarg_only:
                positional.append(plain)
            elif plain != parameter.default_value:
                keywords.append((parameter.name, plain))
        while positional and parameters[len(positional) - 1].has_default_value():
            if parameters[len(positional) - 1].default_value != positional[-1]:
                break
            positional.pop()
        result.append(ViewStep(operation.name(), tuple(positional), tuple(keywords), pick))
    return tuple(result)
