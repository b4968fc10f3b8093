"""Second and higher derivatives through compiled functions, against eager.

torch's own backends refuse all of it, so most of these fail on them.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import operator
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from scenario import BACKEND, Compile, compiled, same
from torch import nn
from torch.autograd import Function, grad
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

in_shapes = pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def summed(terms: Iterable[torch.Tensor]) -> torch.Tensor:
    """Their sum, which has one term at least."""
    return functools.reduce(operator.add, terms)


def values(tensors: Any) -> list[torch.Tensor | None]:
    """Gradients as values: their strides are nobody's promise."""
    tensors = [tensors] if isinstance(tensors, torch.Tensor) else tensors
    return [
        None if t is None else torch.empty(t.shape, dtype=t.dtype).copy_(t.detach())
        for t in tensors
    ]


def derivatives(
    out: torch.Tensor, inputs: list[torch.Tensor], order: int = 2
) -> list[list[torch.Tensor | None]]:
    """The gradient of a sum of squares of the gradient of ..., `order` times."""
    told = []
    value = out.sin().sum()
    for step in range(order):
        last = step == order - 1
        grads = grad(value, inputs, create_graph=not last, allow_unused=True)
        told.append(values(grads))
        value = sum((g.pow(2).sum() for g in grads if g is not None), torch.zeros(()))
    return told


# One table of functions, each differentiated twice and thrice


def straight_through(x: torch.Tensor) -> torch.Tensor:
    return x + (x.round() - x).detach()


def quiet_scale(x: torch.Tensor) -> torch.Tensor:
    """The scale is made under no-grad: its derivative does not count."""
    with torch.no_grad():
        scale = x.abs().max() + 1
    return x.pow(3) / scale


def quiet_middle(x: torch.Tensor) -> torch.Tensor:
    h = x.sin()
    with torch.no_grad():
        mask = (h > 0) * h.exp()
    return h * mask * x


def in_place_inside(x: torch.Tensor) -> torch.Tensor:
    h = x * 2
    h.sin_()
    out = h.clone()
    out[0] = h[1] * h[2]
    return out.mul_(x)


def branches(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x.pow(3), x.exp())


FUNCTIONS: dict[str, tuple[Callable[..., torch.Tensor], list[tuple[int, ...]]]] = {
    "cubic": (lambda x: x.pow(3), [(4,)]),
    "product": (lambda x, y: x * y * x, [(4,), (4,)]),
    "exp": (lambda x: x.exp(), [(4,)]),
    "sigmoid and tanh": (lambda x: x.sigmoid() * x.tanh(), [(4,)]),
    "relu": (lambda x: x.relu().pow(3), [(4,)]),
    "gelu": (lambda x: F.gelu(x), [(4,)]),
    "silu, softplus, elu": (lambda x: F.silu(x) + F.softplus(x) + F.elu(x), [(4,)]),
    "sqrt and division": (lambda x, y: (x * x + 1).sqrt() / (y * y + 2), [(4,), (4,)]),
    "norm": (lambda x: x.norm(dim=-1), [(3, 4)]),
    "matmul": (lambda x, w: (x @ w).tanh() @ w.t(), [(3, 4), (4, 2)]),
    "linear": (lambda x, w, b: F.linear(x, w, b).sigmoid(), [(3, 4), (2, 4), (2,)]),
    "batched": (lambda a, b: torch.bmm(a, b).tanh(), [(2, 3, 4), (2, 4, 3)]),
    "einsum": (lambda a, b: torch.einsum("ij,kj->ik", a, b).sin(), [(3, 4), (2, 4)]),
    "conv": (lambda x, w: F.conv2d(x, w, padding=1).tanh(), [(2, 3, 5, 5), (2, 3, 3, 3)]),
    "pool": (lambda x: F.avg_pool2d(x.sin(), 2) * F.max_pool2d(x, 2), [(1, 2, 4, 4)]),
    "softmax": (lambda x: x.softmax(-1) * x, [(3, 4)]),
    "log_softmax": (lambda x: x.log_softmax(-1) * x, [(3, 4)]),
    "logsumexp": (lambda x: x.logsumexp(-1), [(3, 4)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), [(3, 4), (4,), (4,)]),
    "group_norm": (lambda x: F.group_norm(x, 2), [(2, 4, 3)]),
    "cross entropy": (lambda x: F.cross_entropy(x, torch.tensor([0, 2, 1])), [(3, 4)]),
    "indexing": (lambda x: x[1:].pow(3) * x[:-1] + x[[0, 0, 2]], [(4,)]),
    "gather and cat": (lambda x, y: torch.cat([x, y * x]).pow(2)[[0, 3, 3]], [(3,), (3,)]),
    "views": (lambda x: (x.t().reshape(-1).view(2, 6) * 3).exp().sum(0), [(3, 4)]),
    "expanded": (lambda x: x.expand(3, 4) * x.exp(), [(1, 4)]),
    "cumsum, sort": (lambda x: x.cumsum(0).sin() * x.sort()[0], [(5,)]),
    "minimum, clamp": (lambda x, y: torch.minimum(x, y) * x.clamp(-1, 1), [(5,), (5,)]),
    "var and std": (lambda x: x.var(-1) * x.std(), [(3, 4)]),
    "prod": (lambda x: x.prod(), [(4,)]),
    "inverse and det": (lambda x: (x @ x.t() + torch.eye(3)).inverse().det(), [(3, 3)]),
    "attention": (
        lambda q, k, v: (q @ k.t()).softmax(-1) @ v,
        [(3, 4), (3, 4), (3, 4)],
    ),
    "straight through": (straight_through, [(5,)]),
    "no-grad scale": (quiet_scale, [(5,)]),
    "no-grad middle": (quiet_middle, [(5,)]),
    "in place inside": (in_place_inside, [(4,)]),
    "where": (branches, [(6,)]),
    "detached product": (lambda x: x.detach() * x.pow(3), [(4,)]),
    "constant": (lambda x: x * torch.arange(4.0) + x.pow(2), [(4,)]),
    "linear in x": (lambda x: x * 3 + 1, [(4,)]),
    "float64": (lambda x: x.double().pow(3).float(), [(4,)]),
    "abs and sign": (lambda x: x.abs().pow(3) * x.sign(), [(4,)]),
}


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_second_derivative(name: str) -> None:
    fn, shapes = FUNCTIONS[name]

    def scenario(compile: Compile) -> Any:
        f = compile(fn)
        told = []
        for _ in range(2):
            inputs = [leaf(*shape) for shape in shapes]
            told.append(derivatives(f(*inputs), inputs))
        return told

    same(scenario, **CLOSE)


