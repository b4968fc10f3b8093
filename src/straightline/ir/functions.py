"""The functions of `ops` on numpy arrays, near the exact value: part of the interpreter.

They are computed in a wider type and rounded: `f32` in double precision, `f64` in numpy's long
double where that has more bits; the error functions of `f64` are those of the C library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from straightline.ir.arithmetic import MEMORY, Array
from straightline.ir.dtypes import DType, f32


def apply(name: str, dtype: DType, *args: Array) -> Array:
    wide = np.dtype("float64") if dtype is f32 else np.dtype("longdouble")
    return FUNCTIONS[name](*(arg.astype(wide) for arg in args)).astype(MEMORY[dtype])


def _each(function: Callable[[float], float]) -> Callable[[Array], Array]:
    """A function of Python floats, on arrays."""
    on_objects = np.frompyfunc(function, 1, 1)

    def apply(value: Array) -> Array:
        return on_objects(value.astype("float64")).astype(value.dtype)

    return apply


def _sigmoid(value: Array) -> Array:
    small = np.exp(-np.abs(value))
    return np.where(value >= 0, 1 / (1 + small), small / (1 + small))


# B(2k) / 2k, for the asymptotic series of digamma and, over 2k - 1, of lgamma.
_BERNOULLI = (
    (1, 12), (-1, 120), (1, 252), (-1, 240), (1, 132), (-691, 32760), (1, 12), (-3617, 8160),
    (43867, 14364), (-174611, 6600),
)  # fmt: skip


def _pi(value: Array) -> Array:
    return np.arctan(np.ones((), value.dtype)) * 4


def _lgamma(value: Array) -> Array:
    distance = value - np.rint(value)
    pole = (value <= 0) & (distance == 0)
    # gamma(x) gamma(1 - x) = pi / sin(pi x)
    mirrored = value < 0.5
    x = np.where(mirrored, 1 - value, value)
    x = np.where(np.isfinite(x), x, 1)
    below = np.ones_like(x)
    for _ in range(20):
        small = x < 20
        below = np.where(small, below * x, below)
        x = np.where(small, x + 1, x)
    square, series = 1 / (x * x), np.zeros_like(x)
    for k, (top, bottom) in reversed([*enumerate(_BERNOULLI)]):
        series = series * square + np.array(top, x.dtype) / (bottom * (2 * k + 1))
    result = (x - 0.5) * np.log(x) - x + np.log(2 * _pi(x)) / 2 + series / x - np.log(below)
    sine = np.abs(np.sin(_pi(x) * np.where(pole, 0.5, distance).astype(x.dtype)))
    result = np.where(mirrored, np.log(_pi(x) / sine) - result, result)
    result = np.where(pole | np.isinf(value), np.inf, result)
    return np.where(np.isnan(value), value, result).astype(value.dtype)


def _digamma(value: Array) -> Array:
    whole = np.rint(value)
    pole = value == whole
    # psi(x) = psi(1 - x) - pi / tan(pi x), whose tangent wants the distance to the next pole.
    mirrored = value < 0.5
    tangent = np.tan(_pi(value) * np.where(pole, 0.25, value - whole).astype(value.dtype))
    x = np.where(mirrored, 1 - value, value)
    x = np.where(np.isfinite(x) & ~(pole & mirrored), x, 1)
    shift = np.zeros_like(x)
    for _ in range(20):
        small = x < 20
        shift = np.where(small, shift - 1 / x, shift)
        x = np.where(small, x + 1, x)
    square, series = 1 / (x * x), np.zeros_like(x)
    for top, bottom in reversed(_BERNOULLI):
        series = (series + np.array(top, x.dtype) / bottom) * square
    result = np.log(x) - 1 / (2 * x) - series + shift
    result = np.where(mirrored, result - _pi(value) / tangent, result)
    result = np.where(pole & mirrored, np.nan, result)
    result = np.where(value == 0, np.copysign(np.inf, -value), result)
    result = np.where(value == np.inf, np.inf, result)
    return np.where((value == -np.inf) | np.isnan(value), np.nan, result).astype(value.dtype)


_erf, _erfc = _each(math.erf), _each(math.erfc)


def _erfinv(value: Array) -> Array:
    """Winitzki's estimate, made exact by Halley steps on whichever of erf and erfc is small."""
    size = np.abs(value)
    inside = size < 1
    x = np.where(inside, size, 0.5).astype(value.dtype)
    log = np.log1p(-x * x)
    part = 2 / (np.pi * 0.147) + log / 2
    y = np.sqrt(np.sqrt(part * part - log / 0.147) - part)
    slope = 2 / np.sqrt(_pi(x))
    for _ in range(4):
        off = np.where(x < 0.5, _erf(y) - x, (1 - x) - _erfc(y))
        step = off / (slope * np.exp(-y * y))
        y = y - step / (1 + y * step)
    y = np.where(inside, y, np.where(size == 1, np.inf, np.nan))
    return np.where(value == 0, value, np.copysign(y, value)).astype(value.dtype)


# Operation name -> function of arrays of a wide type.
FUNCTIONS: Mapping[str, Callable[..., Array]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "sigmoid": _sigmoid,
    "erf": _erf,
    "erfc": _erfc,
    "erfinv": _erfinv,
    "lgamma": _lgamma,
    "digamma": _digamma,
    "pow": np.power,
    "atan2": np.arctan2,
    "hypot": np.hypot,
}
