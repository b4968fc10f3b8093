"""erf, erfc and erfinv."""

from __future__ import annotations

from straightline.codegen.math.exponential import minus_expm1
from straightline.codegen.math.value import Value, copysign, fma, polynomial

# g(a) = -log(1 - erf(a)) = a * (FIRST + FIRST_LOW + a * p(a)), so that erf(a) = 1 - exp(-g(a)):
# for 0 <= a <= 4, relative error of erf 2**-30.9
FIRST, FIRST_LOW = 1.128379225730896, -5.8635383379638006e-08
ERF = (
    0.6366198062896729,
    0.10277161002159119,
    -0.019119270145893097,
    -0.00024929200299084187,
    0.0017943152924999595,
    -0.0007367783691734076,
    0.0001657431566854939,
    -2.094531009788625e-05,
    1.1538946864675381e-06,
)


def erf(x: Value, has_scale: bool) -> Value:
    a = abs(x).at_most(4.0)
    g = fma(a, FIRST, a * fma(polynomial(a, ERF), a, FIRST_LOW))
    return copysign(minus_expm1(g), x)
