"""The graph's own operations, one line each, in the function that does everything else."""

from __future__ import annotations

import keyword
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from straightline.capture import origins
from straightline.errors import CompilerBug
from straightline.runtime.steps import modes
from straightline.runtime.writer import Writer
from straightline.torch_private import autocast, operations
from straightline.torch_private.marks import WRITES

Lower: TypeAlias = Callable[[fx.GraphModule, Collection[int]], fx.Graph]
"""Gives the graph to write in place of a module's, of whose outputs only those at these places
matter: one with the same inputs that runs kernels."""

_INFIX: Mapping[object, str] = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.pow: "**",
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
    operator.and_: "&",
    operator.or_: "|",
}


def emit(
    writer: Writer,
    gm: fx.GraphModule,
    inputs: Sequence[str],
    *,
    needed: Collection[int],
    own: Collection[str],
    recast: Callable[[fx.Node], bool] | None = None,
    lower: Lower | None = None,
) -> list[str]:
    """Write `gm`'s operations; returns an expression for each of its outputs.

    `inputs` are expressions for its placeholders. Outputs outside `needed` are given as "None" and
    what only they use is not computed. Each value is dropped after its last use; of the inputs only
    those named in `own` are this function's to drop. `recast`: gradients are computed under their
    caller's autocast. It reaches the operations of which this holds, those of backward, whose
    results autograd would cast back, and not what is computed again from forward.
    """
    graph = gm.graph if lower is None else lower(gm, needed)
    nodes = list(graph.nodes)
    results = list(nodes[-1].args[0])
    live, last_use = _liveness(nodes, [r for i, r in enumerate(results) if i in needed])
    returned = {r for i, r in enumerate(results) if i in needed and isinstance(r, fx.Node)}
    names: dict[fx.Node, str] = {}
    wanted = _names(nodes)
    given = iter(inputs)
    previous: origins.Origin | None = None
    for node in nodes[:-1]:
        match node.op:
            case "placeholder":
                names[node] = next(given)
            case "get_attr":
                if node in live:
                    names[node] = writer.bind(_attribute(gm, node.target), _tail(node.target))
            case "call_function" if node in live:
                lines = origins.all_of(node)
                comment = _comment(lines, previous)
                previous = lines[-1] if len(lines) == 1 else previous
                call = _call(writer, node, names)
                cast = recast is not None and autocast.casts(node.target) and recast(node)
                if cast:
                    call += _cast_back(writer, node)
                if node in returned or any(user in live for user in node.users):
                    names[node] = writer.name(wanted[node])
                    call = f"{names[node]} = {call}"
                as_traced = recast is not None and not cast and autocast.may_cast(node)
                with modes.without_autocast(writer, as_traced):
                    writer.line(call, comment)
                _drop(writer, node, names, last_use, returned, own)
            case "call_function":
                pass
            case _:
                raise CompilerBug(f"a traced graph holds a node of kind {node.op!r}: {node}")
    return [_expression(writer, r, names) if i in needed else "None" for i, r in enumerate(results)]


def _liveness(
    nodes: Sequence[fx.Node], results: Sequence[Any]
) -> tuple[set[fx.Node], dict[fx.Node, list[fx.Node]]]:
    """Nodes to run, and for each the values that nobody needs after it."""
    live = {r for r in results if isinstance(r, fx.Node)}
    last_use: dict[fx.Node, list[fx.Node]] = {}
    used: set[fx.Node] = set()
    for node in reversed(nodes[:-1]):
        if node not in live and not _has_effect(node):
            continue
        live.add(node)
        for value in node.all_input_nodes:
            live.add(value)
            if value not in used:
                used.add(value)
                last_use.setdefault(node, []).append(value)
    return live, last_use


def _has_effect(node: fx.Node) -> bool:
    return node.op == "call_function" and (
        WRITES in node.meta or node.is_impure() or operations.writes(node.target)
    )


def _drop(
    writer: Writer,
    node: fx.Node,
    names: Mapping[fx.Node, str],
    last_use: Mapping[fx.Node, Sequence[fx.Node]],
    returned: Collection[fx.Node],
    own: Collection[str],
) -> None:
    done = [
        names[value]
        for value in last_use.get(node, ())
        if value not in returned
        and (value.op == "call_function" or (value.op == "placeholder" and names[value] in own))
        and names[value].isidentifier()
        and not keyword.iskeyword(names[value])  # None in the place of a token
    ]
    if done:
        writer.line("del " + ", ".join(dict.fromkeys(done)))


