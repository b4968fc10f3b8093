"""Common subexpressions of a traced graph are computed once."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from straightline.torch_private import operations

Key = Hashable


def eliminate(gm: fx.GraphModule) -> None:
    """Let each pure operation of `gm` run once per distinct set of arguments.

    Left alone: operations that write, may give something else the next time or are not plain
    operators; everything that a graph output shares memory with, as two results that the caller may
    write to must stay two.
    """
    written = _written(gm.graph)
    returned = _shares_memory_with_output(gm.graph)
    seen: dict[Key, fx.Node] = {}
    for node in list(gm.graph.nodes):
        if not _pure(node) or node in returned:
            continue
        if any(n in written for n in (node, *node.all_input_nodes)):
            continue
        key = _key(node)
        if key is None:
            continue
        first = seen.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            gm.graph.erase_node(node)
    gm.recompile()


def _pure(node: fx.Node) -> bool:
    operation = node.target
    return (
        node.op == "call_function"
        and operations.is_operator(operation)
        and _gives_tensors(node)
        and operations.is_repeatable(operation)
        and not operations.writes(operation)
        and not operations.allocates_only(operation)
        and not node.is_impure()
    )


def _gives_tensors(node: fx.Node) -> bool:
    """Numbers read off tensors are left alone: each has a symbol of its own."""
    value = node.meta.get("val")
    results = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(r, torch.Tensor) for r in results)


def _written(graph: fx.Graph) -> set[fx.Node]:
    """Nodes that some operation of the graph writes to."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if operations.writes(node.target):
            found.update(node.all_input_nodes)
    return found


def _shares_memory_with_output(graph: fx.Graph) -> set[fx.Node]:
    """Nodes that are returned, and those that returned views look at."""
    (output,) = graph.find_nodes(op="output")
    found: set[fx.Node] = set()
    pending = list(output.all_input_nodes)
    while pending:
        node = pending.pop()
        if node in found:
            continue
        found.add(node)
        if _may_view(node):
            pending += node.all_input_nodes
    return found


def _may_view(node: fx.Node) -> bool:
    return node.op == "call_function" and operations.is_view(node.target) is not False


def _key(node: fx.Node) -> Key | None:
    """Operation and arguments, constants told apart by type too (`1`, `1.0` and `True` differ)."""
    hashable = True

    def freeze(value: Any) -> Any:
        nonlocal hashable
        if isinstance(value, list):
            return ("list", tuple(value))
        if isinstance(value, dict):
            return ("dict", tuple(sorted(value.items())))
        if isinstance(value, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool):
            hashable = False
            return None
        return value if isinstance(value, fx.Node | tuple) else (type(value), repr(value))

    args = map_aggregate(node.args, freeze)
    kwargs = map_aggregate(tuple(sorted(node.kwargs.items())), freeze)
    tag = node.meta.get("partitioner_tag"), node.meta.get("recompute"), node.meta.get("ac_graph_id")
    key = (node.target, _tuples(args), _tuples(kwargs), tag)
    try:
        hash(key)
    except TypeError:
        return None
    return key if hashable else None


def _tuples(value: Any) -> Any:
    """torch's immutable lists and dicts as plain tuples."""
    match value:
        case list() | tuple():
            return tuple(_tuples(v) for v in value)
        case dict():
            return tuple((k, _tuples(v)) for k, v in sorted(value.items()))
        case slice():
            return ("slice", value.start, value.stop, value.step)
        case _:
            return value
