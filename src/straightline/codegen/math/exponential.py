"""exp and its kin: `x = n * log(2) + r`, a polynomial in `r`, and a power of two."""

from __future__ import annotations

from dataclasses import dataclass

from straightline.codegen.math.scale import power_of_two, scaled, whole
from straightline.codegen.math.value import Value, copysign, fma, polynomial, select
from straightline.ir.dtypes import f32, f64

LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Table:
    """`log2_high + log2_low` is log(2); |r| <= log(2) / 2.

    exp      of degree `len - 1`: exp(r)
    expm1    (exp(r) - 1 - r) / r**2
    exp2     2**r for |r| <= 1/2
    """

    log2_high: float
    log2_low: float
    exp: tuple[float, ...]
    expm1: tuple[float, ...]
    exp2: tuple[float, ...]
    overflow: float  # exp of it is infinite
    underflow: float  # exp of it is zero
    cosh_overflow: float
    one: float  # from here on, exp(-x) is nothing beside 1, and tanh(x) is 1
    tanh: tuple[float, ...]  # (tanh(a) / a - 1) / a**2 for a < 0.375
    sinh: tuple[float, ...]  # (sinh(a) / a - 1) / a**2 for a < 1


TABLES = {
    f32: Table(
        log2_high=0.693145751953125,
        log2_low=1.4286068203094173e-06,
        # relative error 2**-28.2
        exp=(
            1.0,
            1.0,
            0.4999999403953552,
            0.1666652113199234,
            0.04166826605796814,
            0.008368683978915215,
            0.0013820951571688056,
        ),
        # relative error of exp(r) - 1: 2**-26.1
        expm1=(
            0.4999999701976776,
            0.1666654646396637,
            0.04166743531823158,
            0.00836626160889864,
            0.001387065858580172,
        ),
        # relative error 2**-28.3
        exp2=(
            1.0,
            0.6931471824645996,
            0.24022647738456726,
            0.05550359934568405,
            0.009618505835533142,
            0.0013390806270763278,
            0.00015326468565035611,
        ),
        overflow=88.8,
        underflow=-104.0,
        cosh_overflow=89.5,
        one=17.5,
        # relative error of tanh 2**-29.9
        tanh=(
            -0.3333331346511841,
            0.13331910967826843,
            -0.053653959184885025,
            0.019105499610304832,
        ),
        # relative error of sinh 2**-31.6
        sinh=(
            0.1666666716337204,
            0.00833331048488617,
            0.00019842895562760532,
            2.7822131869470468e-06,
        ),
    ),
    f64: Table(
        log2_high=0.6931471805599453,
        log2_low=2.3190468138462996e-17,
        # relative error 2**-57.9
        exp=(
            1.0,
            1.0,
            0.5000000000000011,
            0.16666666666666458,
            0.041666666666528344,
            0.00833333333347388,
            0.0013888888943876289,
            0.00019841269540554228,
            2.4801492954265168e-05,
            2.7557562127978804e-06,
            2.763028062066095e-07,
            2.5006415453905123e-08,
        ),
        # relative error of exp(r) - 1: 2**-61.6
        expm1=(
            0.5,
            0.16666666666666677,
            0.041666666666666685,
            0.008333333333321761,
            0.0013888888888891116,
            0.0001984126988542657,
            2.4801587286441607e-05,
            2.755724508761108e-06,
            2.7557322366092087e-07,
            2.510870240634839e-08,
            2.0896197493532316e-09,
        ),
        # relative error 2**-59.7
        exp2=(
            1.0,
            0.6931471805599453,
            0.2402265069591007,
            0.055504108664823505,
            0.009618129107629882,
            0.00133335581459799,
            0.00015403530390288806,
            1.5252734235610136e-05,
            1.3215489595486834e-06,
            1.0177898202449727e-07,
            7.0537905132956545e-09,
            4.479076072915291e-10,
            2.733124140303711e-11,
        ),
        overflow=709.8,
        underflow=-745.2,
        cosh_overflow=710.6,
        one=38.0,
        # relative error of tanh 2**-60.9
        tanh=(
            -0.3333333333333329,
            0.133333333333217,
            -0.05396825395679478,
            0.02186948798193151,
            -0.008863220335830162,
            0.003591875665109632,
            -0.0014532377953383,
            0.0005737522468391299,
            -0.0001812059530950739,
        ),
        # relative error of sinh 2**-61.8
        sinh=(
            0.16666666666666669,
            0.008333333333332912,
            0.00019841269841593394,
            2.7557319106768e-06,
            2.5052130995870374e-08,
            1.6056659474777508e-10,
            7.776588190218652e-13,
        ),
    ),
}


