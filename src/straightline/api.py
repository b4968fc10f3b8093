"""The public entry points: the backend that torch.compile finds by name, and our own `compile`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch
from torch import fx

from straightline import config
from straightline.errors import OptionError

if TYPE_CHECKING:
    from straightline.kernels.record import CompiledKernel

F = TypeVar("F", bound=Callable[..., Any])
_PIECEWISE = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)


def backend(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, object] | None = None,
    mode: str | None = None,
    **unknown: object,
) -> Callable[..., Any]:
    """What `torch.compile(f, backend="straightline")` calls for each graph."""
    config.resolve_mode(mode)
    resolved = config.resolve({**unknown, **(options or {})})
    from straightline.torch_private import gate

    report = gate.check()
    if not report.ok:
        from straightline.fallback import fall_back

        return fall_back(gm, example_inputs, resolved, report.summary())
    if any(t.is_mkldnn for t in _tensors(gm, example_inputs)):
        from straightline.fallback import run_as_captured

        return run_as_captured(gm, resolved, "torch traces MKLDNN tensors as if they were dense")
    from straightline import pipeline
    from straightline.torch_private import dynamo

    if any(isinstance(value, list | tuple | dict) for value in example_inputs):
        return dynamo.flatten_inputs(
            gm, example_inputs, functools.partial(pipeline.compile_graph, config=resolved)
        )
    return pipeline.compile_graph(gm, example_inputs, resolved)


def _tensors(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Iterator[torch.Tensor]:
    """What a graph is given, and what it holds itself."""
    yield from (value for value in example_inputs if isinstance(value, torch.Tensor))
    yield from gm.parameters()
    yield from gm.buffers()


@overload
def compile(target: F, /, **keywords: Any) -> F: ...
@overload
def compile(target: None = None, /, **keywords: Any) -> Callable[[F], F]: ...


def compile(
    target: Any = None,
    /,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    **values: object,
) -> Any:
    """Compile a function or a module; works as a decorator with and without arguments.

    A function comes back as a callable with its name and signature. A module comes back as an
    object of its own class's kind that shares everything with the original: parameters, buffers,
    hooks, training mode. Its `forward` is compiled as well, and runs no hooks. Both carry `source`,
    `graphs`, `kernels` and `num_kernels`. Other keywords are straightline's options.
    """
    config.resolve(values)
    if target is None:
        return functools.partial(compile, fullgraph=fullgraph, dynamic=dynamic, **values)
    if isinstance(target, staticmethod | classmethod):
        made = compile(target.__func__, fullgraph=fullgraph, dynamic=dynamic, **values)
        return type(target)(made)
    _check_target(target)
    from straightline import compiled

    def compile_with_torch(function: Callable[..., Any]) -> Callable[..., Any]:
        # torch's annotation knows the types of Inductor's options.
        options: dict[str, Any] = dict(values)
        return torch.compile(
            function,
            backend="straightline",
            fullgraph=fullgraph,
            dynamic=dynamic,
            options=options,
        )

    if isinstance(target, torch.nn.Module):
        return compiled.module(target, compile_with_torch)
    return compiled.CompiledFunction(target, compile_with_torch)


def _check_target(target: object) -> None:
    """Raise an OptionError for what cannot be compiled."""
    if isinstance(target, type):
        raise OptionError(
            f"straightline.compile takes a function or a module, not the class {target!r}",
            todo="compile its objects, or decorate its methods",
        )
    if isinstance(target, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        raise OptionError(
            f"straightline.compile takes Python, not what torch.jit made of it: {target!r}",
            todo="compile what was given to torch.jit.script or torch.jit.trace",
        )
    if any(test(target) for test in _PIECEWISE):
        raise OptionError(
            f"straightline.compile takes no generator and no async function, as {target!r} is: "
            "it runs in pieces, which Dynamo does not compile",
            todo="compile the functions that it calls",
        )
    if not callable(target):
        raise OptionError(
            f"straightline.compile takes a function or a module, not {target!r} of type "
            f"{type(target).__qualname__}",
            todo="pass something that can be called, or use it as a decorator",
        )


def source(target: object) -> str:
    """The text of every function generated so far for something compiled through straightline.

    Each is preceded by the guards under which Dynamo calls it. Works for what
    `straightline.compile` returns and for what `torch.compile(..., backend="straightline")` does.
    """
    from straightline import compiled

    return compiled.source(target)


def kernels_of(target: object) -> tuple[CompiledKernel, ...]:
    """The kernels that were compiled so far for something compiled through straightline.

    Takes what `source` takes.
    """
    from straightline import compiled

    return compiled.kernels(target)


def explain(target: object) -> str:
    """What runs for something compiled through straightline: its kernels, the lines of the model
    that each does, and the operations that run as ATen, each with its reason.

    Takes what `source` takes.
    """
    from straightline import compiled

    return compiled.explain(target)
