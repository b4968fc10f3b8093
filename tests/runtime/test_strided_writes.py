"""Writes through `as_strided` to memory beside an argument's elements run as captured."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from scenario import assert_no_fallbacks, clear_fallbacks, compiled
from torch import Tensor


def beside(a: Tensor) -> None:
    a.as_strided((2, 2), (1, 2), 1).sin_()


def part_of_it(a: Tensor) -> None:
    a.as_strided((2, 2), (1, 2), 1)[0].mul_(2)


def read_only(a: Tensor) -> Tensor:
    return a.as_strided((2, 2), (1, 2), 1).sin()


def whole_memory(function: Callable[[Tensor], object], rows: slice) -> Tensor:
    base = torch.linspace(0.1, 0.8, 12).view(4, 3).clone()
    function(base[rows] if rows != slice(None) else base)
    return base


@pytest.mark.filterwarnings("ignore::straightline.report.fallbacks.StraightlineFallbackWarning")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [beside, part_of_it])
def test_memory_beside_the_argument_is_written(
    function: Callable[[Tensor], None], dynamic: bool
) -> None:
    every_other = slice(None, None, 2)
    clear_fallbacks()
    got = whole_memory(compiled(function, dynamic=dynamic), every_other)
    torch.testing.assert_close(got, whole_memory(function, every_other))
    clear_fallbacks()


@pytest.mark.parametrize("function", [beside, part_of_it, read_only])
def test_an_argument_that_is_all_of_its_memory_is_compiled(
    function: Callable[[Tensor], object],
) -> None:
    clear_fallbacks()
    got = whole_memory(compiled(function), slice(None))
    torch.testing.assert_close(got, whole_memory(function, slice(None)))
    assert_no_fallbacks()


def test_reading_beside_the_argument_is_compiled() -> None:
    clear_fallbacks()
    base = torch.linspace(0.1, 0.8, 12).view(4, 3)
    torch.testing.assert_close(compiled(read_only)(base[::2]), read_only(base[::2]))
    assert_no_fallbacks()


def row_beside_all(row: Tensor, whole: Tensor) -> Tensor:
    before = whole.sum(0)
    row.mul_(2.0)
    return before


def gradient_of_rows(function: Callable[[Tensor, Tensor], Tensor], base: Tensor) -> Tensor:
    leaf = base.clone().requires_grad_()
    whole = leaf.t() * 1.0
    out = function(whole[0], whole)
    (out.square().sum() + whole.pow(3).sum()).backward()
    assert leaf.grad is not None
    return leaf.grad


@pytest.mark.filterwarnings("ignore::straightline.report.fallbacks.StraightlineFallbackWarning")
def test_shared_memory_that_is_not_contiguous_runs_as_captured() -> None:
    """torch writes to parts of the arguments' common base as if it were contiguous."""
    base = torch.linspace(0.1, 0.8, 12).view(4, 3)
    got = gradient_of_rows(compiled(row_beside_all), base)
    torch.testing.assert_close(got, gradient_of_rows(row_beside_all, base))
    clear_fallbacks()


def written_for_nothing(a: Tensor) -> Tensor:
    wide = (a * 2.0).expand(2, *a.shape)
    wide.zero_()
    return a * 3.0


def written_and_read(a: Tensor) -> Tensor:
    doubled = a * 2.0
    doubled.expand(2, *a.shape).zero_()
    return doubled


@pytest.mark.filterwarnings("ignore::straightline.report.fallbacks.StraightlineFallbackWarning")
def test_elements_that_share_memory_are_written() -> None:
    clear_fallbacks()
    a = torch.linspace(0.1, 0.8, 8)
    torch.testing.assert_close(compiled(written_for_nothing)(a), written_for_nothing(a))
    assert_no_fallbacks()
    torch.testing.assert_close(compiled(written_and_read)(a), written_and_read(a))
    clear_fallbacks()
