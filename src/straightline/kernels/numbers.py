"""Index expressions as nodes of a graph: numbers that Python computes when the program runs."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator

import torch
from torch import fx

from straightline.ir.index import Atom, Axis, Div, Given, Index, Mod, Size, index
from straightline.lower.graph import Host, Input, Lowered

Number = fx.Node | int


class Unknown(Exception):
    """A size that nothing the graph is given tells."""


class Numbers:
    """Writes numbers into `graph`; `made` gives the new node of an old one."""

    def __init__(
        self, graph: fx.Graph, lowered: Lowered, made: Callable[[fx.Node], fx.Node]
    ) -> None:
        self._graph = graph
        self._made = made
        self._known: dict[Index, Number] = {}
        self._told = dict(_told(lowered))

    def number(self, value: Index) -> Number:
        """`value`, computed once."""
        if value.is_constant:
            return value.constant
        if value not in self._known:
            self._known[value] = self._written(value)
        return self._known[value]

    def _written(self, value: Index) -> Number:
        total: Number | None = value.constant or None
        for product, count in value.terms:
            factors: list[Number] = [self._atom(atom) for atom in product]
            if count != 1:
                factors.append(count)
            term = functools.reduce(functools.partial(self._do, operator.mul), factors)
            total = term if total is None else self._do(operator.add, term, total)
        assert total is not None
        return total

    def _do(self, function: Callable[..., object], left: Number, right: Number) -> Number:
        return self._graph.call_function(function, (left, right))

    def _atom(self, atom: Atom) -> Number:
        match atom:
            case Size():
                return self._size(atom)
            case Div(top, bottom):
                return self._do(operator.floordiv, self.number(top), self.number(bottom))
            case Mod(top, bottom):
                return self._do(operator.mod, self.number(top), self.number(bottom))
            case Axis() | Given():
                raise Unknown(f"{atom} is not known before a kernel runs")

    def _size(self, size: Size) -> Number:
        told = self._told.get(size)
        match told:
            case None:
                raise Unknown(f"nothing that the graph is given tells the size {size}")
            case fx.Node():
                return self._made(told)
            case (node, dim):
                return self._graph.call_function(
                    torch.ops.aten.sym_size.int, (self._made(node), dim)
                )


def _told(lowered: Lowered) -> Iterator[tuple[Size, fx.Node | tuple[fx.Node, int]]]:
    """What tells each size: a number that is passed, rather than a dimension of a tensor."""
    numbers: list[tuple[Size, fx.Node]] = []
    for node, value in lowered.values.items():
        if node.op != "placeholder":
            continue
        match value:
            case Host(found) if found is not None:
                numbers += ((size, node) for size in _only(found))
            case Input(tensor, _) if tensor is not None:
                for dim, extent in enumerate(tensor.shape):
                    yield from ((size, (node, dim)) for size in _only(extent))
            case _:
                pass
    yield from numbers


def _only(value: Index) -> Iterator[Size]:
    """The size that an index is, if it is one."""
    for atom in value.atoms:
        if isinstance(atom, Size) and index(atom) is value:
            yield atom
