"""The exact operations of `ops` on single numbers, in plain Python: what constants are folded with.

A value of a float type is a Python float that the type has. Functions are not here: what compiled
code gives for them is not known to the bit.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, TypeAlias

from straightline.ir.dtypes import DType, f32, f64, i32, i64
from straightline.ir.ops import SELECT

Number: TypeAlias = bool | int | float

_FORMATS = {"f32": "f", "f64": "d", "f16": "e"}
_CODES = {8: "b", 16: "h", 32: "i", 64: "q"}


def wrap(dtype: DType, value: int) -> int:
    """The number of an integer type with these low bits."""
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if value > dtype.highest else value


def rounded(dtype: DType, value: float) -> float:
    """The number of a float type nearest to `value`, the even one at ties."""
    match dtype.name:
        case "f64":
            return value
        case "bf16":
            return from_bits(dtype, _bf16_bits(rounded(f32, value)))
        case "f16" if not math.isnan(value):
            value = rounded(f32, value)
        case _:
            pass
    form = _FORMATS[dtype.name]
    try:
        (result,) = struct.unpack(form, struct.pack(form, value))
    except OverflowError:
        return math.copysign(math.inf, value)
    return float(result)


def fits(dtype: DType, value: Number) -> bool:
    """Whether `value` is one of the type, and its Python type the one for it."""
    if dtype.is_float:
        return isinstance(value, float) and (math.isnan(value) or rounded(dtype, value) == value)
    if dtype.is_integer:
        return type(value) is int and dtype.lowest <= value <= dtype.highest
    return isinstance(value, bool)


def _bf16_bits(value: float) -> int:
    (bits,) = struct.unpack("I", struct.pack("f", value))
    if math.isnan(value):
        return int(bits >> 16 | 0x40)
    return int(bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def from_bits(dtype: DType, bits: int) -> Number:
    """The number with these bits."""
    if dtype.name == "bf16":
        return float(struct.unpack("f", struct.pack("I", bits << 16))[0])
    if dtype.is_float:
        form = _FORMATS[dtype.name]
        return float(struct.unpack(form, bits.to_bytes(dtype.bytes, "little"))[0])
    return wrap(dtype, bits)


def bits(dtype: DType, value: Number) -> int:
    if dtype.name == "bf16":
        return _bf16_bits(float(value))
    if dtype.is_float:
        return int.from_bytes(struct.pack(_FORMATS[dtype.name], value), "little")
    return int(value) & ((1 << dtype.bits) - 1)


# -- floats ----------------------------------------------------------------------------------------


def _divide(a: float, b: float) -> float:
    if b != 0:
        return a / b
    return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1.0, b)


def _fmod(a: float, b: float) -> float:
    return math.nan if math.isinf(a) or b == 0 else math.fmod(a, b)


def _whole(choose: Callable[[float], int]) -> Callable[[float], float]:
    def apply(value: float) -> float:
        return math.copysign(choose(value), value) if math.isfinite(value) else value

    return apply


def _nextafter(dtype: DType, a: float, b: float) -> float:
    if a == b or b != b:
        return b
    if a != a:
        return a
    if a == 0:
        return math.copysign(from_bits(dtype, 1), b)
    return float(from_bits(dtype, bits(dtype, a) + (1 if (a < b) == (a > 0) else -1)))


def fma(dtype: DType, a: float, b: float, c: float) -> float:
    """`a * b + c`, rounded once."""
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)) or 0 in (a, b):
        return a * b + c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return 0.0 if c > 0 or math.copysign(1.0, a) * math.copysign(1.0, b) > 0 else -0.0
    try:
        nearest = exact.numerator / exact.denominator
    except OverflowError:
        return math.inf if exact > 0 else -math.inf
    if dtype is f64 or math.isinf(nearest):
        return nearest
    rest = exact - Fraction(nearest)
    if rest and not bits(f64, nearest) & 1:
        # To the odd neighbour, so that rounding again does as rounding once.
        nearest = math.nextafter(nearest, math.inf if rest > 0 else -math.inf)
    return rounded(dtype, nearest)


def _least(less: Callable[[float, float], bool]) -> Callable[[Any, Any], Number]:
    def apply(a: Number, b: Number) -> Number:
        return a if a != a or less(a, b) else b

    return apply


_FLOAT: Mapping[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a: -a,
    "abs": math.fabs,
    "min": _least(lambda a, b: a < b),
    "max": _least(lambda a, b: a > b),
    "div": _divide,
    "sqrt": lambda a: math.sqrt(a) if not a < 0 else math.nan,
    "fmod": _fmod,
    "floor": _whole(math.floor),
    "ceil": _whole(math.ceil),
    "trunc": _whole(math.trunc),
    "round": _whole(round),
    "copysign": math.copysign,
}

# -- integers --------------------------------------------------------------------------------------


def _quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _shr(dtype: DType, a: int, b: int) -> int:
    if 0 <= b < dtype.bits:
        return a >> b
    return -1 if a < 0 else 0


_INTEGER: Mapping[str, Callable[..., int]] = {
    "add": lambda dtype, a, b: a + b,
    "sub": lambda dtype, a, b: a - b,
    "mul": lambda dtype, a, b: a * b,
    "neg": lambda dtype, a: -a,
    "abs": lambda dtype, a: abs(a),
    "min": lambda dtype, a, b: min(a, b),
    "max": lambda dtype, a, b: max(a, b),
    "quotient": lambda dtype, a, b: _quotient(a, b) if b else 0,
    "remainder": lambda dtype, a, b: a - _quotient(a, b) * b if b else 0,
    "floordiv": lambda dtype, a, b: a // b if b else 0,
    "mod": lambda dtype, a, b: a % b if b else 0,
    "shl": lambda dtype, a, b: a << b if 0 <= b < dtype.bits else 0,
    "shr": _shr,
    "mulhi": lambda dtype, a, b: a * b >> dtype.bits,
    "and": lambda dtype, a, b: a & b,
    "or": lambda dtype, a, b: a | b,
    "xor": lambda dtype, a, b: a ^ b,
    "not": lambda dtype, a: ~a,
}

_BOOL: Mapping[str, Callable[..., bool]] = {
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "xor": lambda a, b: a != b,
    "not": lambda a: not a,
}

_COMPARISON: Mapping[str, Callable[[Any, Any], bool]] = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}


def cast(value: Number, new: DType) -> Number:
    if new.is_float:
        return _nearest(new, value)
    if not new.is_integer:
        return value != 0
    if not isinstance(value, float):
        return wrap(new, int(value))
    whole = math.trunc(value) if math.isfinite(value) else None
    if whole is not None and new.lowest <= whole <= new.highest:
        return whole
    if new in (i32, i64):
        return new.lowest
    through = cast(value, i32 if new.bits < 32 else i64)
    return wrap(new, int(through))


def _nearest(new: DType, value: Number) -> float:
    """`value` in a float type. To `bf16` and `f16` it is rounded to `f32` first."""
    if isinstance(value, float) or new is f64:
        return rounded(new, float(value))
    # An integer of 64 bits has more of them than a double: rounded to odd it may be rounded again.
    nearest = float(value)
    if int(nearest) != value and not bits(f64, nearest) & 1:
        nearest = math.nextafter(nearest, math.inf if value > int(nearest) else -math.inf)
    return rounded(new, rounded(f32, nearest))


def known(name: str) -> bool:
    """Whether `apply` has the operation."""
    return name in (SELECT, "cast", "bitcast", "fma", "nextafter") or any(
        name in table for table in (_FLOAT, _INTEGER, _COMPARISON)
    )


def apply(name: str, old: DType, new: DType, *args: Number) -> Number:
    """The operation on operands of type `old` (`select`: both behind the condition), to `new`."""
    match name:
        case "select":
            return args[1] if args[0] else args[2]
        case "cast":
            return cast(args[0], new)
        case "bitcast":
            return from_bits(new, bits(old, args[0]))
        case "fma":
            return fma(old, *map(float, args))
        case "nextafter":
            return _nextafter(old, *map(float, args))
        case _ if name in _COMPARISON:
            return _COMPARISON[name](*args)
        case _ if old.is_float:
            return rounded(old, _FLOAT[name](*args))
        case _ if old.is_integer:
            return wrap(old, _INTEGER[name](old, *args))
        case _:
            return _BOOL[name](*args)
