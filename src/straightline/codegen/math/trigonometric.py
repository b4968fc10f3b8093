"""sin, cos and tan: what is left of a quarter turn, and polynomials in that."""

from __future__ import annotations

from dataclasses import dataclass

from straightline.codegen.math.scale import whole
from straightline.codegen.math.turns import reduced_double, reduced_single
from straightline.codegen.math.value import (
    Value,
    fma,
    polynomial,
    select,
)
from straightline.ir.dtypes import f32, f64

TWO_OVER_PI = 0.6366197723675814


@dataclass(frozen=True)
class Table:
    """For |r| <= pi / 4.

    half_pi  three parts whose sum is pi / 2; of a multiple of the first, subtraction is exact
    large    up to here they do
    sin      (sin(r) / r - 1) / r**2
    cos      (cos(r) - 1 + r**2 / 2) / r**4
    tan      (tan(r) / r - 1) / r**2
    """

    half_pi: tuple[float, float, float]
    large: float
    sin: tuple[float, ...]
    cos: tuple[float, ...]
    tan: tuple[float, ...]


TABLES = {
    f32: Table(
        half_pi=(1.5707960128784180, 3.1391647326017846e-07, 5.3903025299577648e-15),
        large=65536.0,
        # relative error of sin 2**-27.9
        sin=(
            -0.16666655242443085,
            0.008332188241183758,
            -0.0001951809535967186,
        ),
        # error of cos 2**-33.1
        cos=(
            0.04166664555668831,
            -0.00138873013202101,
            2.443066841806285e-05,
        ),
        # relative error of tan 2**-29.5
        tan=(
            0.33333349227905273,
            0.13332673907279968,
            0.05405918136239052,
            0.021284468472003937,
            0.010832654312252998,
            9.091801621252671e-05,
            0.00437661400064826,
        ),
    ),
    f64: Table(
        half_pi=(1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33),
        large=2.0**30,
        # relative error of sin 2**-63.2
        sin=(
            -0.16666666666666666,
            0.008333333333333042,
            -0.00019841269840962473,
            2.755731907398548e-06,
            -2.5052070923856514e-08,
            1.6054311742785246e-10,
            -7.389474961192097e-13,
        ),
        # error of cos 2**-64.2
        cos=(
            0.0416666666666666,
            -0.0013888888888874457,
            2.4801587289652858e-05,
            -2.7557314393869265e-07,
            2.0875728111343342e-09,
            -1.1359865039479153e-11,
        ),
        # relative error of tan 2**-59.9
        tan=(
            0.3333333333333338,
            0.13333333333325342,
            0.05396825397290313,
            0.021869488399321565,
            0.008863237922196189,
            0.003592100884391633,
            0.0014560455190030382,
            0.0005888646825942751,
            0.00024375117039703733,
            8.355712566818129e-05,
            6.722824274622365e-05,
            -2.564578226790001e-05,
            4.864928947417217e-05,
            -2.4282199413547712e-05,
            9.801252298271091e-06,
        ),
    ),
}


def reduced(a: Value) -> tuple[Value, Value, Value]:
    """(r, n, rest) for `a` of 0 or more: `a` is n quarter turns and r; n modulo 4. `rest` is what
    r was rounded by.
    """
    table = TABLES[a.dtype]
    n, shifted = whole(a, TWO_OVER_PI)
    first, second, third = table.half_pi
    before = fma(n, -second, fma(n, -first, a))
    r = fma(n, -third, before)
    rest = fma(n, -third, before - r)
    large = a >= table.large
    other = reduced_single(a) if a.dtype is f32 else reduced_double(a)
    here = r, shifted.bits, rest
    r, n, rest = (select(large, wide, near) for wide, near in zip(other, here, strict=True))
    return r, n, rest


def _sin_or_cos(r: Value, n: Value) -> Value:
    """sin(r) for even n, cos(r) for odd ones."""
    table = TABLES[r.dtype]
    z = r * r
    sine = fma(r * z, polynomial(z, table.sin), r)
    cosine = fma(z * z, polynomial(z, table.cos), fma(z, -0.5, 1.0))
    return select((n & 1).differs(0), cosine, sine)


def _with_sign(size: Value, sign: Value) -> Value:
    """`size` with its sign changed where the highest bit of `sign` is set."""
    bits = size.bits
    return (bits ^ (sign & size.layout.integer.lowest)).as_float


def sin(x: Value, has_scale: bool) -> Value:
    r, n, _ = reduced(abs(x))
    half_turns = n << (x.dtype.bits - 2)
    return _with_sign(_sin_or_cos(r, n), half_turns ^ x.bits)


def cos(x: Value, has_scale: bool) -> Value:
    r, n, _ = reduced(abs(x))
    n = n + 1
    return _with_sign(_sin_or_cos(r, n), n << (x.dtype.bits - 2))


def tan(x: Value, has_scale: bool) -> Value:
    r, n, rest = reduced(abs(x))
    z = r * r
    rest = fma(r * z, polynomial(z, TABLES[x.dtype].tan), rest)
    tangent = r + rest
    # Of the reciprocal, the roundings of the sum and of the quotient are made up for.
    inverse = -1.0 / tangent
    off = fma(inverse, tangent, 1.0)
    off = fma(inverse, (r - tangent) + rest, off)
    odd = (n & 1).differs(0)
    return _with_sign(select(odd, fma(off, inverse, inverse), tangent), x.bits)
