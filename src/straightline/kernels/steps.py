"""A lowered graph as the scheduler sees it: computes, and other operations between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from torch import fx

from straightline.ir.index import Size
from straightline.lower.graph import Computed, Extern, Host, Input, Item, Lowered, View
from straightline.lower.tensor import Tensor
from straightline.schedule.program import External, Program, Step


def program(graph: fx.Graph, lowered: Lowered) -> Program:
    """The steps of a graph in its order, and the buffers that its outputs need."""
    steps: list[Step] = []
    told: dict[fx.Node, frozenset[Size]] = {}
    for size, source in lowered.sizes.items():
        told[source.node] = told.get(source.node, frozenset()) | {size}
    for node, value in lowered.values.items():
        match value:
            case Computed(computes, _):
                steps += (dataclasses.replace(c, origins=(node.name,)) for c in computes)
            case Extern(_, results):
                reads = frozenset(memory(lowered, node.all_input_nodes))
                made = frozenset(_names(results))
                steps.append(External(node.name, reads, made, told.get(node, frozenset())))
            case Host():
                # A number read off a tensor.
                reads = frozenset(memory(lowered, node.all_input_nodes))
                if reads:
                    tells = told.get(node, frozenset())
                    steps.append(External(node.name, reads, frozenset(), tells))
            case _:
                pass
    (output,) = graph.find_nodes(op="output")
    return Program(tuple(steps), frozenset(memory(lowered, output.all_input_nodes)))


def memory(lowered: Lowered, nodes: Iterable[fx.Node]) -> Iterator[str]:
    """The names of the buffers that have to be there for these nodes to be."""
    for node in nodes:
        match lowered.values[node]:
            case View(base, _):
                yield from memory(lowered, (base,))
            case Item(of, at, _):
                value = lowered.values[of]
                if isinstance(value, Computed):
                    yield from _names(value.results[at : at + 1])
                else:
                    yield from memory(lowered, (of,))
            case Computed(_, results) | Extern(_, results):
                yield from _names(results)
            case Input(tensor, _):
                yield from _names((tensor,))
            case _:
                pass


def _names(tensors: Iterable[Tensor | None]) -> Iterator[str]:
    return (t.buffer.name for t in tensors if t is not None and t.buffer is not None)
