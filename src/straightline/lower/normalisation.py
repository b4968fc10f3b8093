"""Softmax, and what takes elements to mean zero and variance one; with their backward."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from straightline.ir.dtypes import DType, computed_in
from straightline.ir.nodes import Expr, cast
from straightline.lower import scalar as s
from straightline.lower.builder import Builder, Element
from straightline.lower.reduction import (
    Folding,
    Moments,
    largest_of,
    sum_of,
    sum_of_exponentials,
)
from straightline.lower.table import Table
from straightline.lower.tensor import Coords, Tensor
from straightline.lower.types import TO_TORCH
from straightline.lower.views import Size

RULES = Table()


# -- softmax ---------------------------------------------------------------------------------------


@RULES.rule("_softmax")
def softmax(b: Builder, x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    return _softmax(b, x, dim, safe=False)


@RULES.rule("_safe_softmax")
def safe_softmax(b: Builder, x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Zeros where nothing is above minus infinity."""
    return _softmax(b, x, dim, safe=True)


def _softmax(b: Builder, x: Tensor, dim: int, safe: bool) -> Tensor:
    dtype = computed_in(b.dtype)
    folding = Folding(x, dim)
    largest = largest_of(b, x, folding, dtype)
    summed = sum_of_exponentials(b, x, folding, dtype, largest)

    def element(coords: Coords) -> Expr:
        at = folding.keep(coords)
        shifted = s.sub(cast(x.load(coords), dtype), largest.load(at))
        value = s.div(s.exp(shifted), summed.load(at))
        return s.where(s.eq(largest.load(at), -math.inf), 0.0, value) if safe else value

    return b.out(element)


