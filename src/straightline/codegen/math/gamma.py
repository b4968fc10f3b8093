"""lgamma and digamma of `f32`, computed in `f64`."""

from __future__ import annotations

from straightline.codegen.math.logarithm import finite_log
from straightline.codegen.math.value import (
    Value,
    constant,
    copysign,
    fma,
    polynomial,
    round_even,
    select,
)
from straightline.ir.dtypes import f32, f64

INFINITY, NAN = float("inf"), float("nan")
PI = 3.141592653589793
LOG_PI = 1.1447298858494002
HALF_LOG_TURN = 0.9189385332046728  # log(2 pi) / 2

# lgamma(2 + t) / (t * (1 + t)) for -1 <= t <= 1, relative error 2**-31.4
LGAMMA = (
    0.42278433506222923,
    -0.10031730378005392,
    0.032965005176450936,
    -0.012384115155296478,
    0.0049985476456438,
    -0.0021089413239878748,
    0.0009161036972273736,
    -0.00040198360355138185,
    0.00017980658886765377,
    -9.173248471079022e-05,
    4.370598139814083e-05,
    -7.283711792630766e-06,
    2.249184740787311e-06,
    -9.677091226410322e-06,
    4.874214190453191e-06,
)
# x * (lgamma(x) - (x - 1/2) * log(x) + x - log(2 pi) / 2) in 1 / x**2 for x >= 3: 2**-34.9
STIRLING = (
    0.08333332448191723,
    -0.002777131638065507,
    0.0007775513860117822,
    -0.0004204220771582507,
)
# (log(x) - 1 / (2x) - digamma(x)) * x**2 in 1 / x**2 for x >= 6: 2**-47.9
DIGAMMA = (
    0.08333333332711217,
    -0.008333330104174745,
    0.0039677069291560564,
    -0.004125741404487435,
    0.006141792070733904,
)
# sin(pi d) / d in d**2 for |d| <= 1/2, relative error 2**-43.9
SIN_PI = (
    3.141592653589597,
    -5.167712779977244,
    2.550164035416018,
    -0.599264425676314,
    0.08214473163270712,
    -0.007363783221702169,
    0.0004471977622997316,
)


def _distance(x: Value) -> Value:
    """How far it is to the nearest whole number."""
    return x - round_even(x)


def lgamma(x: Value, has_scale: bool) -> Value:
    a = abs(x).to(f64)
    log = finite_log(a)
    # Up to 3 a polynomial, of what is below 1 by the next but one; the series above.
    low = a < 1.0
    t = select(low, a + 1.0, a) - 2.0
    small = t * (t + 1.0) * polynomial(t, LGAMMA) + select(low, -log, 0.0)
    inverse = 1.0 / a
    series = fma(inverse, polynomial(inverse * inverse, STIRLING), HALF_LOG_TURN)
    large = fma(a - 0.5, log, series - a)
    result = select(a < 3.0, small, large)
    # gamma(x) * gamma(-x) = -pi / (x * sin(pi * x))
    d = _distance(a)
    sine = abs(d) * polynomial(d * d, SIN_PI)
    mirrored = LOG_PI - finite_log(a * sine) - result
    result = select(x < 0.0, mirrored, result).to(f32)
    # Whole numbers of 0 and less, and infinity of either sign.
    pole = (x <= 0.0) & d.to(f32).equals(0.0)
    return select(pole | abs(x).equals(INFINITY), INFINITY, select(x.equals(x), result, x))


def digamma(x: Value, has_scale: bool) -> Value:
    wide = x.to(f64)
    mirrored = x < 0.5
    z = select(mirrored, 1.0 - wide, wide)
    # The sum of 1 / (z + k) for k below 6, as one fraction.
    near = z < 6.0
    product, slope = z, constant(1.0, f64)
    for k in range(1, 6):
        factor = z + float(k)
        slope = fma(slope, factor, product)
        product = product * factor
    shift = select(near, slope / product, 0.0)
    z = select(near, z + 6.0, z)
    inverse = 1.0 / z
    square = inverse * inverse
    result = finite_log(z) - fma(inverse, 0.5, square * polynomial(square, DIGAMMA)) - shift
    # digamma(x) = digamma(1 - x) - pi / tan(pi * x)
    d = _distance(wide)
    square = d * d
    sine = d * polynomial(square, SIN_PI)
    half = 0.5 - abs(d)
    cosine = half * polynomial(half * half, SIN_PI)
    result = select(mirrored, result - PI * cosine / sine, result).to(f32)
    result = select((x < 0.0) & d.to(f32).equals(0.0), NAN, result)
    result = select(x.equals(0.0), copysign(constant(INFINITY, f32), -x), result)
    return select(x.equals(INFINITY), INFINITY, result)
