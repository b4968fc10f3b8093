"""Writes to tensors whose elements share memory, as those of `x.expand(2, -1)` do."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

_IN_PLACE = frozenset(
    {
        *(operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv),
        *(operator.imod, operator.ipow, operator.iand, operator.ior, operator.ixor),
        *(operator.setitem,),
    }
)


def written(gm: object) -> fx.Node | None:
    """The first operation of a captured graph that writes to such a tensor, if any, and not for
    nothing.

    Made functional, the graph computes a value for each element and writes none of them back.
    """
    nodes: list[fx.Node] = list(gm.graph.nodes) if isinstance(gm, fx.GraphModule) else []
    for position, node in enumerate(nodes):
        target = node.args[0] if node.args else None
        if not (writes(node) and isinstance(target, fx.Node) and _overlaps(target)):
            continue
        others = [n for n in nodes if n.op == "placeholder"]
        others += [operand for later in nodes[position + 1 :] for operand in later.all_input_nodes]
        if any(_shares_memory(target, other) for other in others):
            return node
    return None


def _shares_memory(one: fx.Node, other: fx.Node) -> bool:
    """Whether two values may be in the same memory."""
    values = one.meta.get("example_value"), other.meta.get("example_value")
    if not isinstance(values[1], torch.Tensor):
        return isinstance(values[1], list | tuple)
    left, right = map(memory, values)
    return left is None or right is None or left == right


def writes(node: fx.Node) -> bool:
    """Whether an operation writes to its first argument."""
    match node.op:
        case "call_method":
            name = str(node.target)
            return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
        case "call_function":
            name = getattr(node.target, "__name__", "")
            plain = name.endswith("_") and not name.startswith("_")
            return node.target in _IN_PLACE or plain
        case _:
            return False


def _overlaps(node: fx.Node) -> bool:
    value: Any = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    dims: Iterable[tuple[Any, Any]] = zip(value.shape, value.stride(), strict=True)
    return any(
        not isinstance(stride, torch.SymInt)
        and stride == 0
        and (isinstance(size, torch.SymInt) or size > 1)
        for size, stride in dims
    )


# Why a graph with such a write is not compiled.
REASON = (
    "torch's stages cannot trace this graph (they get writes to a tensor whose elements share "
    "memory wrong)"
)


def detail(node: fx.Node) -> str:
    """Which operation it is."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return f"{name or node.target} writes to one"


def memory(value: Any) -> torch.UntypedStorage | None:
    """What a captured value's elements are in; wrappers of function transforms do not tell."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    try:
        return value.untyped_storage()
    except NotImplementedError:
        return None
