"""A plain runtime over torch's stages that routes second and higher derivatives.

It shows that the mechanism is sound, without the generated functions: `compiled(f)` runs `f`
through Dynamo, splits it, and differentiates gradients with `straightline.capture.second_order`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from straightline.capture.second_order import (
    Kept,
    Origin,
    SecondOrder,
    kept_by,
    outputs_of,
    second_order,
)
from straightline.torch_private import stages
from straightline.torch_private.edges import edge
from straightline.torch_private.edges import unpack as edge_tensor


@dataclass
class Level:
    """One order of one program: what its backward needs to be differentiated again."""

    origin: Origin
    kept: Kept
    backward: fx.GraphModule | None
    inputs: int
    next: Level | None = None
    program: SecondOrder | None = None
    traces: list[int] = field(default_factory=list)

    def above(self) -> Level:
        if self.next is None:
            found = second_order(self.origin, self.kept)
            self.traces.append(found.order)
            self.next = Level(
                self.origin,
                found.kept,
                found.backward,
                found.inputs + found.tangents,
                program=found,
                traces=self.traces,
            )
        return self.next


def _keep(ctx: Any, level: Level, inputs: Sequence[Any], saved: Sequence[Any]) -> None:
    ctx.level = level
    ctx.is_tensor = [isinstance(v, torch.Tensor) for v in saved]
    ctx.others = [v for v in saved if not isinstance(v, torch.Tensor)]
    ctx.edges = [
        edge(x) if isinstance(x, torch.Tensor) and x.requires_grad else None for x in inputs
    ]
    ctx.tensors = [isinstance(x, torch.Tensor) for x in inputs]
    ctx.save_for_backward(*(v for v in saved if isinstance(v, torch.Tensor)))


def _backward(ctx: Any, skipped: int, cotangents: Sequence[Any]) -> list[Any]:
    """Gradients of the inputs, differentiable ones under grad mode."""
    level: Level = ctx.level
    tensors, others = iter(ctx.saved_tensors), iter(ctx.others)
    saved = [next(tensors) if t else next(others) for t in ctx.is_tensor]
    if not torch.is_grad_enabled():
        assert level.backward is not None
        numbers = [v for v in saved if not isinstance(v, torch.Tensor)]
        found = level.backward(
            *numbers, *(v for v in saved if isinstance(v, torch.Tensor)), *cotangents
        )
        return [g if e is not None else None for g, e in zip(found, ctx.edges, strict=True)]
    above = level.above()
    leaves = _leaves(ctx, skipped)
    carriers = [
        leaf if leaf is not None else (None if e is None else edge_tensor(e))
        for leaf, e in zip(leaves, ctx.edges, strict=True)
    ]
    found = iter(Higher.apply(above, saved, leaves, *carriers, *cotangents))
    assert above.program is not None
    gradients = [next(found) if has else None for has in above.program.gradients]
    return [g if e is not None else None for g, e in zip(gradients, ctx.edges, strict=True)]


def _leaves(ctx: Any, skipped: int) -> list[torch.Tensor | None]:
    """The inputs that are live leaves."""
    nodes = iter(ctx.next_functions[skipped:])
    return [getattr(next(nodes)[0], "variable", None) if tensor else None for tensor in ctx.tensors]


class Higher(torch.autograd.Function):
    """Computes the gradients of the level below, differentiably."""

    @staticmethod
    def forward(ctx: Any, level: Level, saved: Any, leaves: Any, *args: Any) -> Any:
        program = level.program
        assert program is not None
        values = []
        for place in program.places:
            match place.kind:
                case "saved":
                    value = saved[place.index]
                case "tangent":
                    value = args[program.inputs + place.index]
                case "input":
                    value = leaves[place.index]
                    if value is None:
                        raise program.missing(place.index)
            values.append(value.detach() if isinstance(value, torch.Tensor) else value)
        out = program.forward(*values)
        results = len(program.differentiable)
        _keep(ctx, level, args, out[results:])
        ctx.mark_non_differentiable(
            *(v for v, d in zip(out[:results], program.differentiable, strict=True) if not d)
        )
        return tuple(out[:results])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        program = ctx.level.program
        used = [g for g, d in zip(grads, program.differentiable, strict=True) if d]
        return None, None, None, *_backward(ctx, 0, used)


class First(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, level: Level, graph: Any, results: int, *args: Any) -> Any:
        out = graph(*args)
        _keep(ctx, level, args, out[results:])
        return tuple(out[:results])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, None, None, *_backward(ctx, 0, grads)


LEVELS: list[Level] = []


def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    with stages.trace(gm, example_inputs) as traced:
        origin = Origin(gm, tuple(traced.original_inputs))
        results = traced.inner_meta.num_forward
        meta = traced.inner_meta
        forward, backward = traced.forward, traced.backward
        if backward is None:
            return lambda *args: forward(*args)
        level = Level(origin, kept_by(forward.graph, results), backward, len(example_inputs))
        mutated = list(meta.mutated_inp_runtime_indices)
        LEVELS.append(level)

    def run(*args: Any) -> list[Any]:
        out = First.apply(level, forward, results, *args)
        for position, index in enumerate(mutated):
            args[index].copy_(out[position])
        return list(out[len(mutated) :])

    return run


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    LEVELS.clear()
    return torch.compile(function, backend=backend, **options)


def kept_values(graph: fx.Graph, results: int) -> list[str]:
    return [str(v) for v in outputs_of(graph)[results:]]
