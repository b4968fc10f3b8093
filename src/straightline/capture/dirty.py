"""Arguments of the compiled function that an autograd function of the user's marks as dirty."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import fx

from straightline.capture import overlap
from straightline.capture.numbering import attribute

# Why a graph with such an autograd function is not compiled, where it cannot be rewritten.
REASON = (
    "torch's stages cannot trace this graph (they lose the gradient of an argument that a "
    "torch.autograd.Function writes to)"
)


def write_back(gm: object) -> None:
    """Let autograd functions that write to memory passed from outside write to copies, whose new
    values are copied back.

    torch's stages run a function's forward without gradients; the write would reach the argument
    like one under `no_grad`. A copy is an operation of its own, with the gradient that the
    function's backward gives.
    """
    if not isinstance(gm, fx.GraphModule):
        return
    for node in _calls(gm):
        if _alone(node):
            for place, operand in _dirty(node).items():
                _rewrite(node, place, operand)
    gm.recompile()


def written(gm: object) -> fx.Node | None:
    """The first autograd function left that writes to memory passed from outside, if any."""
    return next(iter(_calls(gm)), None)


def _calls(gm: object) -> list[fx.Node]:
    """The autograd functions that write to memory passed from outside, under autograd's eyes."""
    nodes: Iterable[fx.Node] = gm.graph.nodes if isinstance(gm, fx.GraphModule) else ()
    passed: set[object] = set()
    found = []
    for node in nodes:
        if node.op == "placeholder":
            passed |= _memory(node)
        dirty = _dirty(node)
        if not dirty or not any(_requires_grad(operand) for operand in node.args[2:]):
            continue
        if any(_memory(operand) & passed for operand in dirty.values()):
            found.append(node)
    return found


def _dirty(node: fx.Node) -> Mapping[int, fx.Node]:
    """The operands that an autograd function marks, by the number of the result each is."""
    if node.target is not torch.ops.higher_order.autograd_function_apply:
        return {}
    places: Any = node.kwargs.get("dirty_idx") or ()
    body = attribute(node.args[0]) if places else None  # type: ignore[arg-type]
    if not isinstance(body, fx.GraphModule):
        return {}
    placeholders = body.graph.find_nodes(op="placeholder")
    results: Any = body.graph.output_node().args[0]
    found = {place: node.args[2 + placeholders.index(results[0][place])] for place in places}
    return {place: operand for place, operand in found.items() if isinstance(operand, fx.Node)}


def _alone(node: fx.Node) -> bool:
    """Whether no operand shares memory with one that is marked."""
    operands = [operand for operand in node.args[2:] if isinstance(operand, fx.Node)]
    marked = set().union(*(_memory(operand) for operand in _dirty(node).values()))
    return sum(bool(_memory(operand) & marked) for operand in operands) == len(_dirty(node))


def _rewrite(node: fx.Node, place: int, operand: fx.Node) -> None:
    graph = node.graph
    with graph.inserting_before(node):
        copy = graph.call_method("clone", (operand,))
    node.replace_input_with(operand, copy)
    given = [
        user for user in node.users if user.target is operator.getitem and user.args[1] == place
    ]
    with graph.inserting_after(node):
        result = graph.call_function(operator.getitem, (node, place))
    with graph.inserting_after(result):
        back = graph.call_method("copy_", (operand, result))
    for each in given:
        each.replace_all_uses_with(operand)
        graph.erase_node(each)
    about = {key: value for key, value in node.meta.items() if key != "example_value"}
    for made in (copy, back):
        made.meta = about.copy()


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
    return f"one writes to {', '.join(map(str, _dirty(node).values()))}"
