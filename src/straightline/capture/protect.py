"""Old values of mutated inputs that backward needs are kept as copies.

The partitioner saves such an input itself, although it holds the new value, under a new version, by
the time that backward runs. Where eager raises its version error, tracing has raised it already;
what arrives here has a gradient in eager, taken at the old value.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from straightline.capture.written import Written
from straightline.torch_private import operations


def copy_saved_inputs(
    forward: fx.GraphModule, backward: fx.GraphModule | None, where: Written
) -> int:
    """Save copies of what looks at written inputs, those included that a graph itself writes to.

    An input that backward writes to has to be saved as it is; where backward reads it as well, its
    copy is one more saved value. Returns how many there are; they come last among the checked ones.
    """
    graph = forward.graph
    placeholders = graph.find_nodes(op="placeholder")
    targets = {placeholders[where.tokens + i] for i in where.inputs} | _written_in_graph(graph)
    if not targets:
        return 0
    (output,) = graph.find_nodes(op="output")
    values = list(output.args[0])
    received = backward.graph.find_nodes(op="placeholder")[where.numbers :] if backward else []
    written = _written_in_graph(backward.graph) if backward else set()
    copies: dict[fx.Node, fx.Node] = {}
    both: list[tuple[fx.Node, fx.Node]] = []
    for position, value in enumerate(values):
        if position < where.first_saved or not isinstance(value, fx.Node):
            continue
        if not isinstance(value.meta.get("val"), torch.Tensor):
            continue
        if operations.memory_of(value) not in targets:
            continue
        if value not in copies:
            with graph.inserting_after(_last_definition(value, placeholders)):
                copy = graph.call_function(torch.ops.aten.clone.default, (value,))
            copy.meta = {**value.meta, "old_value_of": value.name}
            copies[value] = copy
        there = received[position - where.first_saved]
        if there in written:
            both.append((copies[value], there))
        else:
            values[position] = copies[value]
    added = 0
    if backward is not None:
        for copy, there in both:
            if _receive(backward.graph, there, received[where.checked - 1]):
                values.insert(where.first_saved + where.checked, copy)
                added += 1
        backward.recompile()
    output.args = (tuple(values),)
    forward.recompile()
    return added


def _receive(graph: fx.Graph, input_: fx.Node, last: fx.Node) -> bool:
    """Let what reads `input_` read a new placeholder, which follows `last`, if anything does."""
    readers = [
        user
        for user in input_.users
        if user.op != "output" and input_ not in operations.written_nodes(user)
    ]
    if not readers:
        return False
    with graph.inserting_after(last):
        old = graph.placeholder(f"{input_.name}_old")
    old.meta = dict(input_.meta)
    for user in readers:
        user.replace_input_with(input_, old)
    return True


def _written_in_graph(graph: fx.Graph) -> set[fx.Node]:
    """Placeholders that an operation of the graph writes to."""
    found = set()
    for node in graph.nodes:
        for argument in operations.written_nodes(node):
            root = operations.memory_of(argument)
            if root.op == "placeholder":
                found.add(root)
    return found


def _last_definition(node: fx.Node, placeholders: Sequence[fx.Node]) -> fx.Node:
    """Graph inputs stay together ahead of everything computed."""
    return placeholders[-1] if node.op == "placeholder" else node