@pytest.mark.parametrize(
    "name",
    [
        "cubic",
        "product",
        "exp",
        "sigmoid and tanh",
        "matmul",
        "linear",
        "softmax",
        "layer_norm",
        "no-grad scale",
        "views",
    ],
)
def test_third_derivative(name: str) -> None:
    fn, shapes = FUNCTIONS[name]

    def scenario(compile: Compile) -> Any:
        f = compile(fn)
        inputs = [leaf(*shape) for shape in shapes]
        return derivatives(f(*inputs), inputs, order=3)

    same(scenario, rtol=1e-3, atol=1e-4)


def test_fourth_derivative() -> None:
    def scenario(compile: Compile) -> Any:
        x = leaf(3)
        value = compile(lambda x: x.exp() * x.sin())(x).sum()
        told = []
        for _ in range(4):
            (first,) = grad(value, x, create_graph=True)
            told += values(first)
            value = first.sum()
        return told

    same(scenario, **CLOSE)


@in_shapes
@pytest.mark.parametrize("name", ["product", "matmul", "softmax", "no-grad middle"])
def test_shapes(name: str, dynamic: bool) -> None:
    fn, shapes = FUNCTIONS[name]

    def scenario(compile: Compile) -> Any:
        f = compile(fn, dynamic=dynamic)
        told = []
        for extra in (0, 3, 5):
            sizes = [tuple(n + extra for n in shape) for shape in shapes]
            inputs = [leaf(*size) for size in sizes]
            told.append(derivatives(f(*inputs), inputs))
        return told

    same(scenario, **CLOSE)


# How it is asked for


def test_grad_of_grad_has_a_history_of_its_own() -> None:
    def scenario(compile: Compile) -> Any:
        x = leaf(3)
        (first,) = grad(compile(lambda x: x.pow(3))(x).sum(), x, create_graph=True)
        return first.requires_grad, first.grad_fn is not None, first.detach()

    same(scenario)


def test_backward_with_create_graph() -> None:
    def scenario(compile: Compile) -> Any:
        x = leaf(3)
        compile(lambda x: x.pow(3))(x).sum().backward(create_graph=True)
        first = x.grad
        assert first is not None
        x.grad = None
        first.pow(2).sum().backward()
        return first.detach(), x.grad

    same(scenario)


def test_create_graph_and_first_order_mixed() -> None:
    """The same program: first order, second order, first order again."""

    def scenario(compile: Compile) -> Any:
        f = compile(lambda x, w: (x @ w).tanh().sum())
        told: list[Any] = []
        for create in (False, True, False, True):
            x, w = leaf(3, 4), leaf(4, 2)
            grads = grad(f(x, w), (x, w), create_graph=create)
            told += [g.requires_grad for g in grads] + values(grads)
            if create:
                told += values(grad(summed(g.pow(2).sum() for g in grads), (x, w)))
        return told

    same(scenario, **CLOSE)


def test_first_order_beside_second_order_on_one_graph() -> None:
    def scenario(compile: Compile) -> Any:
        x = leaf(3)
        loss = compile(lambda x: (x.pow(3) * x.exp()).sum())(x)
        (plain,) = grad(loss, x, retain_graph=True)
        (first,) = grad(loss, x, create_graph=True)
        (second,) = grad(first.sum(), x, retain_graph=True)
        (again,) = grad(first.sum(), x)
        return plain, first.detach(), second, again

    same(scenario, **CLOSE)


