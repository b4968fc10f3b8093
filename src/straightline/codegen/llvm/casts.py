"""Casts between types, as `ops` defines them."""

from __future__ import annotations

from straightline.codegen.llvm.text import At, number, register
from straightline.ir.dtypes import DType, b1, bf16, f16, f32, f64, i32, i64, u64


def cast(at: At, old: DType, new: DType, value: str) -> str:
    """`value` as `new`."""
    if old is new:
        return value
    if old in _WIDENED:
        return cast(at, f32, new, _WIDENED[old](at, value))
    if new in _NARROWED:
        return _NARROWED[new](at, cast(at, old, f32, value))
    if new is b1:
        return _truth(at, old, value)
    if old.is_float:
        return _from_float(at, old, new, value) if not new.is_float else _resized(at, new, value)
    if new.is_float:
        word = "sitofp" if old.is_signed else "uitofp"
        return at.convert(word, register(old), value, register(new))
    if old.bits == new.bits:
        return value
    word = "trunc" if new.bits < old.bits else "sext" if old.is_signed else "zext"
    return at.convert(word, register(old), value, register(new))


def bitcast(at: At, old: DType, new: DType, value: str) -> str:
    """The same bits as another type of the same width."""
    if register(old) == register(new):
        return value
    return at.convert("bitcast", register(old), value, register(new))


def _truth(at: At, old: DType, value: str) -> str:
    base = register(old)
    word = "fcmp une" if old.is_float else "icmp ne"
    return at.compare(word, base, value, at.const(base, number(old, 0)))


def _resized(at: At, new: DType, value: str) -> str:
    if new is f64:
        return at.convert("fpext", "float", value, "double")
    return at.convert("fptrunc", "double", value, "float")


def _from_float(at: At, old: DType, new: DType, value: str) -> str:
    """Out of range LLVM's `fptosi` is poison, so what does not fit is kept away from it."""
    if new.bits < 32:
        return cast(at, i32, new, _to_signed(at, old, i32, value))
    if new is u64:
        return _to_u64(at, old, value)
    if new in (i32, i64):
        return _to_signed(at, old, new, value)
    return cast(at, i64, new, _to_signed(at, old, i64, value))


def _to_signed(at: At, old: DType, new: DType, value: str) -> str:
    base, result = register(old), register(new)
    # In f64 numbers between -2**31 - 1 and -2**31 truncate to what fits into i32.
    exact = old is f64 and new is i32
    low = number(old, float(new.lowest) - exact)
    above = at.compare("fcmp ogt" if exact else "fcmp oge", base, value, at.const(base, low))
    high = at.const(base, number(old, -float(new.lowest)))
    below = at.compare("fcmp olt", base, value, high)
    fits = at.binary("and", "i1", above, below)
    safe = at.select(fits, base, value, at.const(base, number(old, 0)))
    whole = at.convert("fptosi", base, safe, result)
    return at.select(fits, result, whole, at.const(result, new.lowest))


def _to_u64(at: At, old: DType, value: str) -> str:
    base = register(old)
    half = at.const(base, number(old, 2.0**63))
    above = at.compare("fcmp oge", base, value, half)
    below = at.compare("fcmp olt", base, value, at.const(base, number(old, 2.0**64)))
    upper = at.binary("and", "i1", above, below)
    less = at.binary("fsub", base, value, half)
    signed = _to_signed(at, old, i64, at.select(upper, base, less, value))
    flipped = at.binary("xor", "i64", signed, at.const("i64", -(1 << 63)))
    return at.select(upper, "i64", flipped, signed)


# -- bf16: the upper half of an f32 ----------------------------------------------------------------


def _from_bf16(at: At, value: str) -> str:
    wide = at.convert("zext", "i16", value, "i32")
    return at.convert("bitcast", "i32", at.binary("shl", "i32", wide, at.const("i32", 16)), "float")


