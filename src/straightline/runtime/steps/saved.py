"""What forward keeps for backward, and how backward gets at it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from straightline.capture.contract import Contract, Shared
from straightline.runtime import support
from straightline.runtime.writer import Writer, tuple_of
from straightline.torch_private import switches
from straightline.torch_private.marks import DYNAMIC_MARK


@dataclass(frozen=True)
class SavedNames:
    """Names that backward's saved values go by, each kind in order."""

    tensors: tuple[str, ...]
    opaque: tuple[str, ...]
    numbers: tuple[str, ...]


def emit_save(
    writer: Writer, contract: Contract, values: Sequence[str], results: Mapping[int, str]
) -> None:
    """Keep `values`: checked tensors, unchecked ones, opaque objects, numbers.

    `results` is what forward returns, by value number.
    """
    saved = contract.saved
    shared = {s.index: (s, results[s.number]) for s in saved.shared if s.number in results}
    tensors = [
        _marked(writer, contract, i, value, _part(writer, value, *shared[i]))
        if i in shared
        else _marked(writer, contract, i, value, _detached(contract, i, value))
        for i, value in enumerate(values[: saved.tensors])
    ]
    opaque = values[saved.tensors : saved.tensors + saved.opaque]
    numbers = values[saved.tensors + saved.opaque :]
    if saved.checked:
        writer.line(f"ctx.to_save = {tuple_of(tensors[: saved.checked])}")
    if saved.unchecked:
        writer.line(f"ctx._tensors_no_vc_check = {tuple_of(tensors[saved.checked :])}")
    if saved.opaque:
        writer.line(f"ctx.opaque_objects = {tuple_of(opaque)}")
    if saved.numbers:
        writer.line(f"ctx.symints = {tuple_of(numbers)}")


def _part(writer: Writer, value: str, shared: Shared, result: str) -> str:
    """`value` made from the result whose memory it looks at: they share a version counter."""
    geometry = f"as_strided({value}.size(), {value}.stride(), {value}.storage_offset())"
    match shared.way:
        case "itself":
            return f"{result}.detach()"
        case "as_strided":
            return f"{result}.{geometry}.detach()"
        case "conj":
            return f"{result}.conj().{geometry}.detach()"
        case "view_like":
            return f"{writer.bind(support.view_like, 'view_like')}({result}, {value}).detach()"
        case "conj_view_like":
            like = writer.bind(support.view_like, "view_like")
            return f"{like}({result}, {value}.conj()).conj().detach()"


def _detached(contract: Contract, index: int, value: str) -> str:
    """`value`, detached where it is a view: a saved view would keep its own graph alive."""
    saved = contract.saved
    if index in saved.view:
        return f"{value}.detach()"
    if index in saved.maybe_view:
        return f"{value}.detach() if {value}._is_view() else {value}"
    return value


def _marked(writer: Writer, contract: Contract, index: int, value: str, expression: str) -> str:
    """`expression`, or a name for it where it carries marks of dynamic dimensions."""
    saved = contract.saved
    marks = dict(saved.dynamic).get(index)
    if marks is None:
        return expression
    name = value
    if expression != value:
        name = writer.name(f"{value}_saved" if value.isidentifier() else "saved")
        writer.line(f"{name} = {expression}")
    dims = ", ".join(map(str, marks))
    if index in saved.view or index in {s.index for s in saved.shared}:
        writer.line(f"{name}.{DYNAMIC_MARK} = {{{dims}}}")
    else:
        writer.line(f"{name}.{DYNAMIC_MARK} = {{*getattr({name}, {DYNAMIC_MARK!r}, ()), {dims}}}")
    return name


def emit_load(writer: Writer, contract: Contract, names: SavedNames, *, node: str = "ctx") -> None:
    """Unpack what forward kept; with it gone from the node, each value dies after its last use."""
    saved = contract.saved
    if saved.checked:
        _unpack(writer, names.tensors[: saved.checked], f"{node}.saved_tensors")
    else:
        # For its error if the graph is gone. Torch's backends raise it too, whatever they saved;
        # eager does not where no operation saved anything (`x + 1`).
        writer.line(f"{node}.saved_tensors")
    _unpack(writer, names.tensors[saved.checked :], f"{node}._tensors_no_vc_check")
    _unpack(writer, names.opaque, f"{node}.opaque_objects")
    _unpack(writer, names.numbers, f"{node}.symints")
    if saved.checked:
        writer.line(f"{node}.maybe_clear_saved_tensors()")


def emit_drop(writer: Writer, contract: Contract) -> None:
    """Take from the node `ctx` what autograd does not free itself, unless the graph is kept."""
    names = []
    if contract.saved.unchecked:
        names.append("_tensors_no_vc_check")
    if contract.saved.opaque:
        names.append("opaque_objects")
    if contract.handles.values:
        names.append("values")
    if names:
        kept = writer.bind(switches.graph_is_kept, "graph_is_kept")
        with writer.block(f"if not {kept}():"):
            writer.line(f"{' = '.join(f'ctx.{name}' for name in names)} = ()")


def _unpack(writer: Writer, names: Sequence[str], source: str) -> None:
    if names:
        writer.line(f"{', '.join(names)}{',' if len(names) == 1 else ''} = {source}")
