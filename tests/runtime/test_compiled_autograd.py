"""Compiled autograd over our backward, boxed gradients with it, and BackwardState."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scenario import BACKEND, Compile, same
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor


@contextlib.contextmanager
def enabled(backend: str = BACKEND, **kwargs: Any) -> Iterator[None]:
    """Compiled autograd for the backward passes within; its graphs go through `backend`."""

    def compile_graph(graph: torch.fx.GraphModule) -> Any:
        return torch.compile(graph, backend=backend, fullgraph=True, **kwargs)

    with torch._dynamo.compiled_autograd._enable(compile_graph):
        yield


def captures() -> int:
    return int(torch._dynamo.utils.counters["compiled_autograd"]["captures"])


Backward = Callable[[torch.Tensor], None]
backends = pytest.mark.parametrize("backend", ["eager", BACKEND])


def differentiating(compile: Compile, backend: str, **kwargs: Any) -> Backward:
    """`loss.backward()`, under compiled autograd unless this is the eager run."""

    def backward(loss: torch.Tensor) -> None:
        if compile.__name__ == "_eager":
            loss.backward()
            return
        with enabled(backend, **kwargs):
            loss.backward()

    return backward


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


@backends
def test_training_steps(backend: str) -> None:
    def scenario(compile: Compile) -> Any:
        module = net()
        call, backward = compile(module), differentiating(compile, backend)
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
        losses = []
        for _ in range(3):
            loss = call(torch.randn(3, 4)).pow(2).mean()
            backward(loss)
            optimiser.step()
            optimiser.zero_grad()
            losses.append(loss.detach())
        return losses, [p.detach() for p in module.parameters()]

    torch._dynamo.utils.counters.clear()
    same(scenario)
    assert captures() == 1


@pytest.mark.parametrize("dynamic", [None, True], ids=["automatic", "dynamic"])
def test_changing_sizes(dynamic: bool | None) -> None:
    def scenario(compile: Compile) -> Any:
        module = net()
        call = compile(module, dynamic=dynamic)
        backward = differentiating(compile, BACKEND, dynamic=dynamic)
        told = []
        for n in (3, 5, 7, 3):
            x = torch.randn(n, 4, requires_grad=True)
            backward(call(x).sin().sum())
            told.append(x.grad)
        return told, [p.grad for p in module.parameters()]

    same(scenario)


def test_by_the_configuration() -> None:
    """The whole step compiled, with `torch._dynamo.config.compiled_autograd` on."""

    def scenario(compile: Compile) -> Any:
        module = net()

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = module(x).pow(2).mean()
            loss.backward()
            return loss.detach()

        call = compile(step, fullgraph=False)
        losses = [call(torch.randn(n, 4)) for n in (3, 3, 5)]
        return losses, [p.grad for p in module.parameters()]

    with torch._dynamo.config.patch(compiled_autograd=True):
        same(scenario)


@backends
def test_missing_tangents(backend: str) -> None:
    def scenario(compile: Compile) -> Any:
        f = compile(lambda x, y: ((x * y).sin(), x.exp(), y + 1))
        backward = differentiating(compile, backend)
        x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        outs = f(x, y)
        backward(outs[1].sum() + outs[0].sum())
        first = x.grad, y.grad
        x.grad = y.grad = None
        backward(f(x, y)[1].sum())
        return first, x.grad

    same(scenario)


@backends
def test_two_compiled_functions(backend: str) -> None:
    def scenario(compile: Compile) -> Any:
        f, g = compile(lambda x: x.sin() * x), compile(lambda h: h.exp())
        x = torch.randn(4, requires_grad=True)
        differentiating(compile, backend)(g(f(x) * 2).sum())
        return x.grad

    same(scenario)


@backends
def test_hooks_on_leaves_and_results(backend: str) -> None:
    def grow(p: torch.Tensor) -> None:
        assert p.grad is not None
        p.grad.mul_(10)

    def scenario(compile: Compile) -> Any:
        x = torch.randn(3, requires_grad=True)
        x.register_hook(lambda g: g * 2)
        out = compile(lambda x: x.sin())(x)
        out.register_hook(lambda g: g + 1)
        x.register_post_accumulate_grad_hook(grow)
        differentiating(compile, backend)(out.sum())
        return x.grad

    same(scenario)


@backends
def test_subclasses(backend: str) -> None:
    def scenario(compile: Compile) -> Any:
        x = TwoTensor(torch.randn(3), torch.randn(3)).requires_grad_()
        out = compile(lambda x: x.sin() * 2)(x)
        differentiating(compile, backend)(out.sum())
        return x.grad

    same(scenario)


@backends
def test_custom_op(backend: str) -> None:
    """A backward that calls a custom op, below compiled autograd."""

    @torch.library.custom_op("straightline_tests::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    doubled.register_fake(torch.empty_like)
    doubled.register_autograd(lambda ctx, g: doubled(g))

    def scenario(compile: Compile) -> Any:
        x = torch.randn(3, requires_grad=True)
        out = compile(lambda x: doubled(x.sin()))(x)
        differentiating(compile, backend)(out.sum())
        return x.grad

    same(scenario)


@backends
def test_custom_function(backend: str) -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return g * ctx.saved_tensors[0]

    def scenario(compile: Compile) -> Any:
        x = torch.randn(3, requires_grad=True)
        out = compile(lambda x: Scaled.apply(x) + 1)(x)
        differentiating(compile, backend)(out.sum())
        return x.grad

    same(scenario)


@backends
def test_mutated_input(backend: str) -> None:
    def scenario(compile: Compile) -> Any:
        def f(h: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
            h.mul_(2)
            state.add_(1)
            return h.sin()

        x, state = torch.randn(3, requires_grad=True), torch.zeros(3)
        h = x * 1
        out = compile(f)(h, state)
        differentiating(compile, backend)((out + h).sum())
        return x.grad, state

    same(scenario)


def test_dropout() -> None:
    """The forward's mask, also when its backward is part of another graph."""
    f = torch.compile(lambda x: F.dropout(x * 2, 0.5, True), backend=BACKEND, fullgraph=True)
    for _ in range(2):
        x = torch.ones(64, requires_grad=True)
        out = f(x)
        with enabled():
            out.sum().backward()
        torch.testing.assert_close(x.grad, out.detach())


