"""Arguments of the compiled function that an autograd function of the user's marks as dirty."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from straightline.capture import overlap

# Why a graph with such an autograd function is not compiled.
REASON = (
    "torch's stages cannot trace this graph (they lose the gradient of an argument that a "
    "torch.autograd.Function writes to)"
)


def written(gm: object) -> fx.Node | None:
    """The first autograd function that writes to memory passed from outside, if any.

    The stages run its forward without gradients; the write reaches the argument like one under
    `no_grad`, and what the function's backward would do with its gradient is lost.
    """
    nodes: Iterable[fx.Node] = gm.graph.nodes if isinstance(gm, fx.GraphModule) else ()
    passed: set[object] = set()
    for node in nodes:
        if node.op == "placeholder":
            passed |= _memory(node)
        dirty = _dirty(node)
        if not dirty or not any(_requires_grad(operand) for operand in node.args[2:]):
            continue
        if any(_memory(operand) & passed for operand in dirty):
            return node
    return None


def _dirty(node: fx.Node) -> list[Any]:
    """The operands that an autograd function marks."""
    if node.target is not torch.ops.higher_order.autograd_function_apply:
        return []
    places: Any = node.kwargs.get("dirty_idx") or ()
    return [node.args[2 + place] for place in places]


def _value(operand: Any) -> Any:
    return operand.meta.get("example_value") if isinstance(operand, fx.Node) else None


def _requires_grad(operand: Any) -> bool:
    value = _value(operand)
    return isinstance(value, torch.Tensor) and value.requires_grad


def _memory(operand: Any) -> set[object]:
    """What tells a value's memory: its node and its storage."""
    value = _value(operand)
    if not isinstance(value, torch.Tensor):
        return set()
    storage = overlap.memory(value)
    return {operand} if storage is None else {operand, storage}


def detail(node: fx.Node) -> str:
    """Which argument it is."""
    return f"one writes to {', '.join(map(str, _dirty(node)))}"
