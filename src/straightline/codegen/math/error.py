"""erf, and of `f32` erfc and erfinv."""

from __future__ import annotations

from dataclasses import dataclass

from straightline.codegen.math.exponential import LOG2_E, minus_expm1
from straightline.codegen.math.logarithm import LOG_2, finite_log
from straightline.codegen.math.scale import power_of_two, whole
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

INFINITY, NAN = float("inf"), float("nan")


@dataclass(frozen=True)
class Table:
    """g(a) = -log(1 - erf(a)) = a * (first + first_low + a * p(a)) for 0 <= a <= end, so that
    erf(a) = 1 - exp(-g(a)); at the end that is 1.
    """

    first: float
    first_low: float
    p: tuple[float, ...]
    end: float


TABLES = {
    # relative error of erf 2**-30.9
    f32: Table(
        first=1.128379225730896,
        first_low=-5.8635383379638006e-08,
        p=(
            0.6366198062896729,
            0.10277161002159119,
            -0.019119270145893097,
            -0.000249292264925316,
            0.001794316223822534,
            -0.0007367795915342867,
            0.00016574389883317053,
            -2.0945517462678254e-05,
            1.153915604845679e-06,
        ),
        end=4.0,
    ),
    # relative error of erf 2**-57.4
    f64: Table(
        first=1.1283791670955126,
        first_low=1.533545961316588e-17,
        p=(
            0.6366197723675828,
            0.10277260330181967,
            -0.019128447005631006,
            -0.00020919468908073505,
            0.0016962063481056825,
            -0.0005901253848670905,
            2.587806591967129e-05,
            6.449314284408195e-05,
            -2.972637376760298e-05,
            3.410549106839686e-06,
            2.831490650416842e-06,
            -1.738319837825843e-06,
            3.340783816037738e-07,
            1.3848382168368378e-07,
            -1.4235807151079226e-07,
            6.595254801119745e-08,
            -2.1026870563958826e-08,
            5.012571550645361e-09,
            -9.108980680231385e-10,
            1.2520622673456531e-10,
            -1.2647426957982979e-11,
            8.870511695152375e-13,
            -3.8609527374648764e-14,
            7.854147108974596e-16,
        ),
        end=6.0,
    ),
}
# exp(a**2) * erfc(a) in q = (a - 3) / (a + 3) for 0 <= a <= 10.1, relative error 2**-30.7
ERFC = (
    0.17900115112156043,
    -0.32623356134930753,
    0.2456038122515205,
    -0.15011588236271836,
    0.07166558517626945,
    -0.02439321595531422,
    0.004271082259631128,
    0.0007122818027145028,
    -0.00060258403881486,
    3.1040813248280195e-05,
    6.668507983362707e-05,
    5.068323817986848e-06,
)
# exp(r) for |r| <= log(2) / 2 in f64, relative error 2**-34.3
EXP = (
    1.0,
    1.0000000002093126,
    0.500000007736762,
    0.16666665160104974,
    0.0416662717946992,
    0.00833356924278188,
    0.001394595270247188,
    0.00019767652840080045,
)
# erfinv(x) / x in w - 5/2 for w = -log(1 - x**2) <= 5, relative error 2**-28.7; the first two
# coefficients are for f64
ERFINV = (
    1.5014093535131314,
    0.24664028763655385,
    -0.0041773393750190735,
    -0.0012527446961030364,
    0.0002182825846830383,
    -4.961878858011914e-06,
    -3.4345862331974786e-06,
    4.6588280611103983e-07,
    1.8031585113931214e-08,
    -8.772016890645773e-09,
    3.3596569970484325e-10,
)
# the same in sqrt(w) - 3 for larger w, relative error 2**-26.6
ERFINV_NEAR_ONE = (
    2.832976801104628,
    1.001674965998555,
    0.009445293806493282,
    -0.0076372744515538216,
    0.005686903838068247,
    -0.0035974406637251377,
    0.0014853086322545005,
    -5.681480615749024e-05,
    -0.0003097826847806573,
    0.00011581985745579004,
)


def erf(x: Value, has_scale: bool) -> Value:
    table = TABLES[x.dtype]
    a = abs(x).at_most(table.end)
    g = fma(a, table.first, a * fma(polynomial(a, table.p), a, table.first_low))
    return copysign(minus_expm1(g), x)


def erfc(x: Value, has_scale: bool) -> Value:
    """exp(-a**2) times a polynomial for a = |x|, in `f64`, where the square is exact."""
    a = abs(x).at_most(10.1).to(f64)
    square = a * a
    n, shifted = whole(square, -LOG2_E)
    r = fma(n, -LOG_2, -square)
    small = polynomial(r, EXP) * polynomial((a - 3.0) / (a + 3.0), ERFC) * power_of_two(shifted)
    return select(x < 0.0, 2.0 - small, small).to(f32)


def erfinv(x: Value, has_scale: bool) -> Value:
    """x times a polynomial in w = -log(1 - x**2)."""
    w = -finite_log(fma(-x, x, 1.0))
    middle = w < 5.0
    v = select(middle, w - 2.5, sqrt(w) - 3.0)
    rest = select(middle, polynomial(v, ERFINV[2:]), polynomial(v, ERFINV_NEAR_ONE[2:]))
    wide = v.to(f64)
    first, second = (
        choose(middle, *pair, f64) for pair in zip(ERFINV[:2], ERFINV_NEAR_ONE[:2], strict=True)
    )
    result = (fma(fma(rest.to(f64), wide, second), wide, first) * x.to(f64)).to(f32)
    a = abs(x)
    ends = select(a.equals(1.0), copysign(constant(INFINITY, x.dtype), x), NAN)
    return select(a < 1.0, result, ends)
