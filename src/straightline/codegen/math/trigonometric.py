"""sin, cos and tan: what is left of a quarter turn, and polynomials in that."""

from __future__ import annotations

from straightline.codegen.math.scale import whole
from straightline.codegen.math.value import (
    Value,
    choose,
    fma,
    polynomial,
    round_even,
    select,
)
from straightline.ir.dtypes import f32, f64, i32

TWO_OVER_PI = 0.6366197723675814
TURN = 6.283185307179586

# pi / 2 in three parts; products of the first two with whole numbers up to 2**16 are exact.
HALF_PI = (1.5707960128784180, 3.1391647326017846e-07, 5.3903025299577648e-15)
# Up to here they are good for.
LARGE = 65536.0

# For |r| <= pi / 4: (sin(r) / r - 1) / r**2, relative error of sin 2**-28.0
SIN = (-0.16666655242443085, 0.008332191035151482, -0.00019518598855938762)
# (cos(r) - 1 + r**2 / 2) / r**4, error of cos 2**-33.1
COS = (0.04166664555668831, -0.00138873013202101, 2.4430670237052254e-05)
# (tan(r) / r - 1) / r**2, relative error of tan 2**-29.5
TAN = (
    0.33333349227905273,
    0.13332673907279968,
    0.05405917763710022,
    0.02128450758755207,
    0.010832507163286209,
    9.11543975234963e-05,
    0.004376476630568504,
)


def _chunks(numerator_bits: int) -> tuple[float, ...]:
    """1 / (2 pi) times 2**numerator_bits, without its whole part, as three numbers of 29 bits and
    one of 53: products of the three with numbers of 24 bits are exact in `f64`.
    """
    left = (ONE_TURN << numerator_bits) & ((1 << TURN_BITS) - 1)
    chunks = []
    for end in (31, 60, 89, 142):
        chunk = left >> (TURN_BITS - end)
        left -= chunk << (TURN_BITS - end)
        chunks.append(chunk * 2.0**-end)
    return tuple(chunks)


# 1 / (2 pi), of which so many bits behind the point.
TURN_BITS = 256
ONE_TURN = 0x28BE60DB9391054A7F09D5F47D4D377036D8A5664F10E4107F9458EAF7AEF158


def _reduced_widely(x: Value) -> tuple[Value, Value]:
    """The same for every finite `x`, in turns: whole ones are dropped from exact products.

    Of a large `x` the part of the factor that makes whole turns of it is left out beforehand.
    """
    wide = x.to(f64)
    huge = x > 2.0**80
    y = wide * choose(huge, 2.0**-56, 1.0, f64)
    factors = [
        choose(huge, one, other, f64) for one, other in zip(_chunks(56), _chunks(0), strict=True)
    ]
    *parts, last = [y * factor for factor in factors]
    first, second, third = (part - round_even(part) for part in parts)
    quarters = round_even((first + second + third) * 4.0)
    turns = fma(quarters, -0.25, first) + second + third + last
    return (turns * TURN).to(f32), quarters.to(i32)


def reduced(a: Value) -> tuple[Value, Value, Value]:
    """(r, n, rest) for `a` of 0 or more: `a` is n quarter turns and r; n modulo 4. `rest` is what
    r was rounded by.
    """
    n, shifted = whole(a, TWO_OVER_PI)
    first, second, third = HALF_PI
    before = fma(n, -second, fma(n, -first, a))
    r = fma(n, -third, before)
    rest = fma(n, -third, before - r)
    large = a > LARGE
    wide, quarters = _reduced_widely(a)
    return select(large, wide, r), select(large, quarters, shifted.bits), select(large, 0.0, rest)


def _sin_or_cos(r: Value, n: Value) -> Value:
    """sin(r) for even n, cos(r) for odd ones."""
    z = r * r
    sine = fma(r * z, polynomial(z, SIN), r)
    cosine = fma(z * z, polynomial(z, COS), fma(z, -0.5, 1.0))
    return select((n & 1).differs(0), cosine, sine)


def sin(x: Value, has_scale: bool) -> Value:
    r, n, _ = reduced(abs(x))
    result = _sin_or_cos(r, n).bits
    return (result ^ (((n << 30) ^ x.bits) & -(1 << 31))).as_float


def cos(x: Value, has_scale: bool) -> Value:
    r, n, _ = reduced(abs(x))
    n = n + 1
    return (_sin_or_cos(r, n).bits ^ ((n << 30) & -(1 << 31))).as_float


def tan(x: Value, has_scale: bool) -> Value:
    r, n, rest = reduced(abs(x))
    z = r * r
    rest = fma(r * z, polynomial(z, TAN), rest)
    tangent = r + rest
    # Of the reciprocal, the roundings of the sum and of the quotient are made up for.
    inverse = -1.0 / tangent
    off = fma(inverse, tangent, 1.0)
    off = fma(inverse, (r - tangent) + rest, off)
    odd = (n & 1).differs(0)
    result = select(odd, fma(off, inverse, inverse), tangent).bits
    return (result ^ (x.bits & -(1 << 31))).as_float
