"""log and its kin: `x = 2**e * (1 + f)` with a small `f`, and log(1 + f)."""

from __future__ import annotations

from dataclasses import dataclass

from straightline.codegen.math.value import (
    Value,
    choose,
    constant,
    copysign,
    fma,
    polynomial,
    select,
    sqrt,
)
from straightline.ir.dtypes import f32, f64

LOG_2 = 0.6931471805599453
LOG2_E = 1.4426950408889634
LOG10_E = 0.4342944819032518
LOG10_2 = 0.3010299956639812
INFINITY, NAN = float("inf"), float("nan")


@dataclass(frozen=True)
class Table:
    """`lowest` are the bits of the least 1 + f; the largest is twice that. `log1p` is for f in
    single precision, in double precision for s = f / (2 + f).
    """

    lowest: int
    log1p: tuple[float, ...]


# Where e * log(2) and log(1 + f) cancel most, for arguments a little below `lowest`, the sum has
# lost least with f from -1/4 to 1/2 when log(1 + f) is rounded once (log, log1p), and with f from
# sqrt(1/2) - 1 to sqrt(2) - 1 when it is rounded twice (log2, log10).
NARROW = {
    # (log(1 + f) - f) / f**2: relative error of log(1 + f) 2**-27.6
    f32: Table(
        lowest=0x3F400000,
        log1p=(
            -0.5,
            0.3333345055580139,
            -0.25000110268592834,
            0.19990848004817963,
            -0.1664687693119049,
            0.14477623999118805,
            -0.1316394954919815,
            0.10472632944583893,
            -0.04515313729643822,
        ),
    ),
    # (2 * atanh(s) / s - 2) / s**2: relative error of atanh 2**-62.7
    f64: Table(
        lowest=0x3FE8000000000000,
        log1p=(
            0.666666666666666,
            0.4000000000005668,
            0.28571428555825606,
            0.22222224297029208,
            0.18181665827506158,
            0.15391113964086575,
            0.13173558589681336,
            0.1384335700412906,
        ),
    ),
}
ROOT = {
    # the same: 2**-27.8
    f32: Table(
        lowest=0x3F3504F3,
        log1p=(
            -0.49999988079071045,
            0.33333325386047363,
            -0.25001612305641174,
            0.20002016425132751,
            -0.1660832166671753,
            0.14180441200733185,
            -0.1324845552444458,
            0.129163458943367,
            -0.07622616738080978,
        ),
    ),
    # the same: 2**-59.5
    f64: Table(
        lowest=0x3FE6A09E667F3BCD,
        log1p=(
            0.6666666666666734,
            0.3999999999941695,
            0.2857142874192843,
            0.22222198616730635,
            0.1818356221439523,
            0.15314101271652744,
            0.14795471311294667,
        ),
    ),
}


def rest_of_log1p(f: Value, table: Table) -> Value:
    """log(1 + f) - f."""
    square = f * f
    if f.dtype is f32:
        return square * polynomial(f, table.log1p)
    # log(1 + f) = 2 * atanh(s) for s = f / (2 + f), written so that f itself is not rounded.
    s = f / (f + 2.0)
    z = s * s
    half = square * 0.5
    return s * fma(z, polynomial(z, table.log1p), half) - half


def log1p_reduced(f: Value, table: Table) -> Value:
    if f.dtype is f32:
        return fma(f * f, polynomial(f, table.log1p), f)
    return f + rest_of_log1p(f, table)


def split(x: Value, table: Table) -> tuple[Value, Value]:
    """(e, f) with `x = 2**e * (1 + f)`, for positive finite `x`."""
    layout = x.layout
    unit = float(1 << layout.mantissa)
    subnormal = x < layout.smallest_normal
    bits = select(subnormal, x * unit, x).bits
    raised = (bits - table.lowest) & -(1 << layout.mantissa)
    f = (bits - raised).as_float - 1.0
    less = choose(subnormal, -float(layout.mantissa), 0.0, x.dtype)
    return fma(raised.to(x.dtype), 1.0 / unit, less), f


