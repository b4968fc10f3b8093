"""torch's own runtime layer around the straightest body: the other side of every comparison.

`layer` is torch's `aot_autograd` with a compiler that turns each graph into one Python function
calling the operations' builtins, so that what is left to compare is the layer around it. Input
mutations that torch can keep in the graph are kept there, as its own backends have it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import fx
from torch._dynamo.backends.common import aot_autograd

Compiled = Callable[..., Any]
Backend = Callable[[fx.GraphModule, Sequence[Any]], Compiled]


def body(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
    """The graph as one boxed function: a line an operation, each value freed after its last use."""
    scope: dict[str, Any] = {}
    inputs = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    lines = ["def body(args):"]
    if inputs:
        lines.append(f"    {', '.join(inputs)}, = args")
    lines.append("    args.clear()")
    last_use: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        for used in node.all_input_nodes:
            last_use[used] = node
    for node in gm.graph.nodes:
        dead = [used.name for used in node.all_input_nodes if last_use[used] is node]
        match node.op:
            case "placeholder":
                continue
            case "get_attr":
                scope[node.name] = getattr(gm, node.target)
            case "call_function":
                target = node.target
                function = f"f_{node.name}"
                is_operation = isinstance(target, torch._ops.OpOverload)
                scope[function] = target._op if is_operation else target
                arguments = [_text(a, scope) for a in node.args]
                arguments += [f"{k}={_text(v, scope)}" for k, v in node.kwargs.items()]
                lines.append(f"    {node.name} = {function}({', '.join(arguments)})")
                dead += [] if node in last_use else [node.name]
                if dead:
                    lines.append(f"    del {', '.join(dead)}")
            case "output":
                lines.append(f"    return {_text(tuple(node.args[0]), scope)}")
            case other:
                raise NotImplementedError(f"a {other} node in the graph of a benchmark case")
    exec(compile("\n".join(lines), "<stock body>", "exec"), scope)
    boxed: Compiled = scope["body"]
    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed


def _text(argument: Any, scope: dict[str, Any]) -> str:
    match argument:
        case fx.Node():
            return str(argument.name)
        case tuple():
            return "(" + "".join(f"{_text(a, scope)}, " for a in argument) + ")"
        case list():
            return "[" + ", ".join(_text(a, scope) for a in argument) + "]"
        case bool() | int() | str() | None:
            return repr(argument)
        case _:
            name = f"c_{len(scope)}"
            scope[name] = argument
            return name


def layer(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
    """What `aot_autograd` returns, less its `disable`, which Dynamo would replace by its own."""
    stock = aot_autograd(
        fw_compiler=body,
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    compiled = stock(gm, example_inputs)
    unwrapped: Compiled = compiled._torchdynamo_orig_callable  # type: ignore[attr-defined]
    return unwrapped


def ours(name: str) -> Backend:
    """The registered backend `name`, as a function of a graph and its inputs."""
    backend: Backend = torch._dynamo.lookup_backend(name)  # type: ignore[assignment]
    return backend


def capture(
    function: Callable[..., Any], inputs: Sequence[Any], backend: Backend
) -> tuple[Compiled, tuple[Any, ...]]:
    """The callable `backend` returns for `function`, and the arguments Dynamo passes to it."""
    held: list[Compiled] = []
    passed: list[tuple[Any, ...]] = []

    def recording(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        compiled = backend(gm, example_inputs)
        held.append(compiled)

        def call(*args: Any) -> Any:
            passed.append(args)
            return compiled(*args)

        return call

    torch._dynamo.reset()
    torch.compile(function, backend=recording, fullgraph=True, dynamic=False)(*inputs)
    (compiled,), (arguments,) = held, passed
    return compiled, arguments