def test_batch_norm_and_convolution() -> None:
    def scenario(compile: Compile) -> Any:
        module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU())
        call = compile(module)
        x = torch.randn(2, 2, 5, 5, requires_grad=True)
        differentiating(compile, BACKEND)(call(x).pow(2).sum())
        return x.grad, [p.grad for p in module.parameters()], list(module.buffers())

    same(scenario, rtol=1e-4, atol=1e-4)


def test_ordinary_backward_before_and_after() -> None:
    """One program: plain backward, under compiled autograd, plain again."""

    def scenario(compile: Compile) -> Any:
        f = compile(lambda x: x.sin().exp())
        backward = differentiating(compile, BACKEND)
        told = []
        for how in (torch.Tensor.backward, backward, torch.Tensor.backward, backward):
            x = torch.randn(3, requires_grad=True)
            how(f(x).sum())
            told.append(x.grad)
        return told

    same(scenario)


def test_memory_of_tangents() -> None:
    """Gradients come boxed outside of compiled autograd, and unboxed within; both are right."""
    f = torch.compile(lambda x, y: (x * y, x + y), backend=BACKEND, fullgraph=True)
    x, y = torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
    a, b = f(x, y)
    torch.autograd.backward([a, b], [torch.ones(3), torch.full((3,), 5.0)])
    plain = (x.grad, y.grad)
    x.grad = y.grad = None
    a, b = f(x, y)
    with enabled():
        torch.autograd.backward([a, b], [torch.ones(3), torch.full((3,), 5.0)])
    torch.testing.assert_close((x.grad, y.grad), plain)


# BackwardState: hooks on intermediates, whose body waits until backward


class Multiply(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.seen = 0

    def forward(self, g: torch.Tensor) -> torch.Tensor:
        return g * self.factor


@backends
def test_hook_inside_of_the_graph_that_is_a_module(backend: str) -> None:
    hook = Multiply(3.0)

    def scenario(compile: Compile) -> Any:
        def f(x: torch.Tensor) -> torch.Tensor:
            h = x.sin()
            h.register_hook(hook)
            return h * 2

        call, backward = compile(f), differentiating(compile, backend)
        told = []
        for _ in range(2):
            x = torch.randn(3, requires_grad=True)
            if compile.__name__ == "_eager":
                backward(call(x).sum())
            else:
                with enabled(backend):
                    call(x).sum().backward()
            told.append(x.grad)
        return told

    same(scenario)


@backends
def test_hook_inside_of_the_graph_that_is_a_closure(backend: str) -> None:
    def scenario(compile: Compile) -> Any:
        def f(x: torch.Tensor, factor: int) -> torch.Tensor:
            h = x.sin()
            h.register_hook(lambda g: g * factor)
            return h * 2

        call = compile(f)
        told = []
        for factor in (2, 5):
            x = torch.randn(3, requires_grad=True)
            with contextlib.nullcontext() if compile.__name__ == "_eager" else enabled(backend):
                call(x, factor).sum().backward()
            told.append(x.grad)
        return told

    same(scenario)


def test_hook_inside_without_compiled_autograd() -> None:
    """Its body is traced into the backward."""

    def scenario(compile: Compile) -> Any:
        def f(x: torch.Tensor) -> torch.Tensor:
            h = x.sin()
            h.register_hook(lambda g: g * 3)
            return h * 2

        x = torch.randn(3, requires_grad=True)
        compile(f)(x).sum().backward()
        return x.grad

    same(scenario)


def test_backward_state_needs_compiled_autograd() -> None:
    """Traced under compiled autograd and differentiated without it: an error that says so."""

    def f(x: torch.Tensor) -> torch.Tensor:
        h = x.sin()
        h.register_hook(Multiply(2.0))
        return h * 2

    call = torch.compile(f, backend=BACKEND, fullgraph=True)
    x = torch.randn(3, requires_grad=True)
    with enabled("eager"):
        out = call(x)
    with pytest.raises((RuntimeError, AssertionError), match=r"CompiledAutograd|ompiled autograd"):
        out.sum().backward()