@RULES.rule("_log_softmax")
def log_softmax(b: Builder, x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    dtype = computed_in(b.dtype)
    folding = Folding(x, dim)
    largest = largest_of(b, x, folding, dtype)
    summed = sum_of_exponentials(b, x, folding, dtype, largest)

    def element(coords: Coords) -> Expr:
        at = folding.keep(coords)
        shifted = s.sub(cast(x.load(coords), dtype), largest.load(at))
        return s.sub(shifted, s.log(summed.load(at)))

    return b.out(element)


@RULES.rule("_softmax_backward_data")
def softmax_backward(
    b: Builder, gradient: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype
) -> Tensor:
    dtype = computed_in(gradient.dtype)
    folding = Folding(output, dim)
    (summed,) = b.reduce(
        folding.kept,
        folding.sizes,
        "sum",
        lambda c, p: s.mul(
            cast(gradient.load(folding.point(c, p)), dtype),
            cast(output.load(folding.point(c, p)), dtype),
        ),
        name="sum",
    )

    def element(coords: Coords) -> Expr:
        own = s.sub(cast(gradient.load(coords), dtype), summed.load(folding.keep(coords)))
        return s.mul(own, cast(output.load(coords), dtype))

    return b.out(element)


@RULES.rule("_log_softmax_backward_data")
def log_softmax_backward(
    b: Builder, gradient: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype
) -> Tensor:
    dtype = computed_in(gradient.dtype)
    folding = Folding(output, dim)
    summed = sum_of(b, gradient, folding, dtype)

    def element(coords: Coords) -> Expr:
        chance = s.exp(cast(output.load(coords), dtype))
        own = cast(gradient.load(coords), dtype)
        return s.sub(own, s.mul(chance, summed.load(folding.keep(coords))))

    return b.out(element)


# -- by groups of elements -------------------------------------------------------------------------


class Standard:
    """Elements less the mean of their group, times one over its deviation, each a number of the
    group; `group` says where that stands for an element.
    """

    def __init__(
        self, x: Tensor, mean: Tensor, rstd: Tensor, group: Callable[[Coords], Coords], dtype: DType
    ) -> None:
        self.x, self.mean, self.rstd, self.group, self.dtype = x, mean, rstd, group, dtype

    def at(self, coords: Coords) -> Expr:
        where = self.group(coords)
        mean, rstd = (cast(t.load(where), self.dtype) for t in (self.mean, self.rstd))
        return s.mul(s.sub(cast(self.x.load(coords), self.dtype), mean), rstd)

    def deviation(self, coords: Coords) -> Expr:
        return cast(self.rstd.load(self.group(coords)), self.dtype)


def reciprocal_deviation(moments: Moments, eps: float) -> Callable[[Coords], Expr]:
    return lambda coords: s.div(1.0, s.sqrt(s.add(moments.variance(coords), eps)))


def affine(
    value: Expr, weight: Tensor | None, bias: Tensor | None, at: Coords, dtype: DType
) -> Expr:
    scale, offset = (None if t is None else cast(t.load(at), dtype) for t in (weight, bias))
    if scale is not None and offset is not None:
        return s.fma(value, scale, offset)
    value = value if scale is None else s.mul(value, scale)
    return value if offset is None else s.add(value, offset)


@RULES.rule("native_layer_norm")
def layer_norm(
    b: Builder,
    x: Tensor,
    normalized_shape: Sequence[Size],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> list[Tensor]:
    dtype = computed_in(x.dtype)
    outer = x.dims - len(normalized_shape)
    moments = Moments(b, x, Folding(x, range(outer, x.dims)), dtype)
    kept = moments.folding.kept
    rstd = b.map(kept, reciprocal_deviation(moments, eps), "rstd")
    standard = Standard(x, moments.mean, rstd, moments.folding.keep, dtype)
    out = b.out(lambda c: affine(standard.at(c), weight, bias, c[outer:], dtype))
    return [out, b.out(moments.mean.load, 1), b.out(rstd.load, 2)]


@RULES.rule("native_layer_norm_backward")
def layer_norm_backward(
    b: Builder,
    gradient: Tensor,
    x: Tensor,
    normalized_shape: Sequence[Size],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
) -> list[Tensor | None]:
    dtype = computed_in(x.dtype)
    outer = x.dims - len(normalized_shape)
    folding = Folding(x, range(outer, x.dims))
    standard = Standard(x, mean, rstd, folding.keep, dtype)

    def weighted(coords: Coords) -> Expr:
        return affine(cast(gradient.load(coords), dtype), weight, None, coords[outer:], dtype)

    results: list[Tensor | None] = [None, None, None]
    if output_mask[0]:
        results[0] = b.out(standard_backward(b, standard, folding, weighted))
    rows = Folding(x, range(outer)) if outer else None
    if output_mask[1]:
        results[1] = _columns(
            b, rows, 1, lambda c: s.mul(cast(gradient.load(c), dtype), standard.at(c))
        )
    if output_mask[2]:
        results[2] = _columns(b, rows, 2, lambda c: cast(gradient.load(c), dtype))
    return results


def _columns(b: Builder, rows: Folding | None, at: int, value: Callable[[Coords], Expr]) -> Tensor:
    """Result `at`: the sum of `value` over the dimensions that `rows` folds."""
    if rows is None:
        return b.out(value, at)
    return b.reduce(
        b.spec(at).shape, rows.sizes, "sum", lambda c, p: value(rows.point(c, p)), out=(at,)
    )[0]


def standard_backward(
    b: Builder, standard: Standard, folding: Folding, weighted: Callable[[Coords], Expr]
) -> Element:
    """The gradient of what was standardised, from `weighted`, that of the standardised elements."""
    count = s.number(folding.count, standard.dtype)

    def total_of(value: Element, name: str) -> Tensor:
        def part(coords: Coords, parts: Coords) -> Expr:
            return value(folding.point(coords, parts))

        return b.reduce(folding.kept, folding.sizes, "sum", part, name=name)[0]

    total = total_of(weighted, "sum")
    along = total_of(lambda c: s.mul(weighted(c), standard.at(c)), "along")

    def element(coords: Coords) -> Expr:
        at = folding.keep(coords)
        offset = s.div(total.load(at), count)
        share = s.mul(standard.at(coords), s.div(along.load(at), count))
        return s.mul(standard.deviation(coords), s.sub(s.sub(weighted(coords), offset), share))

    return element


@RULES.rule("_fused_rms_norm")
def rms_norm(
    b: Builder,
    x: Tensor,
    normalized_shape: Sequence[Size],
    weight: Tensor | None,
    eps: float | None,
) -> list[Tensor]:
    dtype = computed_in(x.dtype)
    outer = x.dims - len(normalized_shape)
    folding = Folding(x, range(outer, x.dims))
    floor = torch.finfo(TO_TORCH[dtype]).eps if eps is None else eps

    def square(coords: Coords, parts: Coords) -> Expr:
        value = cast(x.load(folding.point(coords, parts)), dtype)
        return s.mul(value, value)

    (squares,) = b.reduce(folding.kept, folding.sizes, "sum", square, name="squares")
    count = s.number(folding.count, dtype)
    rstd = b.map(
        folding.kept,
        lambda c: s.div(1.0, s.sqrt(s.add(s.div(squares.load(c), count), floor))),
        "rstd",
    )

    def element(coords: Coords) -> Expr:
        value = s.mul(cast(x.load(coords), dtype), rstd.load(folding.keep(coords)))
        return affine(value, weight, None, coords[outer:], dtype)

    return [b.out(element), b.out(rstd.load, 1)]


@RULES.rule("_fused_rms_norm_backward")
def rms_norm_backward(
    b: Builder,
    gradient: Tensor,
    x: Tensor,
    normalized_shape: Sequence[Size],
    rstd: Tensor,
    weight: Tensor | None,
    output_mask: Sequence[bool],
) -> list[Tensor | None]:
    dtype = computed_in(x.dtype)
    outer = x.dims - len(normalized_shape)
    folding = Folding(x, range(outer, x.dims))

    def normal(coords: Coords) -> Expr:
        scale = cast(rstd.load(folding.keep(coords)), dtype)
        return s.mul(cast(x.load(coords), dtype), scale)

    def weighted(coords: Coords) -> Expr:
        return affine(cast(gradient.load(coords), dtype), weight, None, coords[outer:], dtype)

    def along(coords: Coords, parts: Coords) -> Expr:
        point = folding.point(coords, parts)
        return s.mul(weighted(point), normal(point))

    results: list[Tensor | None] = [None, None]
    if output_mask[0]:
        (total,) = b.reduce(folding.kept, folding.sizes, "sum", along, name="along")
        count = s.number(folding.count, dtype)

        def element(coords: Coords) -> Expr:
            at = folding.keep(coords)
            share = s.mul(normal(coords), s.div(total.load(at), count))
            return s.mul(cast(rstd.load(at), dtype), s.sub(weighted(coords), share))

        results[0] = b.out(element)
    if output_mask[1]:
        rows = Folding(x, range(outer)) if outer else None
        results[1] = _columns(b, rows, 1, lambda c: s.mul(cast(gradient.load(c), dtype), normal(c)))
    return results
