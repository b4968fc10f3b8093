"""The function that calls the programs of a graph's parts, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from straightline.capture.origins import identifier
from straightline.runtime.writer import Writer, tuple_of


def emit(
    writer: Writer, graph: fx.Graph, parts: Sequence[Callable[..., Any]], function: str
) -> str:
    """Write the function, and return the text."""
    names = {node: writer.name(identifier(node.name)) for node in graph.nodes}
    calls = iter(parts)
    taken = [names[node] for node in graph.find_nodes(op="placeholder")]
    with writer.block(f"def {function}({', '.join(taken)}):"):
        for node in graph.nodes:
            if node.op == "call_module":
                call = next(calls)
                bound = writer.bind(call, identifier(getattr(call, "__name__", "part")))
                given = ", ".join(names[argument] for argument in node.all_input_nodes)
                parts_of = {user.args[1]: names[user] for user in node.users}
                places = range(1 + max(parts_of, default=-1))
                left = ", ".join(parts_of.get(place, "_") for place in places)
                comma = "," if len(places) == 1 else ""
                entered = f"{bound}({given})"
                writer.line(f"{left}{comma} = {entered}" if parts_of else entered)
        results = [
            names[value] if isinstance(value, fx.Node) else repr(value) for value in returned(graph)
        ]
        writer.line(f"return {tuple_of(results)}")
    return writer.text


def returned(graph: fx.Graph) -> tuple[Any, ...]:
    """What Dynamo's graph returns: values, and constants perhaps."""
    values: Any = graph.output_node().args[0]
    return tuple(values)
