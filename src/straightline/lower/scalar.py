"""Writing expressions: operations whose operands may be Python numbers.

A number takes the type of the operand beside it, rounded to it.
"""

from __future__ import annotations

import math
import struct
from typing import TypeAlias

from straightline.ir.dtypes import DType, b1, bf16, f16, f32, f64, i64
from straightline.ir.index import Index
from straightline.ir.nodes import Const, Expr, Position, cast, op
from straightline.ir.ops import SELECT
from straightline.lower.types import Number, Real

Value: TypeAlias = Expr | bool | int | float

_INTEGER = {8: "b", 16: "h", 32: "i", 64: "q"}


def rounded(value: bool | int | float, dtype: DType) -> bool | int | float:
    """The number of this type that a cast of `value` to it gives."""
    if dtype is b1:
        return bool(value)
    if dtype.is_float:
        return _rounded_float(float(value), dtype)
    if isinstance(value, float):
        value = int(value) if math.isfinite(value) else i64.lowest
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if value > dtype.highest else value


def _rounded_float(value: float, dtype: DType) -> float:
    if dtype is f64 or not math.isfinite(value):
        return value
    form = "<e" if dtype is f16 else "<f"
    try:
        (result,) = struct.unpack(form, struct.pack(form, value))
    except OverflowError:
        return math.copysign(math.inf, value)
    if dtype is bf16:
        (bits,) = struct.unpack("<I", struct.pack("<f", result))
        bits += 0x7FFF + ((bits >> 16) & 1)
        (result,) = struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))
    return float(result)


def number(value: Number, dtype: DType) -> Expr:
    """A constant, or what is computed from sizes."""
    if isinstance(value, Real):
        return cast(value.value, dtype)
    if isinstance(value, Index):
        if not value.is_constant:
            return cast(Position(value), dtype)
        value = value.constant
    return Const(dtype, rounded(value, dtype))


def _operation(name: str, *values: Value) -> Expr:
    dtype = next(v.dtype for v in values if not isinstance(v, bool | int | float))
    return op(name, *(number(v, dtype) if isinstance(v, bool | int | float) else v for v in values))


def call(name: str, *values: Value) -> Expr:
    """The operation `name`."""
    return _operation(name, *values)


def add(x: Value, y: Value) -> Expr:
    return _operation("add", x, y)


def sub(x: Value, y: Value) -> Expr:
    return _operation("sub", x, y)


def mul(x: Value, y: Value) -> Expr:
    return _operation("mul", x, y)


def div(x: Value, y: Value) -> Expr:
    return _operation("div", x, y)


def fma(x: Value, y: Value, z: Value) -> Expr:
    """`x * y + z` with one rounding: as the compiler contracts it in eager's kernels."""
    return _operation("fma", x, y, z)


def neg(x: Expr) -> Expr:
    return _operation("neg", x)


def absolute(x: Expr) -> Expr:
    return _operation("abs", x)


def minimum(x: Value, y: Value) -> Expr:
    return _operation("min", x, y)


def maximum(x: Value, y: Value) -> Expr:
    return _operation("max", x, y)


def exp(x: Expr) -> Expr:
    return _operation("exp", x)


def log(x: Expr) -> Expr:
    return _operation("log", x)


def log1p(x: Expr) -> Expr:
    return _operation("log1p", x)


def sqrt(x: Expr) -> Expr:
    return _operation("sqrt", x)


def lt(x: Value, y: Value) -> Expr:
    return _operation("lt", x, y)


def le(x: Value, y: Value) -> Expr:
    return _operation("le", x, y)


def gt(x: Value, y: Value) -> Expr:
    return _operation("gt", x, y)


def ge(x: Value, y: Value) -> Expr:
    return _operation("ge", x, y)


def eq(x: Value, y: Value) -> Expr:
    return _operation("eq", x, y)


def ne(x: Value, y: Value) -> Expr:
    return _operation("ne", x, y)


def both(x: Expr, y: Expr) -> Expr:
    return _operation("and", x, y)


def either(x: Expr, y: Expr) -> Expr:
    return _operation("or", x, y)


def invert(x: Expr) -> Expr:
    return _operation("not", x)


def where(condition: Expr, if_true: Value, if_false: Value) -> Expr:
    if isinstance(if_true, bool | int | float):
        assert not isinstance(if_false, bool | int | float)
        if_true = number(if_true, if_false.dtype)
    if isinstance(if_false, bool | int | float):
        if_false = number(if_false, if_true.dtype)
    return op(SELECT, condition, if_true, if_false)


def is_nan(x: Expr) -> Expr:
    return ne(x, x) if x.dtype.is_float else Const(b1, False)


def truth(x: Expr) -> Expr:
    """Whether it differs from zero."""
    return cast(x, b1)


def narrow(x: Expr, dtype: DType) -> Expr:
    """`x`, computed in `f32`, rounded to `dtype` and taken back: as where eager stores it."""
    return cast(cast(x, dtype), x.dtype) if dtype in (bf16, f16) and x.dtype is f32 else x


def below(position: Index, bound: Index) -> Expr:
    """Whether a position is below a bound, as a value."""
    return op("lt", Position(position), Position(bound))


def at_or_above(position: Index, bound: Index) -> Expr:
    return op("ge", Position(position), Position(bound))
