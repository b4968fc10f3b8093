"""What a traced graph returns: which of it are views, and of what."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import fx
from torch._functorch._aot_autograd.schemas import OutputType
from torch._ops import OpOverload

from straightline.torch_private import operations
from straightline.torch_private.stages import Stages

Way: TypeAlias = Literal["itself", "as_strided", "conj", "view_like", "conj_view_like"]

# Outputs that are made outside of the graph.
_REGENERATED = frozenset(
    {
        OutputType.is_input,
        OutputType.alias_of_input,
        OutputType.alias_of_intermediate,
        OutputType.alias_of_intermediate_save_as_output,
        OutputType.alias_of_intermediate_base_is_user_output,
    }
)


def output_values(graph: fx.GraphModule) -> Sequence[Any]:
    """What a traced graph returns, in order."""
    (output,) = graph.graph.find_nodes(op="output")
    return tuple(output.args[0])


def is_view(value: Any) -> bool | None:
    """Whether a graph value is a view at run time; None when only the run can tell."""
    if not isinstance(value, fx.Node):
        return False
    match value.op, value.target:
        case "call_function", OpOverload() as operation:
            return operation.is_view
        case "call_function", _ if value.target.__name__ == "getitem":  # type: ignore[union-attr]
            return is_view(value.args[0])
        case _:
            return None


def returned(stages: Stages) -> Sequence[Any]:
    """The graph's results by value number; none is known where subclasses are taken apart."""
    if stages.subclass is not None:
        return (None,) * stages.meta.num_forward_returns
    return output_values(stages.forward)[len(stages.meta.tokens) :]


def fake(value: Any) -> object:
    """What stands for a value of the graph while it is traced."""
    return value.meta.get("val") if isinstance(value, fx.Node) else None


def hidden_views(stages: Stages) -> frozenset[int]:
    """Numbers of values that are views in the graph, of memory that is theirs alone.

    They became views in place, or when writes to them were taken out of the graph, and are none in
    eager. Autograd would forbid the caller to write to them.
    """
    meta = stages.meta
    first = meta.num_mutated_inp_runtime_indices
    values = returned(stages)
    owners: dict[int, fx.Node] = {}
    for number, value in enumerate(values[: meta.num_forward_returns]):
        position = number - first
        is_output = 0 <= position < len(meta.output_info)
        if is_output and meta.output_info[position].output_type in _REGENERATED:
            continue
        if isinstance(value, fx.Node):
            owners[number] = operations.memory_of(value)
    counts = collections.Counter(owners.values())
    outputs = range(first, first + len(stages.kin))
    return frozenset(
        number
        for number, owner in owners.items()
        if number >= first
        and owner is not values[number]
        and owner.op == "call_function"
        and counts[owner] == 1
        and (
            number not in outputs
            or meta.output_info[number - first].requires_grad
            or stages.kin[number - first].root
        )
    )


def shared(
    stages: Stages, hidden: frozenset[int], saved: Sequence[Any]
) -> Iterator[tuple[int, int, Way]]:
    """Saved tensors that look at the memory of a hidden view: which, of which value, and how."""
    values = returned(stages)
    owners = {operations.memory_of(values[number]): number for number in sorted(hidden)}
    for index, value in enumerate(saved):
        number = owners.get(operations.memory_of(value)) if isinstance(value, fx.Node) else None
        if number is not None and (way := _way(values[number], value)) is not None:
            yield index, number, way


def _way(start: fx.Node, end: fx.Node) -> Way | None:
    """What leads from one view of some memory to another."""
    base, view = fake(start), fake(end)
    if start is end:
        return "itself"
    if not isinstance(base, torch.Tensor) or not isinstance(view, torch.Tensor):
        return None
    if {base.layout, view.layout} != {torch.strided} or base.is_neg() != view.is_neg():
        return None
    if base.dtype != view.dtype and base.is_conj():
        return None
    if base.dtype != view.dtype:
        return "conj_view_like" if view.is_conj() else "view_like"
    return "as_strided" if base.is_conj() == view.is_conj() else "conj"
