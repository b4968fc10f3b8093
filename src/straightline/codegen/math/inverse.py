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
            -0.14211003482341766,
            0.10665787756443024,
            -0.07551740109920502,
            0.04320627078413963,
            -0.01636456325650215,
            0.0029198811389505863,
        ),
        # relative error of asin 2**-27.6
        asin=(
            0.16666752099990845,
            0.074953094124794,
            0.04546914994716644,
            0.024184780195355415,
            0.04215829819440842,
        ),
    ),
    f64: Table(
        pi=3.141592653589793,
        pi_low=1.2246467991473532e-16,
        # relative error of atan 2**-57.6
        atan=(
            -0.3333333333333307,
            0.19999999999951754,
            -0.1428571428258832,
            0.11111111007347463,
            -0.09090907007874992,
            0.07692279889643733,
            -0.06666404428491671,
            0.0588052983629073,
            -0.05253526904372015,
            0.047223487950328574,
            -0.04219244795196812,
            0.036643187062814025,
            -0.029905794413837755,
            0.021987140365596042,
            -0.013902640158439995,
            0.007197930504682183,
            -0.002885632736758993,
            0.0008315677315837334,
            -0.00015221289906347415,
            1.3230176775969763e-05,
        ),
        # relative error of asin 2**-55.9
        asin=(
            0.16666666666665408,
            0.07500000000337165,
            0.044642856828198345,
            0.030381959142394145,
            0.022371757919081085,
            0.017359706770514512,
            0.01388521529097397,
            0.012169346875982485,
            0.006527376848751373,
            0.019529942820445317,
            -0.016226950539686397,
            0.03191416435561668,
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
    # pi / 2 - 2 * (z + c), in an order in which only the last sum is large
    quarter, rest = TABLES[x.dtype].pi / 4, TABLES[x.dtype].pi_low / 2
    end = (fma(z, -2.0, quarter) + fma(c, -2.0, rest)) + quarter
    return copysign(select(large, end, z + c), x)


def acos(x: Value, has_scale: bool) -> Value:
    large, z, c = _asin_parts(x)
    r = z + c
    middle = _from_pi(0.5, copysign(r, x))
    # 2r, or pi - 2r of a negative one
    end = select(x < 0.0, _from_pi(1.0, r + r), r + r)
    return select(large, end, middle)
