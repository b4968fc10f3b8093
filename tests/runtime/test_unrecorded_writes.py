"""Writes to arguments that autograd does not see, and those that only the user's function explains.

Afterwards an argument has the history that it had before, where eager leaves it alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from scenario import compiled
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

FORM = {
    "result": lambda leaf: leaf * 0.5,
    "view of a leaf": lambda leaf: leaf[:],
    "view of a result": lambda leaf: (leaf * 0.5)[1:],
}


def detached(a: Tensor) -> Tensor:
    a.detach().mul_(2.0)
    return a * 3


def part(a: Tensor) -> Tensor:
    a.view(-1).detach()[1:].mul_(2.0)
    return a * 3


def data(a: Tensor) -> Tensor:
    a.data[0] = 0.5
    return a * 3


def no_grad(a: Tensor) -> Tensor:
    with torch.no_grad():
        a.mul_(2.0)
    return a.sin()


def nothing_returned(a: Tensor) -> None:
    a.detach().mul_(2.0)


def seen_as_well(a: Tensor) -> Tensor:
    a.detach().mul_(2.0)
    a.mul_(5.0)
    return a.sin()


def facts(function: Callable[[Tensor], Any], form: str) -> tuple[Any, ...]:
    leaf = torch.linspace(0.1, 0.8, 8).view(4, 2).clone().requires_grad_()
    a = FORM[form](leaf)
    out = function(a)
    (a.sum() if out is None else a.sum() + out.sum()).backward()
    node = type(a.grad_fn).__name__
    return leaf.grad, a.detach(), leaf.detach(), None if out is None else out.detach(), node


@pytest.mark.parametrize("form", FORM)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [detached, part, data, no_grad, nothing_returned])
def test_a_write_that_autograd_does_not_see(
    function: Callable[[Tensor], Any], dynamic: bool, form: str
) -> None:
    want = facts(function, form)
    got = facts(compiled(function, dynamic=dynamic), form)
    for have, expected in zip(got[:-1], want[:-1], strict=True):
        torch.testing.assert_close(have, expected)
    assert got[-1] == want[-1]


@pytest.mark.parametrize("form", ["result", "view of a result"])
def test_a_write_that_autograd_sees_beside_one_that_it_does_not(form: str) -> None:
    want, got = facts(seen_as_well, form), facts(compiled(seen_as_well), form)
    for have, expected in zip(got[:-1], want[:-1], strict=True):
        torch.testing.assert_close(have, expected)


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(2.0)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2.0


def doubled_argument(a: Tensor) -> Tensor:
    Doubles.apply(a)
    return a


def doubled_result(a: Tensor) -> Tensor:
    return Doubles.apply(a) * 3


def doubled_part(a: Tensor) -> Tensor:
    first = Doubles.apply(a[:4])
    return a * 3 + Doubles.apply(first).sum()


class DoublesBeside(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(2.0)
        ctx.mark_dirty(x)
        return x, y * 1.0

    @staticmethod
    def backward(ctx: Any, grad: Tensor, beside: Tensor) -> tuple[Tensor, Tensor]:
        return grad * 2.0, beside


def doubled_beside_a_view(a: Tensor) -> Tensor:
    whole, part = DoublesBeside.apply(a, a[:4])
    return whole + part.sum()


def doubled_value(a: Tensor) -> Tensor:
    return Doubles.apply(a * 3) * 3


def gradient(
    function: Callable[[Tensor], Tensor], make: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    leaf = make(torch.linspace(0.1, 0.8, 8)).requires_grad_()
    out = function(leaf * 0.5)
    out.sum().backward()
    assert leaf.grad is not None
    return leaf.grad, out.detach()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("make", [lambda t: t, lambda t: TwoTensor(t, t * 2)])
@pytest.mark.parametrize("function", [doubled_argument, doubled_result, doubled_part])
def test_an_argument_marked_as_dirty_keeps_its_gradient(
    function: Callable[[Tensor], Tensor], make: Callable[[Tensor], Tensor], dynamic: bool
) -> None:
    fast = torch.compile(function, backend="straightline", dynamic=dynamic)
    for got, want in zip(gradient(fast, make), gradient(function, make), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.filterwarnings("ignore::straightline.report.fallbacks.StraightlineFallbackWarning")
def test_an_argument_marked_as_dirty_beside_a_view_of_it() -> None:
    """A copy of the one would not show in the other: the graph runs as captured."""
    from straightline.report import fallbacks

    fallbacks.clear()
    want = gradient(doubled_beside_a_view, lambda t: t)
    for got, expected in zip(
        gradient(compiled(doubled_beside_a_view), lambda t: t), want, strict=True
    ):
        torch.testing.assert_close(got, expected)
    (reason,) = fallbacks.counts()
    assert "lose the gradient of an argument" in reason
    fallbacks.clear()


def test_a_value_marked_as_dirty_is_compiled() -> None:
    for got, want in zip(
        gradient(compiled(doubled_value), lambda t: t),
        gradient(doubled_value, lambda t: t),
        strict=True,
    ):
        torch.testing.assert_close(got, want)


def written_as_data(a: Tensor) -> Tensor:
    a.data.mul_(2.0)
    return a * 3


@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_tensor_made_in_inference_mode_is_written_to_as_data(context: Callable[[], Any]) -> None:
    results = []
    for function in (written_as_data, compiled(written_as_data)):
        with torch.inference_mode():
            a = torch.linspace(0.1, 0.8, 8)
        with context():
            results.append((function(a).clone(), a.clone()))
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


def test_a_tensor_made_in_inference_mode_is_not_written_to_in_the_open() -> None:
    def step(a: Tensor) -> Tensor:
        return a.mul_(2.0)

    with torch.inference_mode():
        a = torch.ones(3)
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        compiled(step)(a)
