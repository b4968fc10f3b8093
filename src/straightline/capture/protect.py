"""Old values of mutated inputs that backward needs are kept as copies.

The partitioner saves such an input itself, although it holds the new value, under a new version, by
the time that backward runs. Where eager raises its version error, tracing has raised it already;
what arrives here has a gradient in eager, taken at the old value.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import fx

from straightline.torch_private import operations


def copy_saved_inputs(
    forward: fx.GraphModule, mutated: Collection[int], first_saved: int, tokens: int
) -> tuple[str, ...]:
    """Save copies of what looks at inputs number `mutated`; returns the names of the values copied.

    `first_saved` is where the saved values begin among the graph's outputs, `tokens` how many
    placeholders come ahead of input 0.
    """
    graph = forward.graph
    placeholders = graph.find_nodes(op="placeholder")
    targets = {placeholders[tokens + i] for i in mutated} | _written_in_graph(graph)
    if not targets:
        return ()
    (output,) = graph.find_nodes(op="output")
    values = list(output.args[0])
    copies: dict[fx.Node, fx.Node] = {}
    for position, value in enumerate(values):
        if position < first_saved or not isinstance(value, fx.Node):
            continue
        if _root(value) not in targets or not isinstance(value.meta.get("val"), torch.Tensor):
            continue
        if value not in copies:
            with graph.inserting_after(_last_definition(value, placeholders)):
                copy = graph.call_function(torch.ops.aten.clone.default, (value,))
            copy.meta = {**value.meta, "old_value_of": value.name}
            copies[value] = copy
        values[position] = copies[value]
    if copies:
        output.args = (tuple(values),)
        forward.recompile()
    return tuple(node.name for node in copies)


def _written_in_graph(graph: fx.Graph) -> set[fx.Node]:
    """Placeholders that an operation of the graph writes to."""
    found = set()
    for node in graph.nodes:
        written = operations.written_arguments(node.target)
        for position, argument in enumerate(node.args):
            if position in written and isinstance(argument, fx.Node):
                root = _root(argument)
                if root.op == "placeholder":
                    found.add(root)
    return found


def _root(node: fx.Node) -> fx.Node:
    """What a chain of views looks at in the end."""
    while node.op == "call_function" and node.all_input_nodes:
        is_item = operations.name(node.target) == "getitem"
        if not is_item and not operations.is_view(node.target):
            break
        node = node.all_input_nodes[0]
    return node


def _last_definition(node: fx.Node, placeholders: Sequence[fx.Node]) -> fx.Node:
    """Graph inputs stay together ahead of everything computed."""
    return placeholders[-1] if node.op == "placeholder" else node
