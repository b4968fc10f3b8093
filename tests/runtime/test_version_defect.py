"""A mutated input whose old value backward needs: the defect that torch 2.13's backends share.

Eager's in-place operations save what backward needs before they write, so eager has the gradient;
a partitioner that saves the input itself reads it after the epilogue has overwritten it. Where
eager raises its version error, so must the compiled function.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from oracle import Case, Cases, leaf, nonleaf, plain
from torch import Tensor

gradients = Cases()


@gradients(lambda n: (nonleaf(n, 3), leaf(n, 3)))
def multiply_by_leaf(y: Tensor, x: Tensor) -> Tensor:
    y.mul_(x)
    return y * 1


@gradients(lambda n: (nonleaf(n, 3), leaf(n, 3)))
def multiply_by_leaf_and_return_it(y: Tensor, x: Tensor) -> Tensor:
    return y.mul_(x)


@gradients(lambda n: (nonleaf(n, 3), leaf(n, 3)))
def multiply_by_leaf_and_return_nothing(y: Tensor, x: Tensor) -> None:
    y.mul_(x)


@gradients(lambda n: (plain(n, 3), leaf(n, 3)))
def multiply_plain_by_leaf(y: Tensor, x: Tensor) -> Tensor:
    y.mul_(x)
    return y.sum()


@gradients(lambda n: (plain(n, 3), leaf(3)))
def multiply_plain_by_broadcast_leaf(y: Tensor, x: Tensor) -> Tensor:
    y.mul_(x)
    return y * 2


@gradients(lambda n: (nonleaf(n, 3), leaf(n, 3)))
def multiply_by_function_of_leaf(y: Tensor, x: Tensor) -> Tensor:
    y.mul_(x.sin())
    return y.sum()


@gradients(lambda n: (nonleaf(n, 3), leaf(n, 3)))
def divide_by_leaf(y: Tensor, x: Tensor) -> Tensor:
    y.div_(x.exp())
    return y * 1


@gradients(lambda n: (nonleaf(n, 3), leaf(n, 3)))
def multiply_twice(y: Tensor, x: Tensor) -> Tensor:
    y.mul_(x)
    y.mul_(x.cos())
    return y + 1


@gradients(lambda n: (nonleaf(n, 3), leaf(n, 3), leaf(n, 3)))
def fused_multiply_add(y: Tensor, x: Tensor, w: Tensor) -> Tensor:
    y.addcmul_(x, w)
    y.mul_(w)
    return y * 2


@gradients(lambda n: nonleaf(n, 3))
def sine_in_place(y: Tensor) -> Tensor:
    y.sin_()
    return y * 1


@gradients(lambda n: nonleaf(n, 3))
def power_in_place(y: Tensor) -> Tensor:
    y.pow_(3)
    return y * 1


@gradients(lambda n: nonleaf(n, 3))
def square_root_of_square(y: Tensor) -> Tensor:
    y.pow_(2).add_(1).log_()
    return y.sum()


@gradients(lambda n: nonleaf(n, 3))
def exponential_saves_its_result(y: Tensor) -> Tensor:
    return y.exp_() * 2


@gradients(lambda n: nonleaf(n, 3))
def relu_in_place(y: Tensor) -> Tensor:
    return torch.relu_(y) * 2


@gradients(lambda n: nonleaf(n, 3))
def clone_saved_then_mutated(y: Tensor) -> Tensor:
    z = y.clone() ** 2
    y.add_(1)
    return z * 1


@gradients(lambda n: (nonleaf(n, 3), leaf(3, 3)))
def product_of_clone_then_mutated(y: Tensor, w: Tensor) -> Tensor:
    z = y.clone() @ w
    y.mul_(2)
    return z + y


@gradients(lambda n: (nonleaf(n, 3), leaf(n, 3)))
def masked_fill_then_multiply(y: Tensor, x: Tensor) -> Tensor:
    y.masked_fill_(y > 0, 2.0)
    y.mul_(x)
    return y * 1


@gradients(lambda n: (nonleaf(n, 3), leaf(3)))
def multiply_row_through_view(y: Tensor, x: Tensor) -> Tensor:
    y[0].mul_(x)
    return y.sum(0)


@gradients(lambda n: (nonleaf(n, 3), leaf(n * 3)))
def multiply_through_flat_view(y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    v = y.view(-1)
    v.mul_(x)
    return v, y * 2


@gradients(lambda n: (nonleaf(n, 3), leaf(n, 3)))
def both_mutated_by_the_other_clone(y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    z = x * 1
    y.mul_(z)
    return y, z


@gradients(lambda n: (nonleaf(n, 3), nonleaf(n, 3)))
def two_inputs_mutated(a: Tensor, b: Tensor) -> Tensor:
    c = b.clone()
    a.mul_(c)
    b.sin_()
    return a + b


@gradients(lambda n: (nonleaf(n, 4)[:, :3], leaf(n, 3)))
def lone_view_multiplied(y: Tensor, x: Tensor) -> Tensor:
    y.mul_(x)
    return y * 1


def nonleaf_and_view(n: int) -> tuple[Tensor, Tensor, Tensor]:
    y = nonleaf(n, 3)
    return y, y.view(-1), leaf(n, 3)


@gradients(nonleaf_and_view)
def base_multiplied_view_read(y: Tensor, view: Tensor, x: Tensor) -> Tensor:
    y.mul_(x)
    return view * 2


@gradients(lambda n: (plain(n, 3), leaf(n, 3), plain(1)))
def running_product(state: Tensor, x: Tensor, steps: Tensor) -> Tensor:
    steps.add_(1)
    state.mul_(x.sigmoid()).add_(x)
    return state.tanh()


@gradients(lambda n: {"h": nonleaf(n, 3), "w": leaf(3, 3)})
def recurrent_state_in_structure(tree: dict[str, Any]) -> Tensor:
    tree["h"].mul_(tree["w"][0])
    return tree["h"] @ tree["w"]


@gradients(lambda n: (nonleaf(n, 3), leaf(n, 3)))
def old_value_needed_by_custom_function(y: Tensor, x: Tensor) -> Tensor:
    old = Square.apply(y.clone())
    y.mul_(x)
    return old + y


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grad


# --- eager's own errors -----------------------------------------------------------------------

errors = Cases()
VERSION = {"raises": "modified by an inplace operation", "may_raise_early": True}


@errors(lambda n: nonleaf(n, 3), **VERSION)
def multiplied_by_itself(y: Tensor) -> Tensor:
    y.mul_(y)
    return y * 1


@errors(lambda n: (nonleaf(n, 3), leaf(n, 3)), **VERSION)
def saved_then_mutated(y: Tensor, x: Tensor) -> Tensor:
    z = y * x
    y.add_(1)
    return z


@errors(lambda n: (plain(n, 3), leaf(n, 3)), **VERSION)
def plain_saved_then_mutated(y: Tensor, x: Tensor) -> Tensor:
    z = y * x
    y.add_(1)
    return z


@errors(lambda n: nonleaf(n, 3), **VERSION)
def result_saved_then_mutated(y: Tensor) -> Tensor:
    z = y.exp()
    z.add_(1)
    return z


@errors(lambda n: (plain(n, 3), leaf(3)), **VERSION)
def saved_by_copy_source(x: Tensor, w: Tensor) -> Tensor:
    x.copy_(x * w)
    return x.sum()


@pytest.mark.parametrize("case", gradients, ids=str)
def test_gradient_with_old_value(case: Case) -> None:
    case.run()


# Tracing raises eager's error; the graph runs as captured, so that it comes when eager raises it.
@pytest.mark.filterwarnings("ignore::straightline.report.fallbacks.StraightlineFallbackWarning")
@pytest.mark.fallback
@pytest.mark.parametrize("case", errors, ids=str)
def test_version_error(case: Case) -> None:
    case.run()
