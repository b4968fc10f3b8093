"""Powers of two: exponents are made of bits, where no instruction does it."""

from __future__ import annotations

from straightline.codegen.math.value import Value, apply, fma, select


def whole(x: Value, per: float | None = None) -> tuple[Value, Value]:
    """`x` (or `x * per`) rounded to a whole number: as a float, and as one with it in its bits."""
    rounder = x.layout.rounder
    shifted = x + rounder if per is None else fma(x, per, rounder)
    return shifted - rounder, shifted


def power_of_two(shifted: Value, less: int = 0) -> Value:
    """`2**(n - less)` for the `n` in the bits of `shifted`, where that is a normal number."""
    layout = shifted.layout
    return ((shifted.bits << layout.mantissa) + (layout.one - (less << layout.mantissa))).as_float


def scaled(x: Value, n: Value, shifted: Value, has_scale: bool) -> Value:
    """`x * 2**n`, rounded once, for `x` between 1/2 and 2 and any result, zero to infinite."""
    if has_scale:
        return apply("ldexp", x, n)
    layout = x.layout
    bits = shifted.bits
    half = (bits >> 1) << layout.mantissa
    first = (half + layout.one).as_float
    second = (((bits << layout.mantissa) - half) + layout.one).as_float
    return x * first * second


def ldexp(x: Value, n: Value) -> Value:
    """`x * 2**n` for all numbers, rounded once: in three steps, of which only one rounds."""
    layout = x.layout
    # A step down leaves room for all digits of what stays above zero after the next.
    low, high = 1 - layout.bias + layout.mantissa + 1, layout.bias
    left = n.at_least(float(2 * low + 1 - layout.bias)).at_most(3.0 * high)
    for _ in range(2):
        small = left < float(1 - layout.bias)
        step = select(small, float(low), left).at_most(float(high))
        x = x * power_of_two(step + layout.rounder)
        left = left - step
    left = left.at_least(float(1 - layout.bias))
    return x * power_of_two(left + layout.rounder)
