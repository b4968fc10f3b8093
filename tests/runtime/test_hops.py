"""Operations that are more than one ATen call: control flow, transforms, custom ops, Functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from oracle import Case, Cases, leaf, nonleaf, parameter, plain
from torch import Tensor
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

# --- control flow -----------------------------------------------------------------------------

control = Cases()
INFERENCE = {"grad_mode": (False,)}


@control(lambda n: (leaf(n, 3), plain(1)))
def cond(x: Tensor, p: Tensor) -> Tensor:
    return torch.cond((p > 0).all(), lambda t: t.sin(), lambda t: t.cos() * 2, (x,))


@control(lambda n: (leaf(n, 3), leaf(3), plain(1)))
def cond_with_closure(x: Tensor, w: Tensor, p: Tensor) -> Tensor:
    return torch.cond((p > 0).all(), lambda: x * w, lambda: x + w, ()) * 2


@control(lambda n: (plain(n, 3), plain(1)))
def cond_with_two_outputs(x: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    return torch.cond(
        (p > 0).all(), lambda t: (t + 1, t.sum()), lambda t: (t * 2, t.sum() * 3), (x,)
    )


@control(lambda n: (plain(n, 3), plain(1)))
def cond_beside_mutation(x: Tensor, p: Tensor) -> Tensor:
    x.add_(1)
    return torch.cond((p > 0).all(), lambda t: t.sin(), lambda t: t.cos(), (x,))


@control(lambda n: (leaf(n, 3), plain(1), plain(1)))
def nested_cond(x: Tensor, p: Tensor, q: Tensor) -> Tensor:
    def inner(t: Tensor) -> Tensor:
        return torch.cond((q > 0).all(), lambda u: u * 2, lambda u: u * 3, (t,))

    return torch.cond((p > 0).all(), inner, lambda t: t + 1, (x,))


@control(lambda n: plain(n, 3), **INFERENCE)
def loop(x: Tensor) -> tuple[Tensor, Tensor]:
    def more(i: Tensor, t: Tensor) -> Tensor:
        return i < 5

    def step(i: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, t * 0.5 + 1

    return while_loop(more, step, (torch.tensor(0), x))


@control(lambda n: (leaf(3), leaf(n, 3)))
def running_sum(start: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    def step(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        return carry * 0.5 + row, carry.sin() * row

    return scan(step, start, rows, dim=0)


@control(lambda n: plain(n, 3), **INFERENCE)
def prefix_products(x: Tensor) -> Tensor:
    return associative_scan(lambda a, b: a * b, x, dim=0, combine_mode="generic")


# --- torch.func -------------------------------------------------------------------------------

transforms = Cases()


@transforms(lambda n: plain(n, 3))
def gradient_inside(x: Tensor) -> Tensor:
    return torch.func.grad(lambda t: (t.sin() ** 2).sum())(x)


@transforms(lambda n: leaf(n, 3))
def gradient_inside_of_differentiable(x: Tensor) -> Tensor:
    return torch.func.grad(lambda t: (t**3).sum())(x)


@transforms(lambda n: plain(3))
def second_derivative_inside(x: Tensor) -> Tensor:
    return torch.func.grad(lambda t: torch.func.grad(lambda u: (u**4).sum())(t).sum())(x)


@transforms(lambda n: (leaf(n, 3), leaf(3)))
def vmap_inside(x: Tensor, w: Tensor) -> Tensor:
    return torch.func.vmap(lambda row: (row * w).sum())(x)


@transforms(lambda n: plain(n))
def jacrev_inside(x: Tensor) -> Tensor:
    return torch.func.jacrev(lambda t: t**2 + t.sum())(x)


@transforms(lambda n: plain(n))
def jacfwd_inside(x: Tensor) -> Tensor:
    return torch.func.jacfwd(lambda t: t**2 + t.sum())(x)


@transforms(lambda n: (plain(n, 3), plain(n, 3)))
def jvp_inside(x: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    value, tangent, *_ = torch.func.jvp(lambda t: t.sin() * t, (x,), (direction,))
    return value, tangent


@transforms(lambda n: plain(3))
def hessian_inside(x: Tensor) -> Tensor:
    return torch.func.hessian(lambda t: (t**3).sum())(x)


@transforms(lambda n: (plain(n, 3), plain(n, 3)))
def vjp_inside(x: Tensor, tangent: Tensor) -> Tensor:
    pull = torch.func.vjp(torch.sin, x)[1]
    return pull(tangent)[0]


@transforms(lambda n: ({"weight": leaf(2, 3), "bias": leaf(2)}, plain(n, 3)))
def functional_call_inside(params: dict[str, Tensor], x: Tensor) -> Tensor:
    return torch.func.functional_call(LINEAR, params, (x,))


@transforms(lambda n: ({"weight": plain(2, 3), "bias": plain(2)}, plain(n, 3)))
def per_sample_gradients(params: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
    def loss(p: dict[str, Tensor], row: Tensor) -> Tensor:
        return torch.func.functional_call(LINEAR, p, (row,)).pow(2).sum()

    return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(params, x)


LINEAR = torch.nn.Linear(3, 2)


@transforms(lambda n: plain(n, 3))
def autograd_grad_inside_of_no_grad_caller(x: Tensor) -> Tensor:
    return torch.func.vmap(torch.func.grad(lambda t: t.tanh().sum()))(x)


# --- autograd.Function ------------------------------------------------------------------------

functions = Cases()


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, scale: float) -> Tensor:
        return x * 1

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.scale = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.scale, None


class TwoInTwoOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, y)
        return x * y, x + y

    @staticmethod
    def backward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        if ctx.needs_input_grad[0]:
            return a * y + b, a * x + b
        return a * y, a * x


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        x.mul_(2)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


@functions(lambda n: leaf(n, 3))
def function_with_saved_input(x: Tensor) -> Tensor:
    return Cube.apply(x) * 2


@functions(lambda n: leaf(n, 3))
def function_with_other_gradient_than_its_forward(x: Tensor) -> Tensor:
    return StraightThrough.apply(x * 3).sin()


@functions(lambda n: leaf(n, 3))
def function_with_setup_context(x: Tensor) -> Tensor:
    return ScaledGradient.apply(x, 0.25) * 2


@functions(lambda n: (leaf(n, 3), leaf(n, 3)))
def function_with_two_of_each(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return TwoInTwoOut.apply(x, y)


@functions(lambda n: (plain(n, 3), leaf(n, 3)))
def function_with_plain_first_input(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return TwoInTwoOut.apply(x, y)


@functions(lambda n: plain(n, 3))
def function_on_plain_input(x: Tensor) -> Tensor:
    return Cube.apply(x) * 2


@functions(lambda n: leaf(n, 3), grad_mode=(False,))
def function_under_no_grad(x: Tensor) -> Tensor:
    return Cube.apply(x) * 2


@functions(lambda n: nonleaf(n, 3))
def function_with_dirty_intermediate(x: Tensor) -> Tensor:
    return InPlace.apply(x * 1) + 1


@functions(lambda n: leaf(n, 3))
def function_twice(x: Tensor) -> Tensor:
    return Cube.apply(StraightThrough.apply(Cube.apply(x)))


# --- custom operators -------------------------------------------------------------------------

ops = Cases()


@torch.library.custom_op("straightline_tests::scaled_sine", mutates_args=())
def scaled_sine(x: Tensor, scale: float) -> Tensor:
    return x.sin() * scale


@scaled_sine.register_fake
def _(x: Tensor, scale: float) -> Tensor:
    return torch.empty_like(x)


def _setup(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.scale = inputs[1]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    (x,) = ctx.saved_tensors
    return grad * x.cos() * ctx.scale, None


scaled_sine.register_autograd(_backward, setup_context=_setup)


@torch.library.custom_op("straightline_tests::add_one_", mutates_args={"x"})
def add_one_(x: Tensor) -> None:
    x.add_(1)


@torch.library.custom_op("straightline_tests::accumulate", mutates_args={"total"})
def accumulate(x: Tensor, total: Tensor) -> Tensor:
    total.add_(x)
    return x * 2


@accumulate.register_fake
def _(x: Tensor, total: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("straightline_tests::positive", mutates_args=())
def positive(x: Tensor) -> Tensor:
    return x[x > 0].clone()


@positive.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


@torch.library.custom_op("straightline_tests::split_pair", mutates_args=())
def split_pair(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    return x.sum(0), [x + 1, x * 2]


@split_pair.register_fake
def _(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    return x.new_empty(x.shape[1:]), [torch.empty_like(x), torch.empty_like(x)]


@ops(lambda n: leaf(n, 3))
def custom_op_with_gradient(x: Tensor) -> Tensor:
    return scaled_sine(x * 2, 3.0) + 1


@ops(lambda n: plain(n, 3), grad_mode=(True, False))
def custom_op_on_plain_input(x: Tensor) -> Tensor:
    return scaled_sine(x, 3.0)


@ops(lambda n: plain(n, 3))
def custom_op_mutates_input(x: Tensor) -> Tensor:
    add_one_(x)
    return x * 2


@ops(lambda n: plain(n, 3))
def custom_op_mutates_intermediate(x: Tensor) -> Tensor:
    y = x * 2
    add_one_(y)
    return y


@ops(lambda n: plain(n, 3))
def custom_op_mutates_view_of_input(x: Tensor) -> Tensor:
    add_one_(x[0])
    return x * 2


@ops(lambda n: (plain(n, 3), plain(n, 3)))
def custom_op_returns_and_mutates(x: Tensor, total: Tensor) -> Tensor:
    return accumulate(x, total) + total


@ops(lambda n: plain(n, 3), calls=(4,))
def custom_op_with_size_from_data(x: Tensor) -> Tensor:
    return positive(x) * 2


@ops(lambda n: plain(n, 3))
def custom_op_with_list_result(x: Tensor) -> tuple[Tensor, Tensor]:
    total, parts = split_pair(x)
    return total, parts[0] + parts[1]


@ops(lambda n: (plain(n, 3), leaf(n, 3)))
def custom_op_mutates_beside_gradient(state: Tensor, x: Tensor) -> Tensor:
    add_one_(state)
    return x * state.detach()


# --- several calls of one graph ---------------------------------------------------------------

regions = Cases()


@torch.compiler.nested_compile_region
def region(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).relu()


@regions(lambda n: (leaf(n, 3), leaf(3, 3)))
def repeated_region(x: Tensor, w: Tensor) -> Tensor:
    return region(region(x, w), w)


@regions(lambda n: (leaf(n, 3), parameter(3, 3)))
def checkpointed(x: Tensor, w: Tensor) -> Tensor:
    def body(t: Tensor) -> Tensor:
        return (t @ w).sin().exp()

    return torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False)


@regions(lambda n: (leaf(2, 2, n, 8), leaf(2, 2, n, 8)), calls=(16,))
def attention(q: Tensor, k: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, q)


ALL = [*control, *transforms, *functions, *ops, *regions]


@pytest.mark.parametrize("case", ALL, ids=str)
def test_higher_order(case: Case) -> None:
    case.run()
