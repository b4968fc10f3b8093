"""Tensors made of numbers and positions."""

from __future__ import annotations

import math

from straightline.ir.dtypes import computed_in, f32, f64, i64
from straightline.ir.index import Index
from straightline.ir.nodes import Const, Expr, Position, cast, op
from straightline.lower import scalar as s
from straightline.lower.builder import Builder, number_of
from straightline.lower.table import Table
from straightline.lower.tensor import Coords, Tensor, Unsupported
from straightline.lower.types import Number
from straightline.lower.views import Size

RULES = Table()


def filled(b: Builder, value: Number) -> Tensor:
    return b.out(lambda _: s.number(value, b.dtype))


@RULES.rule("full", "full_like", "fill.Scalar")
def full(b: Builder, x: object, fill_value: Number, **_: object) -> Tensor:
    """Of a size or like a tensor."""
    return filled(b, fill_value)


@RULES.rule("new_full")
def new_full(b: Builder, x: Tensor, size: object, fill_value: Number, **_: object) -> Tensor:
    return filled(b, fill_value)


@RULES.rule("fill.Tensor")
def fill(b: Builder, x: Tensor, value: Tensor) -> Tensor:
    return b.out(lambda _: value.load(()))


@RULES.rule("zeros", "zeros_like", "new_zeros", "zero")
def zeros(b: Builder, *_: object, **__: object) -> Tensor:
    return filled(b, 0)


@RULES.rule("ones", "ones_like", "new_ones")
def ones(b: Builder, *_: object, **__: object) -> Tensor:
    return filled(b, 1)


@RULES.rule("scalar_tensor")
def scalar_tensor(b: Builder, value: Number, **_: object) -> Tensor:
    return filled(b, value)


@RULES.rule("arange")
def arange(b: Builder, end: Number, **_: object) -> Tensor:
    return arange_step(b, 0, end, 1)


@RULES.rule("arange.start")
def arange_start(b: Builder, start: Number, end: Number, **_: object) -> Tensor:
    return arange_step(b, start, end, 1)


@RULES.rule("arange.start_step")
def arange_step(b: Builder, start: Number, end: Number, step: Number = 1, **_: object) -> Tensor:
    """`start + position * step`, as eager computes it: in the wider type for integers."""
    if not b.dtype.is_float:

        def whole(coords: Coords) -> Expr:
            first, way = (s.number(_truncated(n), i64) for n in (start, step))
            return s.add(first, s.mul(Position(coords[0]), way))

        return b.out(whole)
    # Eager's accumulator: doubles for floats.
    dtype = f64 if b.dtype in (f32, f64) else computed_in(b.dtype)

    def element(coords: Coords) -> Expr:
        first, way = s.number(start, dtype), s.number(step, dtype)
        return s.add(first, s.mul(cast(Position(coords[0]), dtype), way))

    return b.out(element)


def _truncated(value: Number) -> int | Index:
    return value if isinstance(value, int | Index) else math.trunc(number_of(value))


@RULES.rule("linspace")
def linspace(b: Builder, start: Number, end: Number, steps: Size, **_: object) -> Tensor:
    """From both ends to the middle, so that the last element is `end` itself."""
    if isinstance(steps, Index) and not steps.is_constant:
        raise Unsupported("a number of steps that is not known")
    count = steps.constant if isinstance(steps, Index) else steps
    first, last = number_of(start), number_of(end)
    if count == 1:
        return filled(b, start)
    if not b.dtype.is_float:
        raise Unsupported("equal steps between integers")
    dtype = computed_in(b.dtype)
    low, high = s.rounded(first, b.dtype), s.rounded(last, b.dtype)
    way = s.rounded(s.rounded(float(high) - float(low), dtype) / max(count - 1, 1), dtype)

    def element(coords: Coords) -> Expr:
        position = Position(coords[0])
        up = s.add(low, s.mul(cast(position, dtype), way))
        back = cast(s.sub(Const(i64, count - 1), position), dtype)
        return s.where(s.lt(position, count // 2), up, s.sub(high, s.mul(back, way)))

    return b.out(element)


@RULES.rule("eye")
def eye(b: Builder, n: Size, **_: object) -> Tensor:
    return eye_m(b, n, n)


@RULES.rule("eye.m")
def eye_m(b: Builder, n: Size, m: Size, **_: object) -> Tensor:
    def element(coords: Coords) -> Expr:
        return op("eq", Position(coords[0]), Position(coords[1]))

    return b.out(element)
