"""Operations on one number, element by element, with eager's order of operations in each formula.

Functions on expressions here work in the type that arithmetic happens in: `f32` for the narrow
types, unless eager rounds between.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from straightline.ir.dtypes import DType, b1
from straightline.ir.nodes import Const, Expr, cast
from straightline.lower import scalar as s
from straightline.lower.builder import Builder
from straightline.lower.scalar import call, where
from straightline.lower.table import Rule, Table
from straightline.lower.tensor import Tensor
from straightline.lower.types import Operand

RULES = Table()


def elementwise(function: Callable[..., Expr]) -> Rule:
    """The rule of an operation that computes in the type of its result."""

    def rule(b: Builder, *operands: Operand) -> Tensor:
        return b.pointwise(function, *operands)

    return rule


def named(operation: str) -> Callable[..., Expr]:
    return lambda *x: call(operation, *x)


# -- one operand -----------------------------------------------------------------------------------

for _name in (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "sin", "cos", "tan", "asin",
    "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "erf", "erfc",
    "erfinv", "lgamma", "digamma", "neg",
):  # fmt: skip
    RULES.add(elementwise(named(_name)), _name)
RULES.add(elementwise(named("erfinv")), "special_erfinv")
RULES.add(elementwise(named("digamma")), "special_psi")


def of_floats(function: Callable[[Expr], Expr]) -> Callable[[Expr], Expr]:
    """`function` on floats; integers stay what they are."""
    return lambda x: function(x) if x.dtype.is_float else x


for _name in ("floor", "ceil", "trunc"):
    RULES.add(elementwise(of_floats(named(_name))), _name)
RULES.add(elementwise(of_floats(named("round"))), "round")


@RULES.rule("abs")
def absolute(b: Builder, x: Tensor) -> Tensor:
    unsigned = not (x.dtype.is_float or x.dtype.is_signed)
    return b.pointwise((lambda v: v) if unsigned else s.absolute, x)


RULES.add(elementwise(lambda x: s.div(1.0, x)), "reciprocal")
RULES.add(elementwise(lambda x: s.div(1.0, s.sqrt(x))), "rsqrt")
RULES.add(elementwise(lambda x: s.mul(x, x)), "square")
RULES.add(elementwise(lambda x: s.sub(x, call("trunc", x))), "frac")
RULES.add(elementwise(lambda x: s.mul(x, math.pi / 180.0)), "deg2rad")
RULES.add(elementwise(lambda x: s.mul(x, 180.0 / math.pi)), "rad2deg")


@RULES.rule("round.decimals")
def round_decimals(b: Builder, x: Tensor, *, decimals: int) -> Tensor:
    if not x.dtype.is_float or decimals == 0:
        return b.pointwise(of_floats(named("round")), x)
    ten = 10.0 ** abs(decimals)
    if decimals > 0:
        return b.pointwise(lambda v: s.div(call("round", s.mul(v, ten)), ten), x)
    return b.pointwise(lambda v: s.mul(call("round", s.div(v, ten)), ten), x)


@RULES.rule("sign", "sgn")
def sign(b: Builder, x: Tensor) -> Tensor:
    """Zero for NaN and for zeros of either sign."""

    def function(v: Expr) -> Expr:
        if v.dtype is b1:
            return v
        up = cast(s.gt(v, 0), v.dtype)
        return s.sub(up, cast(s.lt(v, 0), v.dtype)) if v.dtype.is_float or v.dtype.is_signed else up

    return b.pointwise(function, x)


@RULES.rule("signbit")
def signbit(b: Builder, x: Tensor) -> Tensor:
    """The sign of zeros and of NaN too."""

    def function(v: Expr) -> Expr:
        if v.dtype.is_float:
            return s.lt(call("copysign", 1.0, v), 0)
        return s.lt(v, 0) if v.dtype.is_signed else Const(b1, False)

    return b.pointwise(function, x, dtype=x.dtype)


@RULES.rule("logical_not")
def logical_not(b: Builder, x: Tensor) -> Tensor:
    return b.pointwise(lambda v: s.invert(s.truth(v)), x, dtype=x.dtype)


RULES.add(elementwise(s.invert), "bitwise_not")


def predicate(function: Callable[[Expr], Expr]) -> Rule:
    """The rule of a question about one number."""

    def rule(b: Builder, x: Tensor) -> Tensor:
        return b.pointwise(function, x, dtype=x.dtype)

    return rule


def is_infinite(x: Expr) -> Expr:
    return s.eq(s.absolute(x), math.inf) if x.dtype.is_float else Const(b1, False)


RULES.add(predicate(s.is_nan), "isnan")
RULES.add(predicate(is_infinite), "isinf")
RULES.add(
    predicate(lambda x: s.eq(x, math.inf) if x.dtype.is_float else Const(b1, False)), "isposinf"
)
RULES.add(
    predicate(lambda x: s.eq(x, -math.inf) if x.dtype.is_float else Const(b1, False)), "isneginf"
)
RULES.add(
    predicate(lambda x: s.lt(s.absolute(x), math.inf) if x.dtype.is_float else Const(b1, True)),
    "isfinite",
)


@RULES.rule("nan_to_num")
def nan_to_num(
    b: Builder,
    x: Tensor,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Tensor:
    if not x.dtype.is_float:
        return b.pointwise(lambda v: v, x)
    highest = _highest(x.dtype)

    def function(v: Expr) -> Expr:
        top = s.rounded(highest if posinf is None else posinf, x.dtype)
        bottom = s.rounded(-highest if neginf is None else neginf, x.dtype)
        instead = s.rounded(0.0 if nan is None else nan, x.dtype)
        finite = where(s.eq(v, math.inf), top, where(s.eq(v, -math.inf), bottom, v))
        return where(s.is_nan(v), instead, finite)

    return b.pointwise(function, x)


def _highest(dtype: DType) -> float:
    """The largest finite number."""
    import torch

    from straightline.lower.types import TO_TORCH

    return torch.finfo(TO_TORCH[dtype]).max


@RULES.rule("logit")
def logit(b: Builder, x: Tensor, eps: float | None = None) -> Tensor:
    def function(v: Expr) -> Expr:
        if eps is not None and eps >= 0:
            low = s.rounded(eps, b.dtype)
            high = s.rounded(1.0 - low, b.dtype)
            v = where(s.lt(v, low), low, where(s.gt(v, high), high, v))
        odds = s.narrow(s.div(v, s.narrow(s.sub(1.0, v), b.dtype)), b.dtype)
        return where(s.eq(v, 1.0), math.inf, s.log(odds))

    return b.pointwise(function, x)


@RULES.rule("angle")
def angle(b: Builder, x: Tensor) -> Tensor:
    def function(v: Expr) -> Expr:
        return where(s.is_nan(v), v, where(s.lt(v, 0), math.pi, Const(v.dtype, 0.0)))

    return b.pointwise(function, x)


@RULES.rule("sinc")
def sinc(b: Builder, x: Tensor) -> Tensor:
    def function(v: Expr) -> Expr:
        product = s.mul(v, math.pi)
        return where(s.eq(v, 0.0), 1.0, s.div(call("sin", product), product))

    return b.pointwise(function, x)


@RULES.rule("special_entr")
def entropy(b: Builder, x: Tensor) -> Tensor:
    def function(v: Expr) -> Expr:
        negative = where(s.eq(v, 0.0), 0.0, Const(v.dtype, -math.inf))
        return where(s.is_nan(v), v, where(s.gt(v, 0.0), s.mul(s.neg(v), s.log(v)), negative))

    return b.pointwise(function, x)


@RULES.rule("ldexp.Tensor")
def ldexp(b: Builder, x: Tensor, exponent: Tensor) -> Tensor:
    """By a power of two, rounded as eager's own steps are."""

    def function(v: Expr, e: Expr) -> Expr:
        return s.mul(v, s.narrow(call("pow", 2.0, e), b.dtype))

    return b.pointwise(function, x, exponent)
