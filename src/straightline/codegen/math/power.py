"""pow and hypot, which compute in `f64` for `f32`."""

from __future__ import annotations

from straightline.codegen.math.exponential import TABLES
from straightline.codegen.math.logarithm import ROOT, split
from straightline.codegen.math.scale import scaled, whole
from straightline.codegen.math.value import (
    Value,
    apply,
    constant,
    copysign,
    fma,
    polynomial,
    select,
    sqrt,
)
from straightline.ir.dtypes import f32, f64

INFINITY, NAN = float("inf"), float("nan")

# log2(1 + f) / f from sqrt(1/2) to sqrt(2), relative error 2**-34.3: as much as products with
# exponents of up to 150 need. The first six coefficients are for f64, the rest for f32.
LOG2 = (
    1.442695040886576,
    -0.7213475202797585,
    0.48089834871225784,
    -0.36067379029646024,
    0.2885387494914565,
    -0.24044725375211168,
    0.20611311495304108,
    -0.18040411174297333,
    0.15997397899627686,
    -0.14283914864063263,
    0.13400940597057343,
    -0.13602295517921448,
    0.11328747868537903,
    -0.04453853517770767,
)


def _precise_log2(a: Value) -> Value:
    """log2(a) in `f64`, for an `a` of 0 or more in `f32`."""
    e, f = split(a, ROOT[f32])
    wide = f.to(f64)
    tail = polynomial(f, LOG2[6:]).to(f64)
    total = tail
    for coefficient in reversed(LOG2[:6]):
        total = fma(total, wide, coefficient)
    result = fma(total, wide, e.to(f64))
    result = select(a < INFINITY, result, a.to(f64))
    return select(a.equals(0.0), constant(-INFINITY, f64), result)


def _exp2_of_wide(t: Value, has_scale: bool) -> Value:
    """2**t in `f32` of a `t` in `f64`."""
    n, _ = whole(t.at_most(130.0).at_least(-152.0))
    r = (t.at_most(130.0).at_least(-152.0) - n).to(f32)
    n = n.to(f32)
    return scaled(polynomial(r, TABLES[f32].exp2), n, n + n.layout.rounder, has_scale)


def pow_(x: Value, y: Value, has_scale: bool) -> Value:
    a = abs(x)
    # An infinite exponent is like a large one, but that 1 to its power is 1.
    largest = 3.4028234663852886e38
    exponent = y.at_most(largest).at_least(-largest)
    r = _exp2_of_wide(_precise_log2(a) * exponent.to(f64), has_scale)
    half = y * 0.5
    is_whole = apply("floor", y).equals(y)
    is_odd = is_whole & apply("floor", half).differs(half)
    r = copysign(r, select(is_odd, x, 1.0))
    no_root = (x < 0.0) & (x > -INFINITY) & is_whole.negated
    r = select(no_root, NAN, r)
    return select(x.equals(1.0) | y.equals(0.0), 1.0, r)


def hypot(x: Value, y: Value, has_scale: bool) -> Value:
    wide, other = x.to(f64), y.to(f64)
    r = sqrt(fma(wide, wide, other * other)).to(f32)
    return select(abs(x).equals(INFINITY) | abs(y).equals(INFINITY), INFINITY, r)
