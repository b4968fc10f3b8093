"""asin, acos, atan and atan2: polynomials, and what they are of larger arguments."""

from __future__ import annotations

from straightline.codegen.math.value import (
    Value,
    choose,
    copysign,
    fma,
    polynomial,
    select,
    sqrt,
)

PI = 3.141592653589793
# (atan(z) / z - 1) / z**2 for |z| <= 1, relative error of atan 2**-25.8
ATAN = (
    -0.33333152532577515,
    0.19993767142295837,
    -0.14211007952690125,
    0.1066582128405571,
    -0.07551833987236023,
    0.043207500129938126,
    -0.01636531949043274,
    0.0029200564604252577,
)
# (asin(z) / z - 1) / z**2 for |z| <= 1/2, relative error of asin 2**-27.6
ASIN = (
    0.16666752099990845,
    0.07495308667421341,
    0.04546930640935898,
    0.024183768779039383,
    0.04216035082936287,
)
# pi as f32 and what that leaves out
PI_HIGH, PI_LOW = 3.1415927410125732, -8.742278000372485e-08


def _atan_inside(z: Value) -> Value:
    square = z * z
    return fma(z * square, polynomial(square, ATAN), z)


def _from(high: float, low: float, r: Value) -> Value:
    """`high + low - r`."""
    return (low - r) + high


def atan(x: Value, has_scale: bool) -> Value:
    a = abs(x)
    steep = a > 1.0
    r = _atan_inside(select(steep, 1.0 / a, a))
    return copysign(select(steep, _from(PI_HIGH / 2, PI_LOW / 2, r), r), x)


def atan2(y: Value, x: Value, has_scale: bool) -> Value:
    """The angle of the point (x, y)."""
    ax, ay = abs(x), abs(y)
    steep = ay > ax
    above, below = select(steep, ax, ay), select(steep, ay, ax)
    # Both zero, or both infinite: the ratio is 0, or 1.
    ratio = select(ax.equals(ay), choose(below.equals(0.0), 0.0, 1.0, x.dtype), above / below)
    r = _atan_inside(ratio)
    r = select(steep, _from(PI_HIGH / 2, PI_LOW / 2, r), r)
    r = select(x.bits < 0, _from(PI_HIGH, PI_LOW, r), r)
    return copysign(r, y)


def _asin_parts(x: Value) -> tuple[Value, Value, Value]:
    """(large, z, c): asin(|x|) is z + c where |x| <= 1/2, and acos(|x|) is twice that where it is
    large.
    """
    a = abs(x)
    large = a > 0.5
    square = select(large, fma(a, -0.5, 0.5), a * a)
    z = select(large, sqrt(square), a)
    return large, z, z * square * polynomial(square, ASIN)


def asin(x: Value, has_scale: bool) -> Value:
    large, z, c = _asin_parts(x)
    end = fma(c, -2.0, PI_LOW / 2) + fma(z, -2.0, PI_HIGH / 2)
    return copysign(select(large, end, z + c), x)


def acos(x: Value, has_scale: bool) -> Value:
    large, z, c = _asin_parts(x)
    r = z + c
    middle = (PI_LOW / 2 - copysign(r, x)) + PI_HIGH / 2
    # 2r, or pi - 2r of a negative one
    end = select(x < 0.0, fma(r, -2.0, PI_LOW) + PI_HIGH, r + r)
    return select(large, end, middle)
