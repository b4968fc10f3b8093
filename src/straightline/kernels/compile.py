"""Graphs with kernels: what is computed element by element becomes machine code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence

from torch import fx

from straightline.capture import origins
from straightline.ir.nodes import Kernel
from straightline.kernels import steps
from straightline.kernels.numbers import Unknown
from straightline.kernels.rebuild import Called, rebuild
from straightline.kernels.record import Kept
from straightline.lower.graph import Extern, Lowered, Supports, lower
from straightline.schedule.plan import plan
from straightline.torch_private import operations

Builder = Callable[[Sequence[Kernel], Lowered], Called]
"""From kernels to what calls each of them, and the numbers that it takes after its tensors."""


@dataclasses.dataclass(frozen=True)
class Options:
    """`off(name, key)` says whether the operation of this name runs as it is on tensors of this
    dispatch key. `check` has kernels followed by what compares them with ATen.
    """

    fusion: bool = True
    fuel: int | None = None
    off: Callable[[str, str], bool] = lambda _name, _key: False
    check: bool = False


@dataclasses.dataclass(frozen=True)
class Result:
    """A graph to run, and the operations of it that no kernel does."""

    graph: fx.Graph
    kept: tuple[Kept, ...]


def with_kernels(
    gm: fx.GraphModule,
    needed: Collection[int],
    build: Builder,
    supports: Supports,
    options: Options,
) -> Result:
    """The graph of `gm` with kernels for all that can be lowered. Outputs not `needed` are None."""
    pruned = _pruned(gm.graph, needed)
    lowered = lower(gm, supports, pruned, options.off)
    program = steps.program(pruned, lowered)
    found = plan(program, fusion=options.fusion, fuel=options.fuel)
    kept = tuple(
        kept_as(node, value.reason)
        for node, value in lowered.values.items()
        if isinstance(value, Extern)
    )
    if not found.kernels:
        return Result(gm.graph, kept)
    called = build(found.kernels, lowered)
    try:
        return Result(rebuild(pruned, lowered, found, called, check=options.check), kept)
    except Unknown as unknown:
        return Result(gm.graph, all_kept(gm.graph, str(unknown)))


def all_kept(graph: fx.Graph, reason: str) -> tuple[Kept, ...]:
    """The operations of a graph, where none of them is a kernel's."""
    return tuple(kept_as(n, reason) for n in graph.nodes if operations.is_operator(n.target))


def kept_as(node: fx.Node, reason: str) -> Kept:
    line = origins.origin(node)
    where = None if line is None else f"{line.file}:{line.line}"
    return Kept(str(node.target), where, reason)


def _pruned(old: fx.Graph, needed: Collection[int]) -> fx.Graph:
    """A copy of the graph that computes what is needed."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    results = graph.graph_copy(old, copies)
    assert isinstance(results, tuple | list)
    graph.output(tuple(r if i in needed else None for i, r in enumerate(results)))
    graph.eliminate_dead_code()
    return graph
