"""Index expressions as nodes of a graph: numbers that Python computes when the program runs."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import torch
from torch import fx

from straightline.ir.index import Atom, Axis, Div, Given, Index, Mod, Size
from straightline.lower.graph import Lowered

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
        self._sources = lowered.sizes

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
        source = self._sources.get(size)
        if source is None:
            raise Unknown(f"nothing that the graph is given tells the size {size}")
        number: Number = self._made(source.node)
        if source.dim is not None:
            measure = torch.ops.aten.sym_size.int
            number = self._graph.call_function(measure, (number, source.dim))
        if source.offset:
            number = self._do(operator.sub, number, source.offset)
        return number if source.scale == 1 else self._do(operator.floordiv, number, source.scale)
