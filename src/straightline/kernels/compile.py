"""Graphs with kernels: what is computed element by element becomes machine code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence

from torch import fx

from straightline.ir.nodes import Kernel
from straightline.kernels import steps
from straightline.kernels.numbers import Unknown
from straightline.kernels.rebuild import Called, rebuild
from straightline.lower.graph import Lowered, Supports, lower
from straightline.schedule.plan import plan

Builder = Callable[[Sequence[Kernel], Lowered], Called]
"""From kernels to what calls each of them, and the numbers that it takes after its tensors."""


@dataclasses.dataclass(frozen=True)
class Options:
    """`off(name, key)` says whether the operation of this name runs as it is on tensors of this
    dispatch key.
    """

    fusion: bool = True
    fuel: int | None = None
    off: Callable[[str, str], bool] = lambda _name, _key: False


def with_kernels(
    gm: fx.GraphModule,
    needed: Collection[int],
    build: Builder,
    supports: Supports,
    options: Options,
) -> fx.Graph:
    """The graph of `gm` with kernels for all that can be lowered. Outputs not `needed` are None."""
    pruned = _pruned(gm.graph, needed)
    lowered = lower(gm, supports, pruned, options.off)
    program = steps.program(pruned, lowered)
    found = plan(program, fusion=options.fusion, fuel=options.fuel)
    if not found.kernels:
        return gm.graph
    try:
        return rebuild(pruned, lowered, found, build(found.kernels, lowered))
    except Unknown:
        return gm.graph


def _pruned(old: fx.Graph, needed: Collection[int]) -> fx.Graph:
    """A copy of the graph that computes what is needed."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    results = graph.graph_copy(old, copies)
    assert isinstance(results, tuple | list)
    graph.output(tuple(r if i in needed else None for i, r in enumerate(results)))
    graph.eliminate_dead_code()
    return graph