def test_derivative_by_the_tangent() -> None:
    """The gradient is linear in the tangent, so its derivative by the tangent is the Jacobian."""

    def scenario(compile: Compile) -> Any:
        x, v = leaf(4), leaf(4)
        (product,) = grad(compile(lambda x: x.exp() * x)(x), x, v, create_graph=True)
        return values([product]), values(grad(product.sin().sum(), (x, v)))

    same(scenario, **CLOSE)


def test_partial_second_derivatives() -> None:
    def scenario(compile: Compile) -> Any:
        x, y = leaf(3), leaf(3)
        out = compile(lambda x, y: (x * y).exp())(x, y)
        (by_x,) = grad(out.sum(), x, create_graph=True)
        return values(grad(by_x.sum(), y, retain_graph=True) + grad(by_x.pow(2).sum(), x))

    same(scenario, **CLOSE)


def test_several_outputs() -> None:
    def scenario(compile: Compile) -> Any:
        def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (x * y).sin(), x.exp(), y.detach() * x, (x > 0)

        told = []
        for which in ((0,), (1,), (0, 1), (0, 1, 2)):
            x, y = leaf(3), leaf(3)
            outs = compile(f)(x, y)
            value = summed(outs[i].pow(2).sum() for i in which)
            grads = grad(value, (x, y), create_graph=True, allow_unused=True)
            seen = [g for g in grads if g is not None and g.requires_grad]
            total = summed(g.pow(2).sum() for g in seen)
            second = grad(total, (x, y), allow_unused=True)
            zeros = [torch.zeros(3) if g is None else g for g in (*grads, *second)]
            told.append(values(zeros))
        return told

    same(scenario, **CLOSE)


def test_views_of_inputs_and_intermediates_as_outputs() -> None:
    def scenario(compile: Compile) -> Any:
        def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            h = x.pow(3)
            return x.t(), h.view(-1), h, h.chunk(2)[0]

        x = leaf(2, 3)
        across, flat, h, chunk = compile(f)(x)
        value = (across.exp().sum() + flat.sin().sum()) * h.sum() * chunk.sum()
        (first,) = grad(value, x, create_graph=True)
        return values([first]), values(grad(first.pow(2).sum(), x))

    same(scenario, **CLOSE)


# In the middle of an eager graph


def test_views_of_one_argument_written_to_in_the_open_and_unseen() -> None:
    """torch counts a gradient for each of them, and merges them into one base."""

    def scenario(compile: Compile) -> Any:
        @compile
        def step(whole: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
            whole[:, 0] = 0.5
            column.detach().add_(1.0)
            whole[1:].mul_(0.5)
            return whole

        x = leaf(4, 3)
        base = x.sin()
        out = step(base.unsqueeze(0), base[:, 0])
        return values(out), derivatives(out, [x])

    same(scenario)


def test_between_eager_ops() -> None:
    def scenario(compile: Compile) -> Any:
        w, x = leaf(4), leaf(4)
        middle = compile(lambda h, x: h.tanh() * x.exp())
        out = middle((w * x).sin(), x.pow(2)).pow(2).sum()
        first = grad(out, (w, x), create_graph=True)
        return values(first), values(grad(summed(g.pow(2).sum() for g in first), (w, x)))

    same(scenario, **CLOSE)


def test_two_compiled_functions_in_a_chain() -> None:
    def scenario(compile: Compile) -> Any:
        f, g = compile(lambda x: x.pow(3).sin()), compile(lambda h, w: (h * w).exp())
        x, w = leaf(4), leaf(4)
        first = grad(g(f(x) * 2, w).sum(), (x, w), create_graph=True)
        return values(first), values(grad(summed(t.pow(2).sum() for t in first), (x, w)))

    same(scenario, **CLOSE)


def test_one_compiled_function_applied_twice() -> None:
    def scenario(compile: Compile) -> Any:
        f = compile(lambda x, w: (x @ w).tanh())
        x, w = leaf(3, 4), leaf(4, 4)
        first = grad(f(f(x, w), w).sum(), (x, w), create_graph=True)
        return values(first), values(grad(summed(t.pow(2).sum() for t in first), (x, w)))

    same(scenario, **CLOSE)


def test_first_derivative_taken_inside_of_a_compiled_step() -> None:
    """The second function is compiled over the first one's gradient."""

    def scenario(compile: Compile) -> Any:
        x = leaf(4)
        (first,) = grad(compile(lambda x: x.exp() * x)(x).sum(), x, create_graph=True)
        penalty = compile(lambda g: g.norm() ** 2 + g.sum())(first)
        return values(grad(penalty, x))

    same(scenario, **CLOSE)


def test_graph_breaks() -> None:
    def scenario(compile: Compile) -> Any:
        def f(x: torch.Tensor) -> torch.Tensor:
            h = x.sin()
            torch._dynamo.graph_break()
            return h.pow(3) * x

        x = leaf(4)
        return derivatives(compile(f, fullgraph=False)(x), [x])

    same(scenario, **CLOSE)


# What people do with it


class Critic(nn.Module):
    def __init__(self, act: Callable[[torch.Tensor], torch.Tensor] = F.leaky_relu) -> None:
        super().__init__()
        self.first = nn.Linear(5, 16)
        self.second = nn.Linear(16, 16)
        self.last = nn.Linear(16, 1)
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.act(self.second(self.act(self.first(x)))))


