"""The exact operations as LLVM instructions: a table, one rule each.

Nothing is left to LLVM that it calls poison or undefined, and nothing that traps: divisors are
never zero, shifts never too far.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from straightline.codegen.llvm.casts import bitcast, cast
from straightline.codegen.llvm.text import (
    At,
    integer,
    is_constant,
    number,
    register,
    sequence,
    vector,
)
from straightline.ir.dtypes import DType, Kind, b1, bf16, f16, f32, f64

Rule = Callable[..., str]


def operation(at: At, name: str, dtype: DType, old: DType, args: tuple[str, ...]) -> str:
    """`name` of operands of type `old`, with a result of type `dtype`."""
    match name:
        case "cast":
            return cast(at, old, dtype, args[0])
        case "bitcast":
            return bitcast(at, old, dtype, args[0])
        case "select":
            return at.select(args[0], register(dtype), args[1], args[2])
        case _:
            pass
    rule = RULES.get(name)
    if rule is None:
        raise ValueError(f"{name} of {old} has no instruction: functions are expanded beforehand")
    if old in (bf16, f16):
        raise ValueError(f"{name} of {old}: it is computed in f32")
    return rule(at, old, *args)


# -- numbers ---------------------------------------------------------------------------------------


def _instruction(on_floats: str, on_integers: str) -> Rule:
    def rule(at: At, dtype: DType, a: str, b: str) -> str:
        return at.binary(on_floats if dtype.is_float else on_integers, register(dtype), a, b)

    return rule


def _intrinsic(name: str) -> Rule:
    def rule(at: At, dtype: DType, *args: str) -> str:
        return at.call(f"llvm.{name}", register(dtype), *args)

    return rule


def _neg(at: At, dtype: DType, a: str) -> str:
    base = register(dtype)
    if dtype.is_float:
        return at.do(f"fneg {at.type(base)} {a}")
    return at.binary("sub", base, at.const(base, 0), a)


def _abs(at: At, dtype: DType, a: str) -> str:
    base = register(dtype)
    if dtype.is_float:
        return at.call("llvm.fabs", base, a)
    return at.call("llvm.abs", base, a, flag="i1 false") if dtype.is_signed else a


def _extreme(word: str, comparison: str) -> Rule:
    def rule(at: At, dtype: DType, a: str, b: str) -> str:
        base = register(dtype)
        if not dtype.is_float:
            return at.call(f"llvm.{'s' if dtype.is_signed else 'u'}{word}", base, a, b)
        # What x86's instruction gives: the second where they are equal or one is NaN.
        better = at.select(at.compare(f"fcmp {comparison}", base, a, b), base, a, b)
        if is_constant(a):
            return better
        return at.select(at.compare("fcmp uno", base, a, a), base, a, better)

    return rule


def _fma(at: At, dtype: DType, a: str, b: str, c: str) -> str:
    """Without an instruction of its own `f32` is computed in `f64`, rounded to odd, and rounded."""
    if at.target.fma or dtype is f64:
        return at.call("llvm.fma", register(dtype), a, b, c)
    a, b, c = (at.convert("fpext", "float", x, "double") for x in (a, b, c))
    product = at.binary("fmul", "double", a, b)
    total = at.binary("fadd", "double", product, c)
    part = at.binary("fsub", "double", total, product)
    lost = at.binary("fsub", "double", product, at.binary("fsub", "double", total, part))
    rest = at.binary("fadd", "double", lost, at.binary("fsub", "double", c, part))
    zero = at.const("double", number(f64, 0))
    inexact = at.compare("fcmp one", "double", rest, zero)
    bits = at.convert("bitcast", "double", total, "i64")
    lowest = at.binary("and", "i64", bits, at.const("i64", 1))
    even = at.compare("icmp eq", "i64", lowest, at.const("i64", 0))
    signs = at.binary("xor", "i64", at.convert("bitcast", "double", rest, "i64"), bits)
    away = at.compare("icmp sge", "i64", signs, at.const("i64", 0))
    step = at.select(away, "i64", at.const("i64", 1), at.const("i64", -1))
    moved = at.binary("add", "i64", bits, step)
    odd = at.select(at.binary("and", "i1", inexact, even), "i64", moved, bits)
    return at.convert("fptrunc", "double", at.convert("bitcast", "i64", odd, "double"), "float")


def _fmod(at: At, dtype: DType, a: str, b: str) -> str:
    return at.binary("frem", register(dtype), a, b)


_CHUNKS = {f32: (4, 8, 16), f64: (2, 4, 8)}


def _ldexp(at: At, dtype: DType, x: str, n: str) -> str:
    """One instruction of AVX-512; elsewhere it is expanded beforehand."""
    if not at.target.scalef:
        raise ValueError(f"{at.target.name} has no instruction for ldexp")
    least, most = _CHUNKS[dtype][0], _CHUNKS[dtype][-1]
    if at.lanes > most:
        low, high = (
            _ldexp(at.over(at.lanes // 2), dtype, *(_part(at, dtype, v, half) for v in (x, n)))
            for half in (0, at.lanes // 2)
        )
        kind = vector(register(dtype), at.lanes // 2)
        order = sequence("i32", range(at.lanes))
        return at.do(f"shufflevector {kind} {low}, {kind} {high}, <{at.lanes} x i32> {order}")
    if at.lanes < least:
        wide = at.over(least)
        result = _scalef(wide, dtype, *(_padded(at, dtype, v, least) for v in (x, n)))
        return _first(at, dtype, result, least)
    return _scalef(at, dtype, x, n)


def _scalef(at: At, dtype: DType, x: str, n: str) -> str:
    kind, bits = at.type(register(dtype)), at.lanes * dtype.bits
    mask = f"i{max(at.lanes, 8)}"
    name = f"llvm.x86.avx512.mask.scalef.{'ps' if dtype is f32 else 'pd'}.{bits}"
    rounding = ", i32" if bits == 512 else ""
    at.declare(f"{kind} @{name}({kind}, {kind}, {kind}, {mask}{rounding})")
    current = ", i32 4" if bits == 512 else ""
    args = f"{kind} {x}, {kind} {n}, {kind} zeroinitializer, {mask} -1{current}"
    return at.do(f"call {kind} @{name}({args})")


def _part(at: At, dtype: DType, value: str, start: int) -> str:
    kind, count = at.type(register(dtype)), at.lanes // 2
    order = sequence("i32", range(start, start + count))
    return at.do(f"shufflevector {kind} {value}, {kind} poison, <{count} x i32> {order}")


def _padded(at: At, dtype: DType, value: str, lanes: int) -> str:
    base = register(dtype)
    if at.lanes == 1:
        kind = vector(base, lanes)
        return at.do(f"insertelement {kind} zeroinitializer, {base} {value}, i64 0")
    kind = at.type(base)
    order = sequence("i32", (lane % at.lanes for lane in range(lanes)))
    return at.do(f"shufflevector {kind} {value}, {kind} poison, <{lanes} x i32> {order}")


def _first(at: At, dtype: DType, value: str, lanes: int) -> str:
    kind = vector(register(dtype), lanes)
    if at.lanes == 1:
        return at.do(f"extractelement {kind} {value}, i64 0")
    order = sequence("i32", range(at.lanes))
    return at.do(f"shufflevector {kind} {value}, {kind} poison, <{at.lanes} x i32> {order}")


def _nextafter(at: At, dtype: DType, a: str, b: str) -> str:
    base, bits = register(dtype), f"i{dtype.bits}"
    zero = at.const(base, number(dtype, 0))
    raw = at.convert("bitcast", base, a, bits)
    up = at.compare("fcmp olt", base, a, b)
    positive = at.compare("fcmp ogt", base, a, zero)
    grows = at.binary("xor", "i1", at.binary("xor", "i1", up, positive), at.const("i1", "true"))
    step = at.select(grows, bits, at.const(bits, 1), at.const(bits, -1))
    moved = at.convert("bitcast", bits, at.binary("add", bits, raw, step), base)
    least = at.const(base, number(dtype, 2.0**-149 if dtype is f32 else 2.0**-1074))
    least = at.call("llvm.copysign", base, least, b)
    moved = at.select(at.compare("fcmp oeq", base, a, zero), base, least, moved)
    moved = at.select(at.compare("fcmp oeq", base, a, b), base, b, moved)
    nan = at.compare("fcmp uno", base, a, b)
    return at.select(nan, base, at.binary("fadd", base, a, b), moved)


# -- integers --------------------------------------------------------------------------------------


def _division(rest_of: bool, down: bool) -> Rule:
    """Quotients (`rest_of`: remainders), towards zero or `down`."""

    def rule(at: At, dtype: DType, a: str, b: str) -> str:
        base, signed = register(dtype), dtype.is_signed
        zero, one = at.const(base, 0), at.const(base, 1)
        by_zero = at.compare("icmp eq", base, b, zero)
        unsafe = by_zero
        if signed:
            by_minus = at.compare("icmp eq", base, b, at.const(base, -1))
            unsafe = at.binary("or", "i1", by_zero, by_minus)
        safe = b if integer(b) not in (None, 0, -1) else at.select(unsafe, base, one, b)
        quotient = _divided(at, dtype, a, safe)
        rest = at.binary("sub", base, a, at.binary("mul", base, quotient, safe))
        if down and signed:
            opposite = at.compare("icmp slt", base, at.binary("xor", base, a, safe), zero)
            inexact = at.compare("icmp ne", base, rest, zero)
            below = at.binary("and", "i1", opposite, inexact)
            quotient = at.select(below, base, at.binary("sub", base, quotient, one), quotient)
            rest = at.select(below, base, at.binary("add", base, rest, safe), rest)
        if rest_of:
            return rest  # divided by one in place of zero and -1, nothing is left over
        if signed:
            negative = at.binary("sub", base, zero, a)
            quotient = at.select(by_minus, base, negative, quotient)
        return at.select(by_zero, base, zero, quotient)

    return rule


def _divided(at: At, dtype: DType, a: str, b: str) -> str:
    """Towards zero; the divisor is safe."""
    base = register(dtype)
    sign = "s" if dtype.is_signed else "u"
    if at.lanes == 1 or dtype.bits == 64 or is_constant(b):
        return at.binary(f"{sign}div", base, a, b)
    # There are no vectors of integer division; a float type with more bits is exact.
    wide = "double" if dtype.bits == 32 else "float"
    x = at.convert(f"{sign}itofp", base, a, wide)
    y = at.convert(f"{sign}itofp", base, b, wide)
    return at.convert(f"fpto{sign}i", wide, at.binary("fdiv", wide, x, y), base)


def _shl(at: At, dtype: DType, a: str, b: str) -> str:
    return _shifted(at, dtype, "shl", a, b)


def _shr(at: At, dtype: DType, a: str, b: str) -> str:
    if not dtype.is_signed:
        return _shifted(at, dtype, "lshr", a, b)
    base = register(dtype)
    return at.binary("ashr", base, a, at.call("llvm.umin", base, b, at.const(base, dtype.bits - 1)))


def _shifted(at: At, dtype: DType, word: str, a: str, b: str) -> str:
    base = register(dtype)
    fits = at.compare("icmp ult", base, b, at.const(base, dtype.bits))
    amount = at.binary("and", base, b, at.const(base, dtype.bits - 1))
    return at.select(fits, base, at.binary(word, base, a, amount), at.const(base, 0))


def _mulhi(at: At, dtype: DType, a: str, b: str) -> str:
    base, wide = register(dtype), f"i{2 * dtype.bits}"
    word = "sext" if dtype.is_signed else "zext"
    x, y = at.convert(word, base, a, wide), at.convert(word, base, b, wide)
    product = at.binary("mul", wide, x, y)
    upper = at.binary("lshr", wide, product, at.const(wide, dtype.bits))
    return at.convert("trunc", wide, upper, base)


# -- bits and comparisons --------------------------------------------------------------------------


def _not(at: At, dtype: DType, a: str) -> str:
    base = register(dtype)
    return at.binary("xor", base, a, at.const(base, "true" if dtype is b1 else -1))


def _comparison(on_floats: str, on_integers: str) -> Rule:
    def rule(at: At, dtype: DType, a: str, b: str) -> str:
        if dtype.is_float:
            return at.compare(f"fcmp {on_floats}", register(dtype), a, b)
        plain = on_integers in ("eq", "ne")
        sign = "" if plain else "s" if dtype.kind is Kind.SIGNED else "u"
        return at.compare(f"icmp {sign}{on_integers}", register(dtype), a, b)

    return rule


RULES: Mapping[str, Rule] = {
    "add": _instruction("fadd", "add"),
    "sub": _instruction("fsub", "sub"),
    "mul": _instruction("fmul", "mul"),
    "div": _instruction("fdiv", ""),
    "neg": _neg,
    "abs": _abs,
    "min": _extreme("min", "olt"),
    "max": _extreme("max", "ogt"),
    "sqrt": _intrinsic("sqrt"),
    "fma": _fma,
    "fmod": _fmod,
    "floor": _intrinsic("floor"),
    "ceil": _intrinsic("ceil"),
    "trunc": _intrinsic("trunc"),
    "round": _intrinsic("roundeven"),
    "copysign": _intrinsic("copysign"),
    "nextafter": _nextafter,
    "ldexp": _ldexp,
    "quotient": _division(rest_of=False, down=False),
    "remainder": _division(rest_of=True, down=False),
    "floordiv": _division(rest_of=False, down=True),
    "mod": _division(rest_of=True, down=True),
    "shl": _shl,
    "shr": _shr,
    "mulhi": _mulhi,
    "and": _instruction("", "and"),
    "or": _instruction("", "or"),
    "xor": _instruction("", "xor"),
    "not": _not,
    "lt": _comparison("olt", "lt"),
    "le": _comparison("ole", "le"),
    "gt": _comparison("ogt", "gt"),
    "ge": _comparison("oge", "ge"),
    "eq": _comparison("oeq", "eq"),
    "ne": _comparison("une", "ne"),
}
