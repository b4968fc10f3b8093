"""What is left of large numbers after whole quarter turns, by as many digits of pi as it takes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from straightline.codegen.math.value import Value, choose, constant, fma, mulhi, round_even, select
from straightline.ir.dtypes import f32, f64, i32, i64, u64

TURN = 6.283185307179586
HALF_PI, HALF_PI_LOW = 1.5707963267948966, 6.123233995736766e-17


def _inverse_tangent(inverse: int, one: int) -> int:
    """`one * atan(1 / inverse)`."""
    power = total = one // inverse
    k = 1
    while power:
        power //= -inverse * inverse
        k += 2
        total += power // k
    return total


def inverse_turn(bits: int) -> int:
    """1 / (2 pi) in units of 2**-bits, by Machin's formula."""
    one = 1 << (bits + 64)
    pi = 16 * _inverse_tangent(5, one) - 4 * _inverse_tangent(239, one)
    return (one << bits) // (2 * pi)


def _chunks(shift: int) -> list[float]:
    """2**shift / (2 pi) without its whole part, as three numbers of 29 bits and one of 53."""
    width = 256
    left = (inverse_turn(width + shift)) & ((1 << width) - 1)
    chunks = []
    for end in (31, 60, 89, 142):
        chunk = left >> (width - end)
        left -= chunk << (width - end)
        chunks.append(chunk * 2.0**-end)
    return chunks


# For numbers up to 2**80, and for those above it divided by 2**56.
NEAR, FAR = _chunks(0), _chunks(56)


def reduced_single(a: Value) -> tuple[Value, Value, Value]:
    """(r, n, rest) for any finite `a` of 0 or more in `f32`: n quarter turns, r and a rest.

    Products of `a` with numbers of 29 bits are exact in `f64`, and so are their parts behind the
    point, in turns. Of a large `a`, the digits that make whole turns of it are left out beforehand.
    """
    huge = a > 2.0**80
    y = a.to(f64) * choose(huge, 2.0**-56, 1.0, f64)
    *parts, last = [y * choose(huge, *pair, f64) for pair in zip(FAR, NEAR, strict=True)]
    first, second, third = (part - round_even(part) for part in parts)
    quarters = round_even((first + second + third) * 4.0)
    turns = fma(quarters, -0.25, first) + second + third + last
    wide = turns * TURN
    r = wide.to(f32)
    return r, quarters.to(i32), (wide - r.to(f64)).to(f32)


def _window(shift: Value, words: Sequence[int], count: int) -> list[Value]:
    """So many words behind the first `shift` bits of `words`, fewer than 1024."""
    chosen = [constant(word, u64) for word in words]
    for step in (8, 4, 2, 1):
        far = (shift & (64 * step)).differs(0)
        chosen = [select(far, chosen[k + step], chosen[k]) for k in range(count + step)]
    by = (shift & 63).to(u64)
    return [(left << by) | ((right >> 1) >> (by ^ 63)) for left, right in pairwise(chosen)]


# The lowest biased exponent that `reduced_double` is for.
LEAST_EXPONENT = 1023 + 30


def _digits(words: int) -> list[int]:
    """2 / pi in words of 64 bits, the first of which, times the unit of a mantissa at the lowest
    exponent, stands for two.
    """
    width = 64 * words
    whole = inverse_turn(width + 2 - (1076 - LEAST_EXPONENT) - 1)
    return [(whole >> (width - 64 * k)) & ((1 << 64) - 1) for k in range(1, words + 1)]


# Enough for the highest exponent.
DIGITS = _digits(19)


def reduced_double(a: Value) -> tuple[Value, Value, Value]:
    """(r, n, rest) for finite `a` of 2**30 or more in `f64`: n quarter turns, r and a rest; n
    modulo 4.

    The mantissa times a window of the digits of 2 / pi, in integers: digits that make multiples of
    four quarter turns lie before the window.
    """
    bits = a.bits
    mantissa = ((bits & ((1 << 52) - 1)) | (1 << 52)).to(u64)
    shift = (bits >> 52) - LEAST_EXPONENT
    high, middle, low = _window(shift, DIGITS, 3)
    product = mantissa * middle
    lower = product + mulhi(mantissa, low)
    carry = select(lower < product, constant(1, u64), 0)
    upper = mantissa * high + mulhi(mantissa, middle) + carry
    n = (upper + (1 << 61)) >> 62
    # The fraction of a quarter turn, from -1/2 to 1/2, in 128 bits: 53, 11 and the rest.
    signed = ((upper << 2) | (lower >> 62)).to(i64)
    first = (signed & -2048).to(f64)
    second = fma((lower << 2).to(f64), 2.0**-64, (signed & 2047).to(f64))
    r = first * (HALF_PI * 2.0**-64)
    rest = fma(first, HALF_PI * 2.0**-64, -r)
    rest = fma(first, HALF_PI_LOW * 2.0**-64, rest)
    rest = fma(second, HALF_PI * 2.0**-64, rest)
    total = r + rest
    return select(a < float("inf"), total, float("nan")), n.to(i64), (r - total) + rest
