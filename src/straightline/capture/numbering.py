"""Value numbering: which nodes of two traces of one program compute the same value.

Two nodes get the same number when they apply the same operation to values of the same numbers.
Inputs are numbered by position, sizes by their symbolic expression, constants by what they hold,
and draws of random numbers, and whatever else may give something else the next time, by their place
in the order of the program. Operations that only rename a value keep its number.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from straightline.torch_private import operations
from straightline.torch_private.second_order import (
    SAVE_RNG,
    free_of_unbacked,
    outside_fake_mode,
)

aten = torch.ops.aten

RENAMES = frozenset(
    {
        aten.clone.default,
        aten.detach.default,
        aten.alias.default,
        aten.lift_fresh_copy.default,
        aten.lift_fresh.default,
    }
)
SPELLINGS: dict[Any, Any] = {aten._unsafe_view.default: aten.view.default}
SMALL_CONSTANT = 4096


class Numbering:
    """A table of numbers, shared by all graphs whose values are to be compared."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}

    def of(self, *key: object) -> int:
        """The number of a key, a new one where the key is new."""
        return self._numbers.setdefault(key, len(self._numbers))

    def graph(self, graph: fx.Graph, tokens: int = 0) -> dict[fx.Node, int]:
        """Number every node of a graph whose placeholders are `tokens` and then the program's
        inputs.
        """
        placeholders = graph.find_nodes(op="placeholder")
        given = {
            node: self.of("input", position)
            for position, node in enumerate(placeholders, start=-tokens)
        }
        return self.continued(graph, given)

    def continued(self, graph: fx.Graph, given: dict[fx.Node, int]) -> dict[fx.Node, int]:
        """Number every node of a graph, some nodes' numbers being known."""
        numbers = dict(given)
        drawn = 0
        for node in graph.nodes:
            if node in numbers or node.op == "output":
                continue
            if draws(node):
                key = self._arguments(node, numbers)
                numbers[node] = self.of("draw", drawn, str(target_of(node)), key)
                drawn += 1
            else:
                numbers[node] = self._number(node, numbers)
        return numbers

    def _number(self, node: fx.Node, numbers: dict[fx.Node, int]) -> int:
        value = node.meta.get("val")
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) and free_of_unbacked(
            value
        ):
            return self.of("size", str(value.node.expr))
        if node.op == "get_attr":
            return self.of("constant", constant(node))
        source = node.args[0] if node.args else None
        if isinstance(source, fx.Node):
            if node.target in RENAMES and geometry(node) == geometry(source):
                return numbers[source]
            if node.target is operator.getitem and source.target is SAVE_RNG:
                return self.random_state(numbers[source]) if node.args[1] == 0 else numbers[source]
        target = SPELLINGS.get(node.target, node.target)
        return self.of(str(target), self._arguments(node, numbers))

    def random_state(self, draw: int) -> int:
        """The number of the generator's state just before a draw."""
        return self.of("random state", draw)

    def _arguments(self, node: fx.Node, numbers: dict[fx.Node, int]) -> object:
        args = node.args
        if node.target is SAVE_RNG:  # (operation, *its arguments)
            args = args[1:]
        return _key(args, numbers), _key(node.kwargs, numbers)


def draws(node: fx.Node) -> bool:
    """Whether a node takes random numbers from a generator, or may do so in its own code."""
    if node.op != "call_function":
        return False
    if node.target is SAVE_RNG:
        return True
    if operations.is_operator(node.target):
        return not operations.is_repeatable(node.target)
    module = node.graph.owning_module
    return any(
        draws(inner)
        for argument in node.all_input_nodes
        if argument.op == "get_attr" and module is not None
        for body in [attribute(argument)]
        if isinstance(body, fx.GraphModule)
        for inner in body.graph.nodes
    )


def target_of(node: fx.Node) -> Any:
    """The operation a node applies, seen through the wrapper that keeps the generator's state."""
    return node.args[0] if node.target is SAVE_RNG else node.target


def geometry(node: fx.Node) -> object:
    """Shape, strides and type of a node's value as comparable objects; no guard is added."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return type(value)
    strides = value.stride() if value.layout == torch.strided else ()
    shape = [str(size) for size in value.shape]
    return shape, [str(s) for s in strides], value.dtype, value.device, value.layout


def attribute(node: fx.Node) -> Any:
    """What a `get_attr` node reads."""
    assert node.graph.owning_module is not None
    assert isinstance(node.target, str)
    return operator.attrgetter(node.target)(node.graph.owning_module)


def constant(node: fx.Node) -> object:
    """A comparable key of what a `get_attr` node reads."""
    value = attribute(node)
    if isinstance(value, fx.GraphModule):
        return value.code, tuple(constant(inner) for inner in value.graph.find_nodes(op="get_attr"))
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        about = (tuple(value.shape), value.stride(), value.dtype, value.device)
        if value.device.type == "cpu" and value.numel() <= SMALL_CONSTANT:
            with outside_fake_mode():
                raw = value.detach().contiguous().reshape(-1).view(torch.uint8)
                return about, bytes(raw.tolist())
        return about, value.data_ptr()
    return type(value), id(value)


def _key(value: Any, numbers: dict[fx.Node, int]) -> object:
    """An argument as something that compares equal exactly when the argument is the same."""
    match value:
        case fx.Node():
            return "value", numbers[value]
        case tuple() | list():
            return tuple(_key(v, numbers) for v in value)
        case dict():
            return tuple((k, _key(v, numbers)) for k, v in value.items())
        case slice():
            return "slice", _key((value.start, value.stop, value.step), numbers)
        case _:
            return type(value).__name__, repr(value)