def _to_bf16(at: At, value: str) -> str:
    """To the nearest, the even one at ties; NaN stays NaN, where the sum could carry it away.

    The machine's own instruction is not used: it takes numbers below the normal ones for zero.
    """
    bits = at.convert("bitcast", "float", value, "i32")
    upper = at.binary("lshr", "i32", bits, at.const("i32", 16))
    odd = at.binary("and", "i32", upper, at.const("i32", 1))
    half = at.binary("add", "i32", odd, at.const("i32", 0x7FFF))
    up = at.binary("lshr", "i32", at.binary("add", "i32", bits, half), at.const("i32", 16))
    quiet = at.binary("or", "i32", upper, at.const("i32", 0x40))
    is_nan = at.compare("fcmp uno", "float", value, value)
    return at.convert("trunc", "i32", at.select(is_nan, "i32", quiet, up), "i16")


# -- f16 -------------------------------------------------------------------------------------------


def _from_f16(at: At, value: str) -> str:
    if at.target.half:
        return at.convert("fpext", "half", at.convert("bitcast", "i16", value, "half"), "float")
    wide = at.convert("zext", "i16", value, "i32")
    sign = at.binary("and", "i32", wide, at.const("i32", 0x8000))
    size = at.binary("xor", "i32", wide, sign)
    moved = at.binary("shl", "i32", size, at.const("i32", 13))
    # The exponents differ by 112; infinities and NaN have the highest one in both.
    normal = at.binary("add", "i32", moved, at.const("i32", 112 << 23))
    beyond = at.compare("icmp uge", "i32", size, at.const("i32", 0x7C00))
    highest = at.binary("add", "i32", normal, at.const("i32", 112 << 23))
    normal = at.select(beyond, "i32", highest, normal)
    # Below the normal numbers it is a multiple of 2**-24.
    tiny = at.convert("uitofp", "i32", size, "float")
    tiny = at.binary("fmul", "float", tiny, at.const("float", number(f32, 2.0**-24)))
    is_tiny = at.compare("icmp ult", "i32", size, at.const("i32", 0x400))
    bits = at.select(is_tiny, "i32", at.convert("bitcast", "float", tiny, "i32"), normal)
    up = at.binary("shl", "i32", sign, at.const("i32", 16))
    return at.convert("bitcast", "i32", at.binary("or", "i32", bits, up), "float")


def _to_f16(at: At, value: str) -> str:
    if at.target.half:
        return at.convert("bitcast", "half", at.convert("fptrunc", "float", value, "half"), "i16")
    bits = at.convert("bitcast", "float", value, "i32")
    sign = at.binary("and", "i32", bits, at.const("i32", -(1 << 31)))
    size = at.binary("xor", "i32", bits, sign)
    # Normal numbers: half of the last place is added, or just less to an even one.
    last = at.binary("lshr", "i32", size, at.const("i32", 13))
    odd = at.binary("and", "i32", last, at.const("i32", 1))
    down = at.binary("add", "i32", size, at.const("i32", 0xFFF - (112 << 23)))
    up = at.binary("add", "i32", down, odd)
    normal = at.binary("lshr", "i32", up, at.const("i32", 13))
    # Below those the addition of 0.5 rounds at the right place.
    small = at.convert("bitcast", "i32", size, "float")
    small = at.binary("fadd", "float", small, at.const("float", number(f32, 0.5)))
    tiny = at.convert("bitcast", "float", small, "i32")
    tiny = at.binary("sub", "i32", tiny, at.const("i32", 126 << 23))
    is_tiny = at.compare("icmp ult", "i32", size, at.const("i32", 113 << 23))
    result = at.select(is_tiny, "i32", tiny, normal)
    is_infinite = at.compare("icmp uge", "i32", size, at.const("i32", 143 << 23))
    result = at.select(is_infinite, "i32", at.const("i32", 0x7C00), result)
    is_nan = at.compare("icmp ugt", "i32", size, at.const("i32", 255 << 23))
    payload = at.binary("lshr", "i32", size, at.const("i32", 13))
    payload = at.binary("and", "i32", payload, at.const("i32", 0x3FF))
    quiet = at.binary("or", "i32", payload, at.const("i32", 0x7E00))
    result = at.select(is_nan, "i32", quiet, result)
    upper = at.binary("lshr", "i32", sign, at.const("i32", 16))
    return at.convert("trunc", "i32", at.binary("or", "i32", result, upper), "i16")


_WIDENED = {bf16: _from_bf16, f16: _from_f16}
_NARROWED = {bf16: _to_bf16, f16: _to_f16}
