"""Powers of two: exponents are made of bits, where no instruction does it."""

from __future__ import annotations

from straightline.codegen.math.value import Value, apply, constant, fma, select

INFINITY = float("inf")


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
    """`x * 2**n`, rounded once, for `x` between 2**-20 and 2 and any result, zero to
    infinite."""
    if has_scale:
        return apply("ldexp", x, n)
    layout = x.layout
    bits = shifted.bits
    half = (bits >> 1) << layout.mantissa
    first = (half + layout.one).as_float
    second = (((bits << layout.mantissa) - half) + layout.one).as_float
    return x * first * second


def ldexp(x: Value, n: Value) -> Value:
    """The operation in three steps, of which only one rounds."""
    layout = x.layout
    # A step down leaves so much that what rounds here is nothing after the next.
    down, up, least = (
        float(2 + layout.mantissa - layout.bias),
        float(layout.bias),
        1.0 - layout.bias,
    )
    finite = apply("floor", n).at_most(3 * up).at_least(2 * down + least)
    left, result = finite, x
    for _ in range(2):
        step = select(left < least, down, left).at_most(up)
        result = result * power_of_two(step + layout.rounder)
        left = left - step
    result = result * power_of_two(left.at_least(least).at_most(up) + layout.rounder)
    result = select(n.equals(n), result, n)
    power = select(n > 0.0, constant(INFINITY, x.dtype), 0.0)
    extreme = select(x.equals(x), x * power, power)
    return select(abs(n).equals(INFINITY), extreme, result)