def reduced(x: Value, sign: float = 1.0) -> tuple[Value, Value, Value]:
    """(r, n, n in its bits) with `sign * x = n * log(2) + sign * r`."""
    table = TABLES[x.dtype]
    n, shifted = whole(x, sign * LOG2_E)
    r = fma(n, -sign * table.log2_high, x)
    return fma(n, -sign * table.log2_low, r), n, shifted


def _mirrored(coefficients: tuple[float, ...]) -> tuple[float, ...]:
    """Those of the polynomial of -r."""
    return tuple(-c if power % 2 else c for power, c in enumerate(coefficients))


def exp(x: Value, has_scale: bool) -> Value:
    table = TABLES[x.dtype]
    r, n, shifted = reduced(x.at_most(table.overflow).at_least(table.underflow))
    return scaled(polynomial(r, table.exp), n, shifted, has_scale)


def exp_minus(a: Value, has_scale: bool) -> Value:
    """exp(-a) for `a` of 0 or more."""
    table = TABLES[a.dtype]
    r, n, shifted = reduced(a.at_most(-table.underflow), sign=-1.0)
    return scaled(polynomial(r, _mirrored(table.exp)), n, shifted, has_scale)


def exp2(x: Value, has_scale: bool) -> Value:
    table, layout = TABLES[x.dtype], x.layout
    least = 1 - layout.bias - layout.mantissa - 2
    x = x.at_most(layout.bias + 1.0).at_least(float(least))
    n, shifted = whole(x)
    return scaled(polynomial(x - n, table.exp2), n, shifted, has_scale)


def expm1_reduced(r: Value) -> Value:
    """exp(r) - 1 for |r| <= log(2) / 2."""
    return fma(r * r, polynomial(r, TABLES[r.dtype].expm1), r)


def minus_expm1(a: Value) -> Value:
    """1 - exp(-a) for `a` of 0 to 2**(mantissa bits) * log(2)."""
    r, _, shifted = reduced(a, sign=-1.0)
    minus_q = fma(r * r, -polynomial(r, _mirrored(TABLES[a.dtype].expm1)), r)
    power = power_of_two(shifted)
    return fma(minus_q, power, 1.0 - power)


def expm1(x: Value, has_scale: bool) -> Value:
    table = TABLES[x.dtype]
    r, n, shifted = reduced(x.at_most(table.overflow).at_least(-table.one))
    q = expm1_reduced(r)
    # Half of it, for 2**n may be too large; without that where it may be subnormal.
    power = power_of_two(shifted, less=1)
    half = fma(q, power, power - 0.5)
    return copysign(select(n.equals(0.0), q, half + half), x)


def sigmoid(x: Value, has_scale: bool) -> Value:
    e = exp_minus(abs(x), has_scale)
    below = e + 1.0
    result = select(x < 0.0, e, 1.0) / below
    # Without what the sum was rounded by: of small e, the largest of the errors.
    return fma(result, (below - 1.0) - e, result)


def tanh(x: Value, has_scale: bool) -> Value:
    """h / (h + 1) for h = (exp(2|x|) - 1) / 2."""
    table = TABLES[x.dtype]
    a = abs(x).at_most(table.one)
    n, shifted = whole(a, 2 * LOG2_E)
    r = fma(n, -table.log2_high / 2, a)
    r = fma(n, -table.log2_low / 2, r)
    # (exp(2r) - 1) / 2 = r + r**2 * p
    coefficients = tuple(c * 2.0 ** (power + 1) for power, c in enumerate(table.expm1))
    q = fma(r * r, polynomial(r, coefficients), r)
    power = power_of_two(shifted)
    h = fma(q, power, fma(power, 0.5, -0.5))
    # Of small ones the three roundings of the quotient would show.
    square = a * a
    small = fma(a * square, polynomial(square, table.tanh), a)
    return copysign(select(a < 0.375, small, h / (h + 1.0)), x)


def _quarter_exp(a: Value) -> Value:
    """exp(a) / 4 for `a` of 0 or more, which stays finite for longer."""
    table = TABLES[a.dtype]
    r, _, shifted = reduced(a.at_most(table.cosh_overflow))
    return polynomial(r, table.exp) * power_of_two(shifted, less=2)


def sinh(x: Value, has_scale: bool) -> Value:
    """2 * (e - 1 / (16e)) for e = exp(|x|) / 4; below 1, where that cancels, a polynomial."""
    a = abs(x)
    e = _quarter_exp(a)
    e = e - 0.0625 / e
    z = a * a
    small = fma(a * z, polynomial(z, TABLES[x.dtype].sinh), a)
    return copysign(select(a < 1.0, small, e + e), x)


def cosh(x: Value, has_scale: bool) -> Value:
    """2 * (e + 1 / (16e)) for e = exp(|x|) / 4."""
    e = _quarter_exp(abs(x))
    e = e + 0.0625 / e
    return e + e
