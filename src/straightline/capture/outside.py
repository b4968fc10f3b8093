"""Writes through `as_strided` to memory beside the elements of an argument."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from straightline.capture import overlap

# Why a graph with such a write is not compiled.
REASON = (
    "torch's stages cannot trace this graph (they get writes through as_strided to an argument "
    "wrong where the argument is a part of its memory)"
)


def written(gm: object) -> fx.Node | None:
    """The first operation of a captured graph that writes so, if any.

    Made functional, the graph knows the elements of an argument and nothing between them.
    """
    nodes: Iterable[fx.Node] = gm.graph.nodes if isinstance(gm, fx.GraphModule) else ()
    for node in nodes:
        target = node.args[0] if node.args else None
        if isinstance(target, fx.Node) and overlap.writes(node) and _reaches_out(target):
            return node
    return None


def _reaches_out(node: fx.Node) -> bool:
    """Whether the chain that makes a value goes from a part of some memory through `as_strided`."""
    strided = False
    while node.op != "placeholder":
        name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
        strided = strided or name == "as_strided"
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node) or not _same_memory(node, source):
            return False
        node = source
    return strided and _is_part(node)


def _same_memory(one: fx.Node, other: fx.Node) -> bool:
    left, right = _value(one), _value(other)
    if left is None or right is None:
        return False
    return bool(left.untyped_storage() == right.untyped_storage())


def _is_part(node: fx.Node) -> bool:
    value = _value(node)
    if value is None:
        return False
    if value._base is not None:
        return True
    count, whole = value.numel(), value.untyped_storage().nbytes()
    known = not isinstance(count, torch.SymInt) and not isinstance(whole, torch.SymInt)
    return known and count * value.element_size() < whole


def _value(node: fx.Node) -> Any:
    value = node.meta.get("example_value")
    return value if overlap.memory(value) is not None else None


def detail(node: fx.Node) -> str:
    """Which operation it is."""
    return overlap.detail(node)
