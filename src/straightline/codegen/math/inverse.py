"""asin, acos, atan and atan2: polynomials, and what they are of larger arguments."""

from __future__ import annotations

from dataclasses import dataclass

from straightline.codegen.math.value import (
    Value,
    choose,
    copysign,
    fma,
    polynomial,
    select,
    sqrt,
)
from straightline.ir.dtypes import f32, f64


@dataclass(frozen=True)
class Table:
    """`pi + pi_low` is pi.

    atan  (atan(z) / z - 1) / z**2 for |z| <= 1
    asin  (asin(z) / z - 1) / z**2 for |z| <= 1/2
    """

    pi: float
    pi_low: float
    atan: tuple[float, ...]
    asin: tuple[float, ...]


TABLES = {
    f32: Table(
        pi=3.1415927410125732,
        pi_low=-8.742278000372485e-08,
        # relative error of atan 2**-25.8
        atan=(
            -0.33333152532577515,
            0.19993767142295837,
            -0.14211007952690125,
            0.1066582128405571,
            -0.07551833987236023,
            0.043207500129938126,
            -0.01636531949043274,
            0.0029200564604252577,
        ),
        # relative error of asin 2**-27.6
        asin=(
            0.16666752099990845,
            0.07495308667421341,
            0.04546930640935898,
            0.024183768779039383,
            0.04216035082936287,
        ),
    ),
    f64: Table(
        pi=3.141592653589793,
        pi_low=1.2246467991473532e-16,
        # relative error of atan 2**-55.0
        atan=(
            -0.3333333333333186,
            0.19999999999755053,
            -0.14285714271332203,
            0.11111110678619572,
            -0.09090901232733849,
            0.07692212898276757,
            -0.06665860103345064,
            0.0587730629556252,
            -0.05239226868529013,
            0.04673930526690505,
            -0.04092593171115237,
            0.0340669988780532,
            -0.025825680249370517,
            0.016976874349941426,
            -0.009183661003555199,
            0.003855474732523931,
            -0.0011638822604406155,
            0.0002229786857913521,
            -2.025392066708432e-05,
        ),
        # relative error of asin 2**-55.9
        asin=(
            0.16666666666665403,
            0.07500000000338715,
            0.04464285682680606,
            0.030381959203064655,
            0.022371756402781225,
            0.017359730414909055,
            0.013884975059108616,
            0.012170963381846067,
            0.006520231218281288,
            0.01954988869402246,
            -0.01625882352055007,
            0.03193638308281771,
        ),
    ),
}


def _atan_inside(z: Value) -> Value:
    square = z * z
    return fma(z * square, polynomial(square, TABLES[z.dtype].atan), z)


def _from_pi(times: float, r: Value) -> Value:
    """`times * pi - r`."""
    table = TABLES[r.dtype]
    return (table.pi_low * times - r) + table.pi * times


def atan(x: Value, has_scale: bool) -> Value:
    a = abs(x)
    steep = a > 1.0
    r = _atan_inside(select(steep, 1.0 / a, a))
    return copysign(select(steep, _from_pi(0.5, r), r), x)


def atan2(y: Value, x: Value, has_scale: bool) -> Value:
    """The angle of the point (x, y)."""
    ax, ay = abs(x), abs(y)
    steep = ay > ax
    above, below = select(steep, ax, ay), select(steep, ay, ax)
    # Both zero, or both infinite: the ratio is 0, or 1.
    ratio = select(ax.equals(ay), choose(below.equals(0.0), 0.0, 1.0, x.dtype), above / below)
    r = _atan_inside(ratio)
    r = select(steep, _from_pi(0.5, r), r)
    r = select(x.bits < 0, _from_pi(1.0, r), r)
    return copysign(r, y)


def _asin_parts(x: Value) -> tuple[Value, Value, Value]:
    """(large, z, c): asin(|x|) is z + c where |x| <= 1/2, and acos(|x|) is twice that where it is
    large.
    """
    a = abs(x)
    large = a > 0.5
    square = select(large, fma(a, -0.5, 0.5), a * a)
    z = select(large, sqrt(square), a)
    return large, z, z * square * polynomial(square, TABLES[x.dtype].asin)


def asin(x: Value, has_scale: bool) -> Value:
    large, z, c = _asin_parts(x)
    table = TABLES[x.dtype]
    end = fma(c, -2.0, table.pi_low / 2) + fma(z, -2.0, table.pi / 2)
    return copysign(select(large, end, z + c), x)


def acos(x: Value, has_scale: bool) -> Value:
    large, z, c = _asin_parts(x)
    r = z + c
    middle = _from_pi(0.5, copysign(r, x))
    # 2r, or pi - 2r of a negative one
    end = select(x < 0.0, _from_pi(1.0, r + r), r + r)
    return select(large, end, middle)
