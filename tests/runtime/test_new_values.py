"""An argument's new value has a place of its own in the autograd graph, as in eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import straightline

Function = Callable[..., Any]


def written(a: Tensor, b: Tensor) -> Tensor:
    a.mul_(2.0)
    return (a * b).sin()


def written_and_returned(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    first = a.exp() * b
    a[1:].add_(b[1:])
    return a, first, (a * b + first).cos()


def written_through_a_view(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    part = a[0]
    part.mul_(3.0)
    return part * 2.0, a.t() * 3.0


def written_by_another(a: Tensor, b: Tensor) -> Tensor:
    a.copy_(b * b)
    with torch.no_grad():
        scale = a.sum()
    with torch.enable_grad():
        return a * scale


def written_twice(a: Tensor, b: Tensor) -> Tensor:
    a.mul_(b)
    c = a.sigmoid()
    a.add_(c)
    return a.exp() * 2.0


CASES = [
    written,
    written_and_returned,
    written_through_a_view,
    written_by_another,
    written_twice,
]


def results(function: Function, sizes: Sequence[int]) -> list[Any]:
    """Values and gradients of first and second order, of the new value too; what a hook sees."""
    seen: list[Any] = []
    for n in sizes:
        torch.manual_seed(n)
        leaf, b = torch.randn(n, 3, requires_grad=True), torch.randn(n, 3, requires_grad=True)
        a = leaf * 1.0
        out = function(a, b)
        outs = out if isinstance(out, tuple) else (out,)
        a.register_hook(seen.append)
        loss = torch.stack([(o * o).sum() for o in outs]).sum()
        wrt = [a, leaf, b]
        first = torch.autograd.grad(loss, wrt, create_graph=True, allow_unused=True)
        norm = torch.stack([(g * g).sum() for g in first if g is not None]).sum()
        second = torch.autograd.grad(norm, [leaf, b], allow_unused=True)
        seen += [*(o.detach() for o in outs), *first, *second, outs[0] is a, a._version > 0]
    return seen


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_gradients_of_the_new_value(function: Function, dynamic: bool | None) -> None:
    compiled = torch.compile(function, backend="straightline", dynamic=dynamic)
    got, want = results(compiled, (3, 5, 6)), results(function, (3, 5, 6))
    assert len(got) == len(want)
    for have, expected in zip(got, want, strict=True):
        if isinstance(expected, Tensor):
            torch.testing.assert_close(have, expected)
        else:
            assert have == expected


def sources(function: Function, *, grad: bool = True) -> str:
    compiled = straightline.compile(function)
    with torch.set_grad_enabled(grad):
        compiled(torch.randn(3, 3, requires_grad=True) * 1.0, torch.randn(3, 3))
    return compiled.source


def test_a_program_is_cut_where_something_is_computed_of_the_new_value() -> None:
    text = sources(written)
    assert "def written_first(a):" in text
    assert "def written_second(a, b):" in text


def returned_alone(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    a.mul_(b)
    return a.view(-1), b * 2.0


def read_before(a: Tensor, b: Tensor) -> Tensor:
    out = a * b
    a.add_(1.0)
    return out


@pytest.mark.parametrize("function", [returned_alone, read_before])
def test_other_programs_stay_whole(function: Function) -> None:
    assert "_first" not in sources(function)


def test_a_program_without_gradients_stays_whole() -> None:
    assert "_first" not in sources(written, grad=False)


def test_views_of_an_argument_beside_one_that_is_written_to() -> None:
    """They are views of that argument, not of what it and the other are views of."""

    def step(rows: Tensor, flat: Tensor) -> Tensor:
        rows.mul_(0.5)
        return flat[None]

    seen = []
    for function in (step, torch.compile(step, backend="straightline")):
        leaf = torch.linspace(0.1, 0.9, 9).view(3, 3).requires_grad_()
        base = leaf * 1.0
        rows, flat = base[:2], base.view(-1)
        out = function(rows, flat)
        grads = torch.autograd.grad(out.square().sum(), [flat, rows, leaf], allow_unused=True)
        seen.append((out.detach(), grads))
    (want, want_grads), (got, got_grads) = seen
    torch.testing.assert_close(got, want)
    for have, expected in zip(got_grads, want_grads, strict=True):
        assert (have is None) == (expected is None)
        if expected is not None:
            torch.testing.assert_close(have, expected)