@pytest.mark.parametrize("act", [F.leaky_relu, torch.tanh, F.softplus], ids=lambda a: a.__name__)
@in_shapes
def test_gradient_penalty(act: Any, dynamic: bool) -> None:
    """WGAN-GP: the critic's gradient at interpolated samples is held to norm one."""

    def scenario(compile: Compile) -> Any:
        critic = Critic(act)
        call = compile(critic, dynamic=dynamic)
        optimiser = torch.optim.SGD(critic.parameters(), lr=0.05)
        losses = []
        for n in (4, 4, 6):
            real, fake, mix = torch.randn(n, 5), torch.randn(n, 5), torch.rand(n, 1)
            between = (mix * real + (1 - mix) * fake).requires_grad_()
            (slope,) = grad(call(between).sum(), between, create_graph=True)
            penalty = (slope.norm(dim=1) - 1).pow(2).mean()
            loss = call(fake).mean() - call(real).mean() + 10 * penalty
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            losses.append(loss.detach())
        return losses, [p.detach() for p in critic.parameters()]

    same(scenario, rtol=1e-3, atol=1e-4)


def test_gradient_penalty_in_convolutions_with_batch_norm() -> None:
    def scenario(compile: Compile) -> Any:
        critic = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.Softplus(),
            nn.Conv2d(4, 2, 3, stride=2),
            nn.Flatten(),
            nn.Linear(8, 1),
        )
        call = compile(critic)
        x = leaf(3, 3, 6, 6)
        (slope,) = grad(call(x).sum(), x, create_graph=True)
        slope.flatten(1).norm(dim=1).pow(2).mean().backward()
        # What no second derivative depends on has no gradient in eager and may have a zero one in
        # ours.
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in critic.parameters()]
        return gradients, x.grad, list(critic.buffers())

    same(scenario, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
def test_batch_norm(train: bool) -> None:
    """Its buffers are mutated by the forward, and only by it."""

    def scenario(compile: Compile) -> Any:
        norm = nn.BatchNorm1d(4).train(train)
        call = compile(norm)
        x = leaf(6, 4)
        told = derivatives(call(x).exp(), [x, norm.weight, norm.bias])
        return told, list(norm.buffers())

    same(scenario, rtol=1e-3, atol=1e-4)


def test_hessian_vector_product() -> None:
    def scenario(compile: Compile) -> Any:
        net = Critic(torch.tanh)
        call = compile(net)
        params = list(net.parameters())
        x = torch.randn(6, 5)
        loss = call(x).pow(2).mean()
        grads = grad(loss, params, create_graph=True)
        vectors = [torch.randn_like(p) for p in params]
        told = []
        for _ in range(3):
            product = summed((g * v).sum() for g, v in zip(grads, vectors, strict=True))
            vectors = list(grad(product, params, retain_graph=True))
            told += values(vectors)
        return told

    same(scenario, **CLOSE)


def test_hessian_by_rows() -> None:
    def scenario(compile: Compile) -> Any:
        x = leaf(4)
        out = compile(lambda x: (x.outer(x).tanh()).sum())(x)
        (first,) = grad(out, x, create_graph=True)
        return torch.stack([grad(first[i], x, retain_graph=True)[0] for i in range(4)])

    same(scenario, **CLOSE)


def test_autograd_functional_hessian() -> None:
    def scenario(compile: Compile) -> Any:
        f = compile(lambda x: (x.pow(3) * x.sum()).sum())
        return torch.autograd.functional.hessian(f, torch.randn(4))

    same(scenario, **CLOSE)


@pytest.mark.parametrize("steps", [1, 3])
def test_maml_with_fast_weights(steps: int) -> None:
    """The inner weights are no leaves, and die as soon as the next ones exist."""

    def scenario(compile: Compile) -> Any:
        net = Critic(torch.tanh)

        def forward(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
            return functional_call(net, weights, (x,))  # type: ignore[no-any-return]

        call = compile(forward)
        told: list[torch.Tensor | None] = []
        for _ in range(2):
            x, y = torch.randn(8, 5), torch.randn(8, 1)
            fast: dict[str, torch.Tensor] = dict(net.named_parameters())
            for _ in range(steps):
                loss = F.mse_loss(call(fast, x), y)
                grads = grad(loss, list(fast.values()), create_graph=True)
                fast = {
                    name: weight - 0.1 * g
                    for (name, weight), g in zip(fast.items(), grads, strict=True)
                }
            outer = F.mse_loss(call(fast, x + 1), y)
            told.append(outer.detach())
            told += values(grad(outer, list(net.parameters())))
        return told

    same(scenario, rtol=1e-3, atol=1e-4)


def test_learned_learning_rate() -> None:
    def scenario(compile: Compile) -> Any:
        loss = compile(lambda w, x: (x @ w).sigmoid().pow(2).mean())
        w, rate, x = leaf(4, 2), leaf(1), torch.randn(5, 4)
        new = w - rate * grad(loss(w, x), w, create_graph=True)[0]
        return values(grad(loss(new, x), (w, rate)))

    same(scenario, **CLOSE)


# Custom formulas


class Clipped(Function):
    """Rounds; passes gradients through where |x| < 1, scaled by x squared."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return g * (x.abs() < 1) * x * x


class WrongOnPurpose(Function):
    """Its formula is not the derivative, which shows whose derivative was taken."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = ctx.saved_tensors
        return g * y.exp() * x.pow(3), -g * x.exp()


class Reversal(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, strength: float) -> torch.Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:
        return -ctx.strength * g, None


class SavesItsOutput(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        out = x.exp()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (out,) = ctx.saved_tensors
        return 2 * g * out


CUSTOM: dict[str, tuple[Callable[..., torch.Tensor], int]] = {
    "clipped": (lambda x: Clipped.apply(x.sin()) * x, 1),
    "wrong on purpose": (lambda x, y: WrongOnPurpose.apply(x, y).sin(), 2),
    "reversal": (lambda x: Reversal.apply(x.pow(3), 0.5) * x, 1),
    "saves its output": (lambda x: SavesItsOutput.apply(x) * x, 1),
    "twice": (lambda x: Clipped.apply(Clipped.apply(x * 2).exp() * x), 1),
}


@pytest.mark.parametrize("name", list(CUSTOM))
def test_custom_formula(name: str) -> None:
    """The second derivative is that of the written formula: eager's value or a clear error."""
    fn, arity = CUSTOM[name]

    def scenario(compile: Compile) -> Any:
        f = compile(fn)
        inputs = [leaf(5) for _ in range(arity)]
        return derivatives(f(*inputs), inputs)

    same(scenario, **CLOSE)


class Squared(Function):
    """No derivative at all: what a gradient's parts give does not add up to what the sum gives."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g.pow(2)


class Clamped(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g.clamp(-0.1, 0.1)


def formula(of_gradient: Callable[[torch.Tensor], torch.Tensor]) -> type[Function]:
    """A function whose backward is `of_gradient`."""

    class Formula(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return of_gradient(g)

    return Formula


NOT_LINEAR: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mul": lambda g: torch.mul(g, other=g),
    "div": lambda g: torch.div(g * 2, other=g),
    "add": lambda g: torch.add(g, other=1.0),
    "sub": lambda g: torch.sub(g, other=1.0),
    "cat": lambda g: torch.cat(tensors=[g, torch.ones(3)])[:3],
    "masked_fill": lambda g: g.masked_fill(torch.tensor([True, False, False]), value=1.0),
    "index": lambda g: g[g.argsort()],
    "linear": lambda g: F.linear(g, torch.eye(3), bias=torch.ones(3)),
    "whole numbers": lambda g: (g * 9).to(dtype=torch.int64).to(torch.float32),
}
LINEAR: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mul": lambda g: torch.mul(g, other=torch.arange(3.0)),
    "div": lambda g: torch.div(g, other=2.0),
    "add": lambda g: torch.add(g, g * 2, alpha=3),
    "sum": lambda g: g.sum(dim=0, keepdim=True).expand(3),
    "flip": lambda g: torch.flip(g, dims=(0,)),
}


@pytest.mark.parametrize("name", NOT_LINEAR)
def test_keywords_may_make_a_formula_not_linear(name: str) -> None:
    function = formula(NOT_LINEAR[name])
    out = compiled(lambda x: function.apply(x.sin()) * x)(leaf(3)).sum()
    with pytest.raises(RuntimeError, match=r"double backward.*not linear"):
        out.backward(create_graph=True)


@pytest.mark.parametrize("name", LINEAR)
def test_keywords_of_a_linear_formula(name: str) -> None:
    function = formula(LINEAR[name])

    def scenario(compile: Compile) -> Any:
        x = leaf(3)
        return derivatives(compile(lambda x: function.apply(x.sin()) * x.exp())(x), [x])

    same(scenario, **CLOSE)


@pytest.mark.parametrize("function", [Squared, Clamped], ids=lambda f: f.__name__)
def test_formula_that_is_not_linear_raises(function: type[Function]) -> None:
    """Eager adds all gradients of a value before it calls the formula; we cannot promise that."""
    f = compiled(lambda x: function.apply(x.sin()) * x)
    x = leaf(3)
    (first,) = grad(f(x).sum(), x)  # first order it is called once, as in eager
    (wanted,) = grad((function.apply(x.sin()) * x).sum(), x)
    torch.testing.assert_close(first, wanted)
    told = r"double backward.*not linear[\s\S]*test_double_backward"
    with pytest.raises(RuntimeError, match=told):
        grad(f(x).sum(), x, create_graph=True)


class Once(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * g * x


def test_once_differentiable_raises() -> None:
    """Never a number where eager has none."""

    def attempt(f: Callable[..., torch.Tensor]) -> None:
        x = leaf(3)
        (first,) = grad(f(x).sum(), x, create_graph=True)
        grad(first.sum(), x)

    with pytest.raises(RuntimeError):
        attempt(Once.apply)
    with pytest.raises(RuntimeError):
        attempt(compiled(lambda x: Once.apply(x) * 1, fullgraph=False))


def test_custom_op() -> None:
    @torch.library.custom_op("straightline_tests::cube", mutates_args=())
    def cube(x: torch.Tensor) -> torch.Tensor:
        return x.pow(3)

    cube.register_fake(torch.empty_like)

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    cube.register_autograd(lambda ctx, g: 3 * g * ctx.saved_tensors[0].pow(2), setup_context=keep)

    def scenario(compile: Compile) -> Any:
        x = leaf(4)
        return derivatives(compile(lambda x: cube(x) * x)(x), [x])

    same(scenario, **CLOSE)


def hidden_noise() -> Any:
    """An operation whose randomness nothing tells."""

    @torch.library.custom_op("straightline_tests::hidden_noise", mutates_args=())
    def noise(x: torch.Tensor) -> torch.Tensor:
        return torch.randn_like(x)

    noise.register_fake(torch.empty_like)
    return noise


def test_calls_of_a_custom_op_may_differ() -> None:
    """Each call runs, and each derivative sees what its own call gave."""
    noise = hidden_noise()

    def scenario(compile: Compile) -> Any:
        def fn(x: torch.Tensor) -> torch.Tensor:
            a, b = noise(x.detach()), noise(x.detach())
            return (x * a).pow(3).sum() + (x * b).exp().sum()

        x = leaf(4)
        out = compile(fn)(x)
        return [out.detach(), *derivatives(out, [x])]

    same(scenario, **CLOSE)


def test_custom_op_that_would_have_to_run_again_raises() -> None:
    """Nothing says that it would give the same."""
    noise = hidden_noise()
    x = leaf(4)

    def fn(x: torch.Tensor) -> torch.Tensor:
        def part(x: torch.Tensor) -> torch.Tensor:
            return (x * noise(x.detach())).pow(3).sum()

        return checkpoint(part, x, use_reentrant=False)

    out = compiled(fn)(x)
    with pytest.raises(RuntimeError, match=r"double backward needs what .*hidden_noise.* gave"):
        grad(out, x, create_graph=True)


# Randomness


@pytest.mark.parametrize("inplace", [False, True])
def test_dropout_keeps_its_mask(inplace: bool) -> None:
    """The second derivative sees the mask that the output shows, whatever was drawn since."""
    f = compiled(lambda x: F.dropout(x.pow(3), 0.5, True, inplace))
    for _ in range(2):
        x = torch.full((64,), 2.0, requires_grad=True)
        out = f(x)
        mask = out.detach() / 8
        (first,) = grad(out.sum(), x, create_graph=True)
        torch.rand(7)
        (second,) = grad(first.sum(), x)
        torch.testing.assert_close(first.detach(), mask * 12)
        torch.testing.assert_close(second, mask * 12)
        assert set(mask.unique().tolist()) == {0.0, 2.0}


def test_dropout_does_not_move_the_generator() -> None:
    """Differentiating twice draws nothing new."""
    f = compiled(lambda x: F.dropout(x.pow(3), 0.5, True))
    x = leaf(16)
    out = f(x)
    state = torch.get_rng_state()
    (first,) = grad(out.sum(), x, create_graph=True)
    grad(first.sum(), x)
    assert torch.equal(torch.get_rng_state(), state)


def test_noise() -> None:
    """Random numbers that enter by a product: as eager under the same seed."""

    def scenario(compile: Compile) -> Any:
        f = compile(lambda x: (x * torch.rand_like(x)).exp() * x)
        x = leaf(5)
        torch.manual_seed(3)
        out = f(x)
        torch.manual_seed(99)
        return derivatives(out, [x])

    same(scenario, **CLOSE)


# Mutation


def test_mutated_buffer_counts_at_its_old_value() -> None:
    def scenario(compile: Compile) -> Any:
        def f(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
            out = (x * state.clone()).exp()
            state.add_(1)
            return out

        call = compile(f)
        x, state = leaf(4), torch.ones(4)
        told = [derivatives(call(x, state), [x]) for _ in range(2)]
        return told, state

    same(scenario, **CLOSE)


def test_mutated_non_leaf() -> None:
    def scenario(compile: Compile) -> Any:
        def f(h: torch.Tensor) -> torch.Tensor:
            h.mul_(2)
            return h.pow(3)

        x = leaf(4)
        h = x.sin()
        out = compile(f)(h)
        return derivatives(out + h, [x])

    same(scenario, **CLOSE)


def test_mutated_after_use() -> None:
    """An output and the input's new value both carry second derivatives."""

    def scenario(compile: Compile) -> Any:
        def f(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            out = h.exp() * w
            h.add_(w.pow(2))
            return out

        x, w = leaf(4), leaf(4)
        h = x.pow(2)
        out = compile(f)(h, w)
        return derivatives(out * h, [x, w])

    same(scenario, **CLOSE)


def test_input_mutated_between_forward_and_backward_raises() -> None:
    def scenario(compile: Compile) -> Any:
        x = leaf(3)
        h = x * 1
        out = compile(lambda h: h * h)(h)
        h.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            grad(out.sum(), x, create_graph=True)

    same(scenario)


def test_input_mutated_between_first_and_second_backward() -> None:
    """What eager's second derivative needs is the saved `h`: both raise, neither is wrong."""

    def scenario(compile: Compile) -> Any:
        x = leaf(3)
        h = x * 1
        (first,) = grad(compile(lambda h: h.pow(3))(h).sum(), x, create_graph=True)
        with torch.no_grad():
            h.add_(1)
        with pytest.raises(RuntimeError):
            grad(first.sum(), x)
        return first.detach()

    same(scenario)


# State


def test_autocast() -> None:
    def scenario(compile: Compile) -> Any:
        def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return (x @ w).float().tanh()

        x, w = leaf(4, 4), leaf(4, 4)
        with torch.autocast("cpu", torch.bfloat16):
            out = compile(f)(x, w)
        return derivatives(out, [x, w])

    same(scenario, rtol=3e-2, atol=3e-2)


def test_backward_under_no_grad_makes_no_graph() -> None:
    def scenario(compile: Compile) -> Any:
        x = leaf(3)
        out = compile(lambda x: x.pow(3))(x)
        with torch.no_grad():
            (first,) = grad(out.sum() if out.is_leaf else out, x, torch.ones(3))
        return first.requires_grad, first

    same(scenario)


def test_frozen_inputs_take_no_part() -> None:
    def scenario(compile: Compile) -> Any:
        x, y = leaf(3), torch.randn(3)
        return derivatives(compile(lambda x, y: x.pow(3) * y.exp())(x, y), [x])

    same(scenario, **CLOSE)


def test_scan_of_steps_traces_once() -> None:
    """The second-order program is made on the first backward under grad mode, and kept."""
    f = compiled(lambda x: x.pow(3).sin())

    def second(x: torch.Tensor) -> torch.Tensor:
        (first,) = grad(f(x).sum(), x, create_graph=True)
        return grad(first.sum(), x)[0]

    second(leaf(4))
    if BACKEND == "straightline":
        import straightline

        before = straightline.source(f)
        second(leaf(4))
        assert straightline.source(f) == before
    counters = {k: dict(v) for k, v in torch._dynamo.utils.counters.items()}
    second(leaf(4))
    assert {k: dict(v) for k, v in torch._dynamo.utils.counters.items()} == counters


# Memory: nothing is held that a first-order backward would not hold


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def held_after_forward(fn: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> list[bool]:
    """Which non-leaf inputs live on, when only the output is kept."""
    call = compiled(fn)
    call(*(leaf(*shape) * 1 for shape in shapes))
    with no_collector():
        inputs = [leaf(*shape) * 1 for shape in shapes]
        watched = [weakref.ref(t) for t in inputs]
        out = call(*inputs)
        del inputs
        held = [ref() is not None for ref in watched]
        assert out.grad_fn is not None
        return held


@pytest.mark.parametrize(
    ("fn", "shapes", "held"),
    [
        pytest.param(lambda x, b: (x + b).tanh(), [(4,), (4,)], [False, False], id="bias"),
        pytest.param(lambda x: x.exp(), [(4,)], [False], id="output saved"),
        pytest.param(
            lambda x, w, b: F.linear(x, w, b).sigmoid(), [(3, 4), (2, 4), (2,)], None, id="linear"
        ),
        pytest.param(lambda x: x * 2 + 1, [(4,)], [False], id="linear in x"),
    ],
)
def test_inputs_that_first_order_frees_are_freed(
    fn: Callable[..., torch.Tensor], shapes: list[tuple[int, ...]], held: list[bool] | None
) -> None:
    ours = held_after_forward(fn, *shapes)
    if held is None:
        assert ours[-1] is False
    else:
        assert ours == held


def test_fast_weights_die() -> None:
    """MAML's inner biases are not saved by first order, and nothing else may hold them."""
    call = compiled(lambda x, w, b: F.linear(x, w, b).tanh().sum())
    x, w = torch.randn(3, 4), leaf(2, 4)
    call(x, w, leaf(2) * 1)
    with no_collector():
        bias = leaf(2) * 1
        watched = weakref.ref(bias)
        loss = call(x, w, bias)
        del bias
        assert watched() is None
        assert loss.requires_grad


def test_gone_after_the_last_derivative() -> None:
    f = compiled(lambda x: x.pow(3) * x.exp())

    def second(x: torch.Tensor) -> torch.Tensor:
        (first,) = grad(f(x).sum(), x, create_graph=True)
        return grad(first.sum(), x)[0]

    second(leaf(4))
    with no_collector():
        x = leaf(4)
        h = x * 1
        out = f(h)
        (first,) = grad(out.sum(), x, create_graph=True)
        (got,) = grad(first.sum(), x)
        watched = [weakref.ref(t) for t in (x, h, out, first, got)]
        del x, h, out, first, got
        assert [ref() for ref in watched] == [None] * 5


@pytest.mark.parametrize(
    "name", ["product", "matmul", "linear", "conv", "softmax", "layer_norm", "attention", "views"]
)
def test_no_more_is_saved_than_for_first_order(name: str) -> None:
    """Counted in bytes, against torch's own first-order program for the same function."""
    fn, shapes = FUNCTIONS[name]

    def saved_bytes(backend: str) -> int:
        torch._dynamo.reset()
        call = torch.compile(fn, backend=backend, fullgraph=True)
        sizes: dict[int, int] = {}

        def pack(t: torch.Tensor) -> torch.Tensor:
            sizes[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        inputs = [leaf(*shape) * 1 for shape in shapes]
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            out = call(*inputs)
        assert out.requires_grad
        return sum(sizes.values())

    assert saved_bytes(BACKEND) <= saved_bytes("aot_eager")


# What cannot be had, and the option that keeps it


@torch.library.custom_op("straightline_tests::sin_and_slope", mutates_args=())
def sin_and_slope(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.sin(), x.cos()


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(inputs[0], output[1])


def _formula(ctx: Any, by_sine: Any, by_slope: Any) -> Any:
    x, slope = ctx.saved_tensors
    terms = []
    if by_sine is not None:
        terms.append(by_sine * slope)
    if by_slope is not None:
        terms.append(-by_slope * x.sin())
    return sum(terms)


sin_and_slope.register_fake(lambda x: (torch.empty_like(x), torch.empty_like(x)))
sin_and_slope.register_autograd(_formula, setup_context=_keep)


def wave(angle: torch.Tensor) -> torch.Tensor:
    """First order saves the slope alone; the slope's own derivative needs the angle."""
    return sin_and_slope(angle)[0] * 2


def second_derivative(f: Callable[..., torch.Tensor], x: torch.Tensor, angle: torch.Tensor) -> Any:
    out = f(angle)
    del angle
    (first,) = grad(out.sum(), x, create_graph=True)
    return grad(first.sum(), x)[0]


def test_error_names_what_cannot_be_had() -> None:
    """The angle is no leaf and has died: the error names it, and the option that keeps it."""
    x = leaf(4)
    with pytest.raises(RuntimeError, match="double backward") as caught:
        second_derivative(compiled(wave), x, x * 1)
    said = str(caught.value)
    assert 'double_backward="save"' in said
    assert "angle" in said


def test_first_order_still_works_where_the_second_cannot_be_had() -> None:
    x = leaf(4)
    (first,) = grad(compiled(wave)(x * 1).sum(), x)
    torch.testing.assert_close(first, 2 * x.detach().cos())


def test_live_leaves_are_used() -> None:
    def scenario(compile: Compile) -> Any:
        x = leaf(4)
        return second_derivative(compile(wave), x, x)

    same(scenario, **CLOSE)


def test_option_save_keeps_it() -> None:
    def scenario(compile: Compile) -> Any:
        x = leaf(4)
        return second_derivative(compile(wave, options={"double_backward": "save"}), x, x * 1)

    same(scenario, **CLOSE)


@pytest.mark.parametrize("twice", [False, True], ids=["first order", "second order"])
def test_option_save_frees_what_it_kept(twice: bool) -> None:
    """With the graph, though the node lives on; with the graph kept it stays."""
    call = compiled(lambda x, offset: (x + offset).tanh(), options={"double_backward": "save"})

    def run() -> tuple[torch.Tensor, torch.Tensor, weakref.ref[Any]]:
        memory = numpy.ones(4, dtype=numpy.float32)  # lives as long as a tensor looks at it
        x = leaf(4)
        return x, call(x, torch.from_numpy(memory)), weakref.ref(memory)

    run()
    with no_collector():
        x, out, memory = run()
        assert memory() is not None
        grad(out.sum(), x, retain_graph=True)
        assert memory() is not None
        if twice:
            (first,) = grad(out.sum(), x, create_graph=True, retain_graph=False)
            assert memory() is not None
            grad(first.sum(), x)
            assert first.grad_fn is not None
        else:
            grad(out.sum(), x)
        assert memory() is None
        with pytest.raises(RuntimeError, match="second time"):
            grad(out.sum(), x, create_graph=True)


class Stash(Function):
    """Keeps a tensor where autograd does not look after it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:
        return g * ctx.factor, None


def test_what_a_function_stashed_is_freed() -> None:
    call = compiled(lambda x, factor: Stash.apply(x, factor).exp())

    def run() -> tuple[torch.Tensor, torch.Tensor, weakref.ref[Any]]:
        memory = numpy.ones(4, dtype=numpy.float32)
        x = leaf(4)
        return x, call(x, torch.from_numpy(memory)), weakref.ref(memory)

    x, out, _ = run()
    grad(out.sum(), x)
    with no_collector():
        x, out, memory = run()
        grad(out.sum(), x, retain_graph=True)
        assert memory() is not None
        (got,) = grad(out.sum(), x)
        assert memory() is None
        torch.testing.assert_close(got, out.detach())


@pytest.mark.parametrize(
    "name", ["product", "matmul", "softmax", "no-grad scale", "straight through"]
)
def test_option_save(name: str) -> None:
    fn, shapes = FUNCTIONS[name]

    def scenario(compile: Compile) -> Any:
        f = compile(fn, options={"double_backward": "save"})
        inputs = [leaf(*shape) for shape in shapes]
        return derivatives(f(*[t * 1 for t in inputs]), inputs)

    same(scenario, **CLOSE)
