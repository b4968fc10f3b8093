"""Arithmetic on two operands, with eager's order of operations and places of rounding."""

from __future__ import annotations

import math
from collections.abc import Callable

from straightline.ir.dtypes import DType, b1, computed_in
from straightline.ir.index import ONE
from straightline.ir.nodes import Const, Expr, cast
from straightline.lower import scalar as s
from straightline.lower.builder import Builder, Failure, number_of
from straightline.lower.pointwise import elementwise, named
from straightline.lower.scalar import call, where
from straightline.lower.table import Rule, Table
from straightline.lower.tensor import Coords, Tensor, Unsupported
from straightline.lower.types import Number, Operand

RULES = Table()

ZERO_DIVISION = Failure("RuntimeError", "ZeroDivisionError")


# -- two operands ----------------------------------------------------------------------------------


def exact_second(function: Callable[[Expr, Expr], Expr]) -> Rule:
    """The rule of an operation that takes a second operand without dimensions as it is, not rounded
    to the narrow type of the first.
    """

    def rule(b: Builder, x: Operand, y: Operand) -> Tensor:
        return b.out(lambda coords: function(*second_exact(b, coords, x, y)))

    return rule


def second_exact(b: Builder, coords: Coords, x: Operand, y: Operand) -> tuple[Expr, Expr]:
    return b.read(x, coords, b.dtype), b.read(y, coords, b.dtype, exact=is_narrow(b.dtype))


def stepwise(b: Builder, y: Operand) -> DType:
    """The type that eager rounds to between the steps of a division: that of the result, unless
    the divisor is one number.
    """
    single = not isinstance(y, Tensor) or all(size is ONE for size in y.shape)
    return computed_in(b.dtype) if single else b.dtype


def is_narrow(dtype: DType) -> bool:
    return computed_in(dtype) is not dtype


def product(x: Expr, y: Expr) -> Expr:
    return s.both(x, y) if x.dtype is b1 else s.mul(x, y)


def plus_product(x: Expr, left: Expr, right: Expr) -> Expr:
    """`x + left * right`, in floats with one rounding."""
    if x.dtype is b1:
        return s.either(x, s.both(left, right))
    if x.dtype.is_float:
        return s.fma(left, right, x)
    return s.add(x, s.mul(left, right))


@RULES.rule("add.Tensor", "add.Scalar")
def add(b: Builder, x: Operand, y: Operand, *more: Number, alpha: Number = 1) -> Tensor:
    factor = more[0] if more else alpha

    def function(left: Expr, right: Expr) -> Expr:
        if factor == 1:
            return s.either(left, right) if left.dtype is b1 else s.add(left, right)
        return plus_product(left, b.read(factor, (), b.dtype), right)

    return b.pointwise(function, x, y)


@RULES.rule("sub.Tensor", "sub.Scalar")
def sub(b: Builder, x: Operand, y: Operand, *more: Number, alpha: Number = 1) -> Tensor:
    factor = more[0] if more else alpha

    def function(left: Expr, right: Expr) -> Expr:
        if factor == 1:
            return s.sub(left, right)
        return plus_product(left, s.neg(b.read(factor, (), b.dtype)), right)

    return b.pointwise(function, x, y)


@RULES.rule("rsub.Tensor", "rsub.Scalar")
def rsub(b: Builder, x: Operand, y: Operand, *more: Number, alpha: Number = 1) -> Tensor:
    return sub(b, y, x, alpha=more[0] if more else alpha)


RULES.add(exact_second(product), "mul.Tensor", "mul.Scalar")


@RULES.rule("div.Tensor", "div.Scalar", "true_divide.Tensor")
def div(b: Builder, x: Operand, y: Operand) -> Tensor:
    return exact_second(s.div)(b, x, y)  # type: ignore[return-value] # one result


@RULES.rule("div.Tensor_mode", "div.Scalar_mode")
def div_mode(b: Builder, x: Operand, y: Operand, *, rounding_mode: str | None) -> Tensor:
    match rounding_mode:
        case "floor":
            return floor_divide(b, x, y)
        case "trunc":
            return trunc_divide(b, x, y)
        case _:
            return div(b, x, y)


def trunc_divide(b: Builder, x: Operand, y: Operand) -> Tensor:
    def element(coords: Coords) -> Expr:
        left, right = second_exact(b, coords, x, y)
        if left.dtype.is_float:
            return call("trunc", s.narrow(s.div(left, right), stepwise(b, y)))
        b.require(s.ne(right, 0), ZERO_DIVISION)
        return call("quotient", left, right)

    return b.out(element)