def _names(nodes: Sequence[fx.Node]) -> dict[fx.Node, str]:
    """A name for each value: what the user's line assigns, for the line's last value; else the
    operation.
    """
    wanted = {n: origins.identifier(_plain_name(n)) for n in nodes}
    last_of_line: dict[tuple[str, int, bool], fx.Node] = {}
    for node in nodes:
        where = origins.origin(node)
        if node.op == "call_function" and where is not None and WRITES not in node.meta:
            last_of_line[where.file, where.line, _in_backward(node)] = node
    for (_file, _line, backward), node in last_of_line.items():
        where = origins.origin(node)
        assigned = origins.assigned_name(where.text) if where is not None else None
        if assigned is not None and not backward and not operations.writes(node.target):
            wanted[node] = assigned
    return wanted


def _in_backward(node: fx.Node) -> bool:
    return bool(node.meta.get("autograd_backward")) or (
        node.meta.get("partitioner_tag") == "is_backward"
    )


def _cast_back(writer: Writer, node: fx.Node) -> str:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return ""
    return f".to({_expression(writer, value.dtype, {})})"


def _plain_name(node: fx.Node) -> str:
    stem, _, count = node.name.rpartition("_")
    return stem if stem and count.isdigit() else node.name


def _comment(lines: Sequence[origins.Origin], previous: origins.Origin | None) -> str:
    """File and lines, and the text of one line where it was not shown just before."""
    if len(lines) != 1 or lines[0] == previous:
        return origins.short(lines)
    return f"{lines[0].short}: {lines[0].text}".rstrip(": ")


def _call(writer: Writer, node: fx.Node, names: Mapping[fx.Node, str]) -> str:
    target: Any = node.target
    infix = _INFIX.get(target)
    if infix is not None and len(node.args) == 2 and not node.kwargs:
        left, right = (_expression(writer, a, names) for a in node.args)
        return f"{left} {infix} {right}"
    if target is operator.getitem:
        owner, item = (_expression(writer, a, names) for a in node.args)
        return f"{owner}[{item}]"
    arguments = [_expression(writer, a, names) for a in node.args]
    arguments += [f"{k}={_expression(writer, v, names)}" for k, v in node.kwargs.items()]
    return f"{callee(writer, target)}({', '.join(arguments)})"


def callee(writer: Writer, target: Any) -> str:
    """The global name under which a graph's operation is called."""
    function: Callable[..., Any] = operations.builtin(target)
    label = operations.name(target).removesuffix(".default")
    return writer.bind(function, re.sub(r"\W+", "_", label), operations.path(target))


def _expression(writer: Writer, value: Any, names: Mapping[fx.Node, str]) -> str:
    match value:
        case fx.Node():
            return names[value]
        case tuple():
            items = [_expression(writer, v, names) for v in value]
            return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
        case list():
            return f"[{', '.join(_expression(writer, v, names) for v in value)}]"
        case dict():
            pairs = (f"{k!r}: {_expression(writer, v, names)}" for k, v in value.items())
            return f"{{{', '.join(pairs)}}}"
        case slice():
            parts = (value.start, value.stop, value.step)
            return f"slice({', '.join(_expression(writer, p, names) for p in parts)})"
        case torch.dtype() | torch.layout() | torch.memory_format():
            return writer.bind(value, str(value).removeprefix("torch."))
        case torch.device():
            return writer.bind(value, origins.identifier(f"device_{value}"))
        case _:
            return writer.literal(value, origins.identifier(type(value).__name__))


def _attribute(gm: fx.GraphModule, target: Any) -> object:
    value: object = gm
    for part in str(target).split("."):
        value = getattr(value, part)
    return value


def _tail(target: Any) -> str:
    return origins.identifier(str(target).rpartition(".")[2])


def placeholders(gm: fx.GraphModule) -> Iterator[fx.Node]:
    """The graph's inputs, in order."""
    yield from gm.graph.find_nodes(op="placeholder")