def _at_edges(x: Value, result: Value, pole: float) -> Value:
    """`result` for finite `x > pole`; at the pole minus infinity, and NaN below it."""
    result = select(x < INFINITY, result, x)
    below = select(x.equals(pole), constant(-INFINITY, x.dtype), NAN)
    return select(x <= pole, below, result)


def finite_log(x: Value) -> Value:
    """log(x) for positive finite x."""
    table = NARROW[x.dtype]
    e, f = split(x, table)
    return fma(e, LOG_2, log1p_reduced(f, table))


def log(x: Value, has_scale: bool) -> Value:
    return _at_edges(x, finite_log(x), 0.0)


def log2(x: Value, has_scale: bool) -> Value:
    table = ROOT[x.dtype]
    e, f = split(x, table)
    return _at_edges(x, e + fma(f, LOG2_E, rest_of_log1p(f, table) * LOG2_E), 0.0)


def log10(x: Value, has_scale: bool) -> Value:
    table = ROOT[x.dtype]
    e, f = split(x, table)
    r = fma(f, LOG10_E, rest_of_log1p(f, table) * LOG10_E)
    return _at_edges(x, fma(e, LOG10_2, r), 0.0)


def finite_log1p(x: Value, low: Value | None = None) -> Value:
    """log(1 + x + low) for finite x > -1, and a `low` of what x is rounded by; of either zero, zero
    of either sign.
    """
    layout, table = x.layout, NARROW[x.dtype]
    unit = 1 << layout.mantissa
    raised = ((x + 1.0).bits - table.lowest) & -unit
    # f = x / 2**e + (1 / 2**e - 1); 1 / 2**e may be subnormal, four times that is not.
    down = ((layout.one + 2 * unit) - raised).as_float
    f = (x.bits - raised).as_float + fma(down, 0.25, -1.0)
    if low is None:
        r = log1p_reduced(f, table)
    else:
        r = f + (rest_of_log1p(f, table) + low * (down * 0.25))
    return fma(raised.to(x.dtype), LOG_2 / unit, r)


def log1p(x: Value, has_scale: bool) -> Value:
    return _at_edges(x, copysign(finite_log1p(x), x), -1.0)


def _log1p_of_sum(large: Value, small: Value, huge: Value, instead: Value) -> Value:
    """log(1 + large + small); where that is `huge`, the log of twice what is there `instead`."""
    total = large + small
    low = select(huge, 0.0, (large - total) + small)
    r = finite_log1p(select(huge, instead, total), low)
    return r + choose(huge, LOG_2, 0.0, total.dtype)


def asinh(x: Value, has_scale: bool) -> Value:
    """log(1 + a + (sqrt(a**2 + 1) - 1)) for a = |x|; of huge ones, log(2a)."""
    a = abs(x)
    square = a * a
    huge = a > 2.0 ** (x.layout.mantissa + 5)
    r = _log1p_of_sum(a, square / (sqrt(square + 1.0) + 1.0), huge, a)
    return copysign(select(a < INFINITY, r, a), x)


def acosh(x: Value, has_scale: bool) -> Value:
    """log(1 + sqrt(2t + t**2) + t) for t = x - 1; of huge ones, log(2x)."""
    t = x - 1.0
    huge = x > 2.0 ** (x.layout.mantissa + 5)
    r = _log1p_of_sum(sqrt(fma(t, t, t + t)), t, huge, x)
    return select(x < 1.0, NAN, select(x < INFINITY, r, x))


def atanh(x: Value, has_scale: bool) -> Value:
    """log(1 + 2a + 2a * a / (1 - a)) / 2 for a = |x|."""
    a = abs(x)
    twice = a + a
    r = finite_log1p(twice + twice * a / (1.0 - a)) * 0.5
    r = select(a < 1.0, r, select(a.equals(1.0), constant(INFINITY, x.dtype), NAN))
    return copysign(r, x)
