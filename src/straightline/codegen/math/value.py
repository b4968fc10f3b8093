"""Expressions written as formulas: what the expansions of functions are made with.

A `Value` is an expression; a number beside it becomes a constant of the same type, rounded to it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from straightline.ir.dtypes import DType, f32, f64, i32, i64
from straightline.ir.nodes import Const, Expr, cast, op
from straightline.ir.ops import SELECT

Number: TypeAlias = "Value | float"


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    expr: Expr

    @property
    def dtype(self) -> DType:
        return self.expr.dtype

    @property
    def layout(self) -> Layout:
        return LAYOUTS[self.dtype]

    def __add__(self, other: Number) -> Value:
        return apply("add", self, other)

    def __radd__(self, other: float) -> Value:
        return apply("add", self, other)

    def __sub__(self, other: Number) -> Value:
        return apply("sub", self, other)

    def __rsub__(self, other: float) -> Value:
        return apply("sub", constant(other, self.dtype), self)

    def __mul__(self, other: Number) -> Value:
        return apply("mul", self, other)

    def __rmul__(self, other: float) -> Value:
        return apply("mul", self, other)

    def __truediv__(self, other: Number) -> Value:
        return apply("div", self, other)

    def __rtruediv__(self, other: float) -> Value:
        return apply("div", constant(other, self.dtype), self)

    def __neg__(self) -> Value:
        return apply("neg", self)

    def __abs__(self) -> Value:
        return apply("abs", self)

    def __lt__(self, other: Number) -> Value:
        return apply("lt", self, other)

    def __le__(self, other: Number) -> Value:
        return apply("le", self, other)

    def __gt__(self, other: Number) -> Value:
        return apply("gt", self, other)

    def __ge__(self, other: Number) -> Value:
        return apply("ge", self, other)

    def equals(self, other: Number) -> Value:
        return apply("eq", self, other)

    def differs(self, other: Number) -> Value:
        return apply("ne", self, other)

    def __and__(self, other: Value | int) -> Value:
        return apply("and", self, other)

    def __or__(self, other: Value | int) -> Value:
        return apply("or", self, other)

    def __xor__(self, other: Value | int) -> Value:
        return apply("xor", self, other)

    def __lshift__(self, other: Value | int) -> Value:
        return apply("shl", self, other)

    def __rshift__(self, other: Value | int) -> Value:
        return apply("shr", self, other)

    @property
    def negated(self) -> Value:
        return apply("not", self)

    def at_most(self, other: Number) -> Value:
        """The smaller one; NaN stays NaN."""
        return apply("min", self, other)

    def at_least(self, other: Number) -> Value:
        return apply("max", self, other)

    def to(self, dtype: DType) -> Value:
        return Value(cast(self.expr, dtype))

    @property
    def bits(self) -> Value:
        """The bits of a float as a signed integer."""
        return Value(op("bitcast", self.expr, dtype=self.layout.integer))

    @property
    def as_float(self) -> Value:
        """The float with these bits."""
        return Value(op("bitcast", self.expr, dtype=f32 if self.dtype is i32 else f64))


@dataclass(frozen=True)
class Layout:
    """How a float is made of bits. `mantissa`: how many of them lie below the exponent."""

    integer: DType
    mantissa: int
    bias: int

    @property
    def one(self) -> int:
        return self.bias << self.mantissa

    @property
    def rounder(self) -> float:
        """Added to a number of up to `2**(mantissa - 2)`, it leaves that rounded to a whole one in
        the lowest bits; subtracted again, the whole number as a float.
        """
        return 1.5 * 2.0**self.mantissa

    @property
    def smallest_normal(self) -> float:
        return 2.0 ** (1 - self.bias)


LAYOUTS = {f32: Layout(i32, 23, 127), f64: Layout(i64, 52, 1023)}


def constant(value: float, dtype: DType) -> Value:
    if dtype is f32:
        value = struct.unpack("f", struct.pack("f", value))[0]
    return Value(Const(dtype, float(value) if dtype.is_float else value))


def apply(name: str, first: Value, *rest: Number) -> Value:
    """The operation on `first` and others of its type."""
    others = (each if isinstance(each, Value) else constant(each, first.dtype) for each in rest)
    return Value(op(name, first.expr, *(other.expr for other in others)))


def fma(left: Value, right: Number, plus: Number) -> Value:
    return apply("fma", left, right, plus)


def mulhi(left: Value, right: Value) -> Value:
    return apply("mulhi", left, right)


def sqrt(x: Value) -> Value:
    return apply("sqrt", x)


def round_even(x: Value) -> Value:
    return apply("round", x)


def copysign(size: Value, sign: Number) -> Value:
    return apply("copysign", size, sign)


def select(condition: Value, if_true: Number, if_false: Number) -> Value:
    """One of two, of which at least one is a `Value`."""
    dtype = next(each.dtype for each in (if_true, if_false) if isinstance(each, Value))
    one, other = (
        each if isinstance(each, Value) else constant(each, dtype) for each in (if_true, if_false)
    )
    return Value(op(SELECT, condition.expr, one.expr, other.expr))


def choose(condition: Value, if_true: float, if_false: float, dtype: DType) -> Value:
    """One of two constants."""
    return select(condition, constant(if_true, dtype), if_false)


def polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """`c[0] + c[1] * x + ...` by Horner's rule."""
    *lower, highest = coefficients
    total: Value | float = highest
    for coefficient in reversed(lower):
        if isinstance(total, Value):
            total = fma(total, x, coefficient)
        else:
            total = fma(x, total, coefficient)
    return total if isinstance(total, Value) else constant(total, x.dtype)
