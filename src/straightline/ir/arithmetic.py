"""The exact operations of `ops` on numpy arrays, bit for bit: part of the interpreter.

An array of a type has the numpy type of its memory: `bf16` is held in 16-bit integers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from straightline.ir import scalar
from straightline.ir.dtypes import BY_NAME, DType, Kind, b1, bf16, f16, f32, f64, i32, i64, u64

Array: TypeAlias = Any  # numpy arrays: what its functions give is too wide a type to be of use

_NUMPY_NAMES = {
    "b1": "bool", "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "bf16": "uint16", "f16": "float16", "f32": "float32", "f64": "float64",
}  # fmt: skip
MEMORY: Mapping[DType, np.dtype[Any]] = {
    dtype: np.dtype(_NUMPY_NAMES[name]) for name, dtype in BY_NAME.items()
}


def constant(dtype: DType, value: bool | int | float) -> Array:
    """One element."""
    if dtype in (bf16, f16):
        return cast(constant(f32, value), f32, dtype)
    return (
        np.array([value]).astype(MEMORY[dtype])
        if dtype is f32
        else np.array([value], MEMORY[dtype])
    )


# -- integers --------------------------------------------------------------------------------------


def _division(
    name: str, divide: Callable[[Array, Array], Array]
) -> Callable[[DType, Array, Array], Array]:
    def apply(dtype: DType, a: Array, b: Array) -> Array:
        zero = b == 0
        # By -1 the lowest number does not fit: negation wraps, and nothing is left over.
        minus = b == -1 if dtype.is_signed else np.zeros_like(zero)
        one = np.ones((), a.dtype)
        result = divide(a, np.where(zero | minus, one, b))
        by_minus = np.negative(a) if name in ("quotient", "floordiv") else np.zeros_like(a)
        return np.where(zero, np.zeros((), a.dtype), np.where(minus, by_minus, result))

    return apply


def _quotient(a: Array, b: Array) -> Array:
    down = np.floor_divide(a, b)
    inexact = (np.remainder(a, b) != 0) & ((a < 0) != (b < 0))
    return down + inexact.astype(a.dtype)


def _shl(dtype: DType, a: Array, b: Array) -> Array:
    fits = (b >= 0) & (b < dtype.bits)
    zero = np.zeros((), a.dtype)
    return np.where(fits, np.left_shift(a, np.where(fits, b, zero)), zero)


def _shr(dtype: DType, a: Array, b: Array) -> Array:
    fits = (b >= 0) & (b < dtype.bits)
    zero, most = np.zeros((), a.dtype), np.array(dtype.bits - 1, a.dtype)
    if dtype.is_signed:
        return np.right_shift(a, np.where(fits, b, most))
    return np.where(fits, np.right_shift(a, np.where(fits, b, zero)), zero)


def _mulhi(dtype: DType, a: Array, b: Array) -> Array:
    if dtype.bits < 64:
        wide = np.dtype("int64" if dtype.is_signed else "uint64")
        return ((a.astype(wide) * b.astype(wide)) >> dtype.bits).astype(a.dtype)
    x, y = a.view("uint64"), b.view("uint64")
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    x1, x0, y1, y0 = x >> half, x & low, y >> half, y & low
    middle = x1 * y0 + (x0 * y0 >> half)
    other = x0 * y1 + (middle & low)
    high = x1 * y1 + (middle >> half) + (other >> half)
    if dtype.is_signed:
        zero = np.uint64(0)
        high = high - np.where(a < 0, y, zero) - np.where(b < 0, x, zero)
    return high.view(a.dtype)


# -- floats ----------------------------------------------------------------------------------------


def _minimum(less: Callable[[Array, Array], Array]) -> Callable[[DType, Array, Array], Array]:
    def apply(dtype: DType, a: Array, b: Array) -> Array:
        first = less(a, b)
        if dtype.is_float:
            first = first | np.isnan(a)
        return np.where(first, a, b)

    return apply


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The rounded sum and what rounding took from it, exactly."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _sum_to_odd(a: Array, b: Array) -> Array:
    """The sum, where it is not exact the neighbour whose last bit is set: it may be rounded again
    to fewer bits as the exact sum would be.
    """
    total, rest = _two_sum(a, b)
    even = (total.view("uint64") & np.uint64(1)) == 0
    moved = np.nextafter(total, np.where(rest > 0, np.inf, -np.inf))
    return np.where(even & (rest != 0) & np.isfinite(total), moved, total)


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """The rounded product and what rounding took from it; exact away from the ends of the range."""

    def split(value: Array) -> tuple[Array, Array]:
        scaled = value * 134217729.0
        upper = scaled - (scaled - value)
        return upper, value - upper

    total = a * b
    (a1, a0), (b1_, b0) = split(a), split(b)
    return total, a0 * b0 - (((total - a1 * b1_) - a0 * b1_) - a1 * b0)


def _fma(dtype: DType, a: Array, b: Array, c: Array) -> Array:
    a, b, c = (np.ascontiguousarray(x) for x in np.broadcast_arrays(a, b, c))
    if dtype is f32:
        # The product of two numbers of 24 bits is exact in 53.
        exact = a.astype("float64") * b.astype("float64")
        return _sum_to_odd(exact, c.astype("float64")).astype("float32")
    # Boldo and Melquiond: the error of the sum, rounded to odd, is all that rounding needs.
    upper, lower = _two_product(a, b)
    high, low = _two_sum(c, lower)
    total, rest = _two_sum(upper, high)
    result = total + _sum_to_odd(low, rest)
    plain = ((a == 0) | (b == 0)) | ~(np.isfinite(a) & np.isfinite(b) & np.isfinite(c))
    result = np.where(plain, a * b + c, result)
    extreme = ~(_moderate(a) & _moderate(b) & (_moderate(c) | (c == 0)) & _moderate(upper))
    for lane in np.flatnonzero(extreme & ~plain):
        result[lane] = scalar.fma(f64, float(a[lane]), float(b[lane]), float(c[lane]))
    return result


def _ldexp(dtype: DType, x: Array, n: Array) -> Array:
    power = np.where(n > 0, np.inf, 0).astype(x.dtype)
    extreme = np.where(np.isnan(x), power, x * power)
    # No step from the smallest number to the largest is longer.
    steps = np.floor(np.clip(np.where(np.isfinite(n), n, 0), -3000, 3000)).astype("int32")
    return np.where(np.isnan(n), n, np.where(np.isinf(n), extreme, np.ldexp(x, steps)))


def _moderate(value: Array) -> Array:
    """Where nothing that `_fma` computes from it overflows or is lost below the normal numbers."""
    size = np.abs(value)
    return (size > 2.0**-400) & (size < 2.0**400)


# -- casts -----------------------------------------------------------------------------------------


def cast(value: Array, old: DType, new: DType) -> Array:
    if old is new:
        return value
    match old, new:
        case DType(name="bf16"), _:
            wide = (value.astype("uint32") << np.uint32(16)).view("float32")
            return cast(wide, f32, new)
        case _, DType(name="bf16"):
            return _to_bf16(cast(value, old, f32))
        case DType(name="f16"), _:
            return cast(value.astype("float32"), f32, new)
        case _, DType(name="f16"):
            return cast(value, old, f32).astype("float16")
        case _, DType(kind=Kind.BOOL):
            return value != 0
        case DType(kind=Kind.FLOAT), DType(kind=Kind.SIGNED | Kind.UNSIGNED):
            return _to_integer(np.trunc(value.astype("float64")), new)
        case _:
            return value.astype(MEMORY[new])


def _to_bf16(value: Array) -> Array:
    bits = value.view("uint32")
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(value), quiet, rounded).astype("uint16")


def _to_integer(whole: Array, new: DType) -> Array:
    if new in (i32, i64):
        fits = (whole >= float(new.lowest)) & (whole < -float(new.lowest))
        kept = np.where(fits, whole, 0.0).astype(MEMORY[new])
        return np.where(fits, kept, np.array(new.lowest, MEMORY[new]))
    if new is u64:
        large = (whole >= 2.0**63) & (whole < 2.0**64)
        upper = np.where(large, whole - 2.0**63, 0.0).astype("uint64") + np.uint64(1 << 63)
        return np.where(large, upper, _to_integer(whole, i64).astype("uint64"))
    return _to_integer(whole, i32 if new.bits < 32 else i64).astype(MEMORY[new])


# -- the table -------------------------------------------------------------------------------------


def _plain(apply: Callable[..., Any]) -> Callable[..., Array]:
    def on_arrays(dtype: DType, *args: Array) -> Array:
        return apply(*args)

    return on_arrays


# Operation name -> function of the operands' type and of the operands.
EXACT: Mapping[str, Callable[..., Array]] = {
    "add": _plain(operator.add),
    "sub": _plain(operator.sub),
    "mul": _plain(operator.mul),
    "neg": _plain(np.negative),
    "abs": _plain(np.abs),
    "min": _minimum(operator.lt),
    "max": _minimum(operator.gt),
    "div": _plain(operator.truediv),
    "sqrt": _plain(np.sqrt),
    "fma": _fma,
    "fmod": _plain(np.fmod),
    "floor": _plain(np.floor),
    "ceil": _plain(np.ceil),
    "trunc": _plain(np.trunc),
    "round": _plain(np.rint),
    "copysign": _plain(np.copysign),
    "nextafter": _plain(np.nextafter),
    "ldexp": _ldexp,
    "quotient": _division("quotient", _quotient),
    "remainder": _division("remainder", np.fmod),
    "floordiv": _division("floordiv", np.floor_divide),
    "mod": _division("mod", np.remainder),
    "shl": _shl,
    "shr": _shr,
    "mulhi": _mulhi,
    "and": _plain(operator.and_),
    "or": _plain(operator.or_),
    "xor": _plain(operator.xor),
    "not": _plain(operator.invert),
    "lt": _plain(operator.lt),
    "le": _plain(operator.le),
    "gt": _plain(operator.gt),
    "ge": _plain(operator.ge),
    "eq": _plain(operator.eq),
    "ne": _plain(operator.ne),
}


def bitcast(value: Array, new: DType) -> Array:
    return np.ascontiguousarray(value).view(MEMORY[new])


def zeros(dtype: DType, count: int) -> Array:
    return np.zeros(count, MEMORY[dtype])


def is_nan(value: Array, dtype: DType) -> Array:
    """Where it is no number; for all types."""
    if dtype is bf16:
        return (value & np.uint16(0x7FFF)) > np.uint16(0x7F80)
    return np.isnan(value) if dtype.is_float else np.zeros(value.shape, MEMORY[b1])
