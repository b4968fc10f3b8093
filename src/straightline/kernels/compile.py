"""Graphs with kernels: what is computed element by element becomes machine code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import fx

from straightline.ir.index import Index
from straightline.ir.nodes import Kernel
from straightline.kernels import steps
from straightline.kernels.numbers import Unknown
from straightline.kernels.rebuild import rebuild
from straightline.lower.graph import Lowered, lower
from straightline.schedule.plan import plan

Builder = Callable[[Sequence[Kernel], Lowered], Callable[[Kernel], tuple[Any, Sequence[Index]]]]
"""From kernels to what calls each of them, and the numbers that it takes after its tensors."""


@dataclasses.dataclass(frozen=True)
class Options:
    fusion: bool = True
    fuel: int | None = None


def with_kernels(
    gm: fx.GraphModule, needed: Collection[int], build: Builder, options: Options
) -> fx.GraphModule:
    """`gm` with kernels for all that can be lowered. Outputs not `needed` are None."""
    pruned = _pruned(gm, needed)
    lowered = lower(pruned)
    program = steps.program(pruned.graph, lowered)
    found = plan(program, fusion=options.fusion, fuel=options.fuel)
    if not found.kernels:
        return gm
    try:
        return rebuild(pruned, lowered, found, build(found.kernels, lowered))
    except Unknown:
        return gm


def _pruned(gm: fx.GraphModule, needed: Collection[int]) -> fx.GraphModule:
    """A copy of the graph that computes what is needed."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    results = graph.graph_copy(gm.graph, copies)
    assert isinstance(results, tuple | list)
    graph.output(tuple(r if i in needed else None for i, r in enumerate(results)))
    graph.eliminate_dead_code()
    return fx.GraphModule(gm, graph)