@RULES.rule("floor_divide", "floor_divide.Scalar")
def floor_divide(b: Builder, x: Operand, y: Operand) -> Tensor:
    def element(coords: Coords) -> Expr:
        left, right = second_exact(b, coords, x, y)
        if left.dtype.is_float:
            return floored_quotient(left, right, stepwise(b, y))
        b.require(s.ne(right, 0), ZERO_DIVISION)
        return call("floordiv", left, right)

    return b.out(element)


def floored_quotient(x: Expr, y: Expr, dtype: DType) -> Expr:
    """As Python's `//` on floats: exact where rounding `x / y` down would not be. Each step is
    rounded to `dtype`.
    """

    def step(value: Expr) -> Expr:
        return s.narrow(value, dtype)

    rest = step(call("fmod", x, y))
    quotient = step(s.div(step(s.sub(x, rest)), y))
    other_sign = s.both(s.ne(rest, 0.0), s.ne(s.lt(y, 0.0), s.lt(rest, 0.0)))
    quotient = where(other_sign, step(s.sub(quotient, 1.0)), quotient)
    floor = call("floor", quotient)
    floor = where(s.gt(step(s.sub(quotient, floor)), 0.5), step(s.add(floor, 1.0)), floor)
    plain = step(s.div(x, y))
    zero = call("copysign", 0.0, plain)
    return where(s.eq(y, 0.0), plain, where(s.eq(quotient, 0.0), zero, floor))


