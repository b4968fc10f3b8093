"""pow and hypot, which compute in `f64` for `f32`, and in two numbers for `f64`."""

from __future__ import annotations

from straightline.codegen.math.exponential import TABLES
from straightline.codegen.math.logarithm import ROOT, split
from straightline.codegen.math.scale import scaled, whole
from straightline.codegen.math.value import (
    Value,
    apply,
    choose,
    constant,
    copysign,
    fma,
    polynomial,
    select,
    sqrt,
)
from straightline.ir.dtypes import f32, f64

INFINITY, NAN = float("inf"), float("nan")

# log2(1 + f) / f from sqrt(1/2) to sqrt(2), relative error 2**-35.8: as much as products with
# exponents of up to 150 need. The first six coefficients are for f64, the rest for f32.
LOG2 = (
    1.4426950408686854,
    -0.7213475208690835,
    0.48089836140842357,
    -0.3606736747853658,
    0.28853729216811524,
    -0.24045316650105547,
    0.20617540180683136,
    -0.18030062317848206,
    0.15876924991607666,
    -0.14315572381019592,
    0.14475086331367493,
    -0.1428443044424057,
    0.07737182080745697,
)


# Of f64: (2 * atanh(s) / s - 2 - 2/3 * s**2) / s**4 in s**2 for |s| <= 0.1716, relative error of
# atanh 2**-76; 2/3 and 1 / log(2) with what they are rounded by.
ATANH = (
    0.4,
    0.2857142857142689,
    0.22222222222716448,
    0.18181818106037226,
    0.15384622183581836,
    0.1333296002625652,
    0.11777263786214548,
    0.10279025696820472,
    0.12028483784049465,
)
TWO_THIRDS, TWO_THIRDS_LOW = 0.6666666666666666, 3.700743415417188e-17
LOG2_E, LOG2_E_LOW = 1.4426950408889634, 2.0355273740931033e-17


def _log2_single(a: Value) -> Value:
    """log2(a) in `f64` of a positive finite `a` in `f32`."""
    e, f = split(a, ROOT[f32])
    wide = f.to(f64)
    total = polynomial(f, LOG2[6:]).to(f64)
    for coefficient in reversed(LOG2[:6]):
        total = fma(total, wide, coefficient)
    return fma(total, wide, e.to(f64))


def _log2_double(a: Value) -> tuple[Value, Value]:
    """log2(a) of a positive finite `a`, in two numbers with 65 digits."""
    e, f = split(a, ROOT[f64])
    # s = f / (2 + f), z = s**2, each with a correction
    below = f + 2.0
    inverse = 1.0 / below
    s = f * inverse
    s_low = (fma(-s, below, f) - s * (f - (below - 2.0))) * inverse
    z = s * s
    z_low = fma(s, s, -z) + 2.0 * s * s_low
    # v = 2 * atanh(s) / s - 2
    rest = z * z * polynomial(z, ATANH)
    u = z * TWO_THIRDS
    u_low = fma(z, TWO_THIRDS, -u) + fma(z, TWO_THIRDS_LOW, z_low * TWO_THIRDS)
    v, v_low = _sum(u, rest, u_low)
    # log(1 + f) = 2s + s * v
    w = s * v
    w_low = fma(s, v, -w) + fma(s, v_low, s_low * (v + 2.0))
    r, r_low = _sum(s + s, w, w_low)
    t = r * LOG2_E
    t_low = fma(r, LOG2_E, -t) + fma(r, LOG2_E_LOW, r_low * LOG2_E)
    return _sum(e, t, t_low)


def _sum(large: Value, small: Value, low: Value) -> tuple[Value, Value]:
    """The sum, and what it is rounded by; `large` is no less than `small`, or zero."""
    total = large + small
    return total, ((large - total) + small) + low


def _at_ends(a: Value, log: Value) -> Value:
    """`log` of a positive finite `a`, and what it is at the ends."""
    log = select(a < INFINITY, log, a.to(f64))
    return select(a.equals(0.0), constant(-INFINITY, f64), log)


def _power_single(a: Value, y: Value, has_scale: bool) -> Value:
    t = (_at_ends(a, _log2_single(a)) * y.to(f64)).at_most(130.0).at_least(-152.0)
    n, _ = whole(t)
    r = (t - n).to(f32)
    n = n.to(f32)
    return scaled(polynomial(r, TABLES[f32].exp2), n, n + n.layout.rounder, has_scale)


def _power_double(a: Value, y: Value, has_scale: bool) -> Value:
    log, log_low = _log2_double(a)
    log = _at_ends(a, log)
    product = log * y
    low = fma(log, y, -product) + log_low * y
    t = product.at_most(1030.0).at_least(-1080.0)
    n, shifted = whole(t)
    r = (t - n) + select(t.equals(product), low, 0.0)
    return scaled(polynomial(r, TABLES[f64].exp2), n, shifted, has_scale)


def pow_(x: Value, y: Value, has_scale: bool) -> Value:
    a = abs(x)
    # An infinite exponent is like a large one, but that 1 to its power is 1.
    largest = {f32: 3.4028234663852886e38, f64: 1.7976931348623157e308}[x.dtype]
    exponent = y.at_most(largest).at_least(-largest)
    power = _power_single if x.dtype is f32 else _power_double
    r = power(a, exponent, has_scale)
    half = y * 0.5
    is_whole = apply("floor", y).equals(y)
    is_odd = is_whole & apply("floor", half).differs(half)
    r = copysign(r, select(is_odd, x, 1.0))
    no_root = (x < 0.0) & (x > -INFINITY) & is_whole.negated
    r = select(no_root, NAN, r)
    return select(x.equals(1.0) | y.equals(0.0), 1.0, r)


def hypot(x: Value, y: Value, has_scale: bool) -> Value:
    if x.dtype is f32:
        wide, other = x.to(f64), y.to(f64)
        r = sqrt(fma(wide, wide, other * other)).to(f32)
    else:
        r = _scaled_hypot(abs(x), abs(y))
    return select(abs(x).equals(INFINITY) | abs(y).equals(INFINITY), INFINITY, r)


def _scaled_hypot(x: Value, y: Value) -> Value:
    """Of numbers of 0 or more, whose squares may not be finite, or be subnormal."""
    larger = x.at_least(y)
    huge, tiny = larger > 2.0**500, larger < 2.0**-500
    scale = select(huge, 2.0**-600, choose(tiny, 2.0**600, 1.0, f64))
    back = select(huge, 2.0**600, choose(tiny, 2.0**-600, 1.0, f64))
    first, second = larger * scale, x.at_most(y) * scale
    return sqrt(fma(first, first, second * second)) * back