@RULES.rule("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(b: Builder, x: Operand, y: Operand) -> Tensor:
    """With the sign of the divisor."""

    def function(left: Expr, right: Expr) -> Expr:
        if not left.dtype.is_float:
            b.require(s.ne(right, 0), ZERO_DIVISION)
            return call("mod", left, right)
        rest = call("fmod", left, right)
        other_sign = s.both(s.ne(rest, 0.0), s.ne(s.lt(right, 0.0), s.lt(rest, 0.0)))
        return where(other_sign, s.add(rest, right), rest)

    return b.pointwise(function, x, y)


@RULES.rule("fmod.Tensor", "fmod.Scalar")
def fmod(b: Builder, x: Operand, y: Operand) -> Tensor:
    """With the sign of the dividend."""

    def function(left: Expr, right: Expr) -> Expr:
        if left.dtype.is_float:
            return call("fmod", left, right)
        b.require(s.ne(right, 0), ZERO_DIVISION)
        return call("remainder", left, right)

    return b.pointwise(function, x, y)


for _name in ("atan2", "hypot"):
    RULES.add(elementwise(named(_name)), _name)
RULES.add(elementwise(named("copysign")), "copysign.Tensor", "copysign.Scalar")


@RULES.rule("nextafter")
def nextafter(b: Builder, x: Tensor, y: Tensor) -> Tensor:
    if is_narrow(b.dtype):
        raise Unsupported("the neighbour of a number in a narrow type")
    return b.pointwise(named("nextafter"), x, y)


def truth_or(x: Expr, y: Expr) -> Expr:
    return s.either(x, y) if x.dtype is b1 else s.maximum(x, y)


def truth_and(x: Expr, y: Expr) -> Expr:
    return s.both(x, y) if x.dtype is b1 else s.minimum(x, y)


RULES.add(elementwise(truth_or), "maximum")
RULES.add(elementwise(truth_and), "minimum")


@RULES.rule("fmax")
def fmax(b: Builder, x: Tensor, y: Tensor) -> Tensor:
    """The other operand where one is NaN."""
    return b.pointwise(lambda a, c: _other_where_nan(a, c, truth_or), x, y)


@RULES.rule("fmin")
def fmin(b: Builder, x: Tensor, y: Tensor) -> Tensor:
    return b.pointwise(lambda a, c: _other_where_nan(a, c, truth_and), x, y)


def _other_where_nan(x: Expr, y: Expr, function: Callable[[Expr, Expr], Expr]) -> Expr:
    return where(s.is_nan(x), y, where(s.is_nan(y), x, function(y, x)))


@RULES.rule("heaviside")
def heaviside(b: Builder, x: Tensor, values: Tensor) -> Tensor:
    def function(v: Expr, at_zero: Expr) -> Expr:
        return where(s.eq(v, 0), at_zero, cast(s.gt(v, 0), v.dtype))

    return b.pointwise(function, x, values)


def xlogy(log: Callable[[Expr], Expr]) -> Rule:
    def rule(b: Builder, x: Operand, y: Operand) -> Tensor:
        def function(left: Expr, right: Expr) -> Expr:
            product = s.mul(left, s.narrow(log(right), b.dtype))
            return where(s.is_nan(right), math.nan, where(s.eq(left, 0.0), 0.0, product))

        return b.pointwise(function, x, y)

    return rule


RULES.add(xlogy(s.log), "xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other")
RULES.add(
    xlogy(s.log1p), "special_xlog1py", "special_xlog1py.self_scalar", "special_xlog1py.other_scalar"
)


def log_add(exponential: str, factor: float | None) -> Rule:
    def function(x: Expr, y: Expr) -> Expr:
        rest = s.log1p(call(exponential, s.neg(s.absolute(s.sub(x, y)))))
        total = s.add(s.maximum(x, y), rest if factor is None else s.mul(rest, factor))
        return where(s.both(s.eq(x, y), s.eq(s.absolute(x), math.inf)), x, total)

    return elementwise(function)


RULES.add(log_add("exp", None), "logaddexp")
RULES.add(log_add("exp2", 1.0 / math.log(2.0)), "logaddexp2")


# -- powers ----------------------------------------------------------------------------------------


@RULES.rule("pow.Tensor_Scalar")
def pow_scalar(b: Builder, x: Tensor, exponent: Number) -> Tensor:
    dtype = computed_in(b.dtype)
    if not dtype.is_float:
        return b.pointwise(lambda v: integer_power(v, int(number_of(exponent))), x)
    known = number_of(exponent)
    if known == 0:
        return b.out(lambda _: Const(dtype, 1.0))
    if known == 1:
        return b.pointwise(lambda v: v, x)
    special = SPECIAL_POWERS.get(known)
    if special is not None:
        return b.pointwise(special, x)
    rounded = s.rounded(known, b.dtype)
    return b.pointwise(lambda v: call("pow", v, rounded), x)


SPECIAL_POWERS: dict[float, Callable[[Expr], Expr]] = {
    0.5: s.sqrt,
    2.0: lambda x: s.mul(x, x),
    3.0: lambda x: s.mul(s.mul(x, x), x),
    -0.5: lambda x: s.div(1.0, s.sqrt(x)),
    -1.0: lambda x: s.div(1.0, x),
    -2.0: lambda x: s.div(1.0, s.mul(x, x)),
}


def integer_power(x: Expr, exponent: int) -> Expr:
    """By squaring, wrapping as the multiplications do."""
    if exponent < 0:
        raise Unsupported("a negative power of an integer")
    result: Expr | None = None
    while exponent:
        if exponent & 1:
            result = x if result is None else s.mul(result, x)
        exponent >>= 1
        if exponent:
            x = s.mul(x, x)
    return Const(x.dtype, 1) if result is None else result


@RULES.rule("pow.Tensor_Tensor", "pow.Scalar")
def pow_tensor(b: Builder, x: Operand, y: Tensor) -> Tensor:
    if b.dtype.is_float:
        if not isinstance(x, Tensor) and number_of(x) == 1:
            return b.out(lambda _: Const(computed_in(b.dtype), 1.0))
        return b.pointwise(named("pow"), x, y)
    return b.pointwise(power_of_integers, x, y)


def power_of_integers(x: Expr, exponent: Expr) -> Expr:
    """By squaring, with one step for each bit that the exponent may have. Of a negative power stays
    what rounds to an integer: of 1, and of -1.
    """
    dtype = x.dtype
    if dtype is b1:
        return s.either(x, s.invert(exponent))
    result: Expr = Const(dtype, 1)
    base, left = x, exponent
    for bit in range(dtype.bits - dtype.is_signed):
        odd = s.ne(s.both(left, Const(dtype, 1)), 0)
        result = where(odd, s.mul(result, base), result)
        if bit + 1 < dtype.bits - dtype.is_signed:
            base = s.mul(base, base)
            left = call("shr", left, Const(dtype, 1))
    if not dtype.is_signed:
        return result
    even = s.eq(s.both(exponent, Const(dtype, 1)), 0)
    of_minus_one = where(even, Const(dtype, 1), Const(dtype, -1))
    inverse = where(s.eq(x, -1), of_minus_one, cast(s.eq(x, 1), dtype))
    return where(s.lt(exponent, 0), inverse, result)
