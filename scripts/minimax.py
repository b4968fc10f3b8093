"""Coefficients of polynomials that approximate a function best, rounded to the type they are for.

    python scripts/minimax.py --list
    python scripts/minimax.py exp_f32             coefficients, lowest power first, and the error

The error is weighted (mostly relative) and the largest one is made smallest by exchange (Remez) on
a grid dense at the ends. Coefficients are rounded one after the other, lowest power first, and the
rest fitted anew each time, so that the later ones make up for the rounding of the earlier.
"""

from __future__ import annotations

import argparse
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mpmath import mp, mpf

Function = Callable[[mpf], mpf]


@dataclass(frozen=True)
class Problem:
    """`function(x) ~ sum(c * x**power)` on [low, high]; the error counts times `weight(x)`.

    `given` are coefficients that are set beforehand, by power; `digits` are the bits they have.
    """

    function: Function
    weight: Function
    low: float
    high: float
    powers: tuple[int, ...]
    double: bool = False
    given: dict[int, float] = field(default_factory=dict)
    wide: int = 0  # so many of the lowest coefficients stay in double


def rounded(value: mpf, double: bool) -> float:
    return float(value) if double else struct.unpack("f", struct.pack("f", float(value)))[0]


def _grid(low: float, high: float, points: int) -> list[mpf]:
    middle, half = (mpf(low) + high) / 2, (mpf(high) - low) / 2
    return [middle - half * mp.cos(mp.pi * (k + 0.5) / points) for k in range(points)]


def exchange(
    xs: Sequence[mpf], target: Sequence[mpf], weight: Sequence[mpf], powers: Sequence[int]
) -> tuple[list[mpf], mpf]:
    """The coefficients with the least largest weighted error on the points `xs`, and that error."""
    n = len(powers)
    if n == 0:
        return [], max(abs(t * w) for t, w in zip(target, weight, strict=True))
    # Powers from 0 up have one best fit, whose errors alternate; from 1 up only without zero.
    target = [t / x ** powers[0] for t, x in zip(target, xs, strict=True)]
    weight = [w * abs(x) ** powers[0] for w, x in zip(weight, xs, strict=True)]
    basis = [[x ** (p - powers[0]) for p in powers] for x in xs]
    at = [(len(xs) - 1) * k // n for k in range(n + 1)]
    best: tuple[list[mpf], mpf] | None = None
    for _ in range(60):
        rows = [[*basis[i], (-1) ** k / weight[i]] for k, i in enumerate(at)]
        solved = mp.lu_solve(mp.matrix(rows), mp.matrix([target[i] for i in at]))
        coefficients = [solved[k] for k in range(n)]
        errors = [
            w * (t - sum(c * b for c, b in zip(coefficients, row, strict=True)))
            for row, t, w in zip(basis, target, weight, strict=True)
        ]
        largest = max(map(abs, errors))
        if best is None or largest < best[1]:
            best = coefficients, largest
        if largest <= abs(solved[n]) * mpf("1.0001"):
            break
        # One extremum of each run of one sign; of too many the smallest go; signs alternate.
        runs: list[int] = []
        for i, error in enumerate(errors):
            if runs and (errors[runs[-1]] > 0) == (error > 0):
                if abs(error) > abs(errors[runs[-1]]):
                    runs[-1] = i
            else:
                runs.append(i)
        while len(runs) > n + 1:
            sizes = [abs(errors[i]) for i in runs]
            least = min(range(len(runs)), key=sizes.__getitem__)
            if len(runs) == n + 2 or least in (0, len(runs) - 1):
                runs.pop(0 if sizes[0] < sizes[-1] else -1)
            else:
                beside = least - 1 if sizes[least - 1] < sizes[least + 1] else least + 1
                for at_run in sorted((least, beside), reverse=True):
                    runs.pop(at_run)
        if len(runs) < n + 1:
            break
        at = runs
    assert best is not None
    return best


def solve(problem: Problem, points: int = 300) -> tuple[list[float], float]:
    """The rounded coefficients in the order of `powers`, and the largest weighted error."""
    xs = _grid(problem.low, problem.high, points)
    target = [problem.function(x) for x in xs]
    weight = [abs(problem.weight(x)) for x in xs]
    fixed: dict[int, float] = dict(problem.given)
    rest = [t - sum(c * x**p for p, c in fixed.items()) for x, t in zip(xs, target, strict=True)]
    free = [p for p in problem.powers if p not in fixed]
    for count, power in enumerate(list(free)):
        coefficients, _ = exchange(xs, rest, weight, free)
        value = rounded(coefficients[0], problem.double or count < problem.wide)
        fixed[power] = value
        rest = [r - value * x**power for x, r in zip(xs, rest, strict=True)]
        free.remove(power)
    error = max(abs(r * w) for r, w in zip(rest, weight, strict=True))
    return [fixed[p] for p in problem.powers], float(error)


def error(problem: Problem, coefficients: Sequence[float], points: int = 300) -> float:
    """The largest weighted error of these coefficients."""
    worst = mpf(0)
    for x in _grid(problem.low, problem.high, points):
        total = sum(c * x**p for c, p in zip(coefficients, problem.powers, strict=True))
        worst = max(worst, abs((problem.function(x) - total) * problem.weight(x)))
    return float(worst)


# -- the functions of straightline.codegen.math ----------------------------------------------------


def relative(
    whole: Function, part: Function, factor: Function, low: float, high: float, count: int, **more
) -> Problem:
    """`part`, for the relative error of `whole`, which is `factor` times it and something exact."""
    weight = lambda x: factor(x) / whole(x)  # noqa: E731 - as the functions that it is made of
    return Problem(part, weight, low, high, tuple(range(count)), **more)


def odd(function: Function, high: float, count: int, **more) -> Problem:
    """(f(x) / x - 1) / x**2 in x**2, for the relative error of f."""

    def part(z: mpf) -> mpf:
        x = mp.sqrt(z)
        return (function(x) / x - 1) / z

    def factor(z: mpf) -> mpf:
        return z * mp.sqrt(z)

    return relative(lambda z: function(mp.sqrt(z)), part, factor, 0, high**2, count, **more)


def _log1p_rest(f: mpf) -> mpf:
    return (mp.log1p(f) - f) / f**2


def _cos_rest(z: mpf) -> mpf:
    return (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2


def _expm1_rest(r: mpf) -> mpf:
    return (mp.expm1(r) - r) / r**2


def _atanh_part(z: mpf) -> mpf:
    return (2 * mp.atanh(mp.sqrt(z)) / mp.sqrt(z) - 2) / z


def _atanh(high: float, count: int) -> Problem:
    """(2 * atanh(s) / s - 2) / s**2 in s**2, for the relative error of atanh."""

    def whole(z: mpf) -> mpf:
        return 2 * mp.atanh(mp.sqrt(z))

    def factor(z: mpf) -> mpf:
        return z * mp.sqrt(z)

    return relative(whole, _atanh_part, factor, 0, high, count, double=True)


def _erf(end: float, count: int, **more) -> Problem:
    """(-log(1 - erf(a)) / a - 2 / sqrt(pi)) / a, for the relative error of erf."""

    def part(a: mpf) -> mpf:
        return (-mp.log(mp.erfc(a)) / a - 2 / mp.sqrt(mp.pi)) / a

    def weight(a: mpf) -> mpf:
        return a**2 * mp.erfc(a) / mp.erf(a)

    return Problem(part, weight, 1e-9, end, tuple(range(count)), **more)


def _erfcx(q: mpf) -> mpf:
    a = 3 * (1 + q) / (1 - q)
    return mp.exp(a * a) * mp.erfc(a)


def _erfinv(w: mpf) -> mpf:
    x = mp.sqrt(-mp.expm1(-w))
    return mp.erfinv(x) / x


def _lgamma(t: mpf) -> mpf:
    return mp.loggamma(t + 2) / (t * (t + 1))


def _stirling(v: mpf) -> mpf:
    x = 1 / mp.sqrt(v)
    return (mp.loggamma(x) - (x - 0.5) * mp.log(x) + x - mp.log(2 * mp.pi) / 2) * x


def _digamma(v: mpf) -> mpf:
    x = 1 / mp.sqrt(v)
    return (mp.log(x) - 1 / (2 * x) - mp.digamma(x)) * x * x


def _sin_pi(z: mpf) -> mpf:
    return mp.sin(mp.pi * mp.sqrt(z)) / mp.sqrt(z)


def same(function: Function, low: float, high: float, count: int, **more) -> Problem:
    """The function itself, for its relative error."""
    return Problem(function, lambda x: 1 / function(x), low, high, tuple(range(count)), **more)


mp.prec = 500
HALF_LOG_2 = float(mp.log(2) / 2) * 1.0005
QUARTER = float(mp.pi / 4) * 1.0005
LOW_ROOT, HIGH_ROOT = float(mp.sqrt(0.5) - 1) * 1.0001, float(mp.sqrt(2) - 1) * 1.0001
SQUARE = lambda x: x * x  # noqa: E731 - beside its uses
LINEAR = lambda x: x  # noqa: E731
ONES = {0: 1.0, 1: 1.0}

PROBLEMS: dict[str, Problem] = {
    "exp_f32": same(mp.exp, -HALF_LOG_2, HALF_LOG_2, 7, given=ONES),
    "exp_f64": same(mp.exp, -HALF_LOG_2, HALF_LOG_2, 12, double=True, given=ONES),
    "expm1_f32": relative(mp.expm1, _expm1_rest, SQUARE, -HALF_LOG_2, HALF_LOG_2, 5),
    "expm1_f64": relative(mp.expm1, _expm1_rest, SQUARE, -HALF_LOG_2, HALF_LOG_2, 11, double=True),
    "exp2_f32": same(lambda x: mpf(2) ** x, -0.5, 0.5, 7, given={0: 1.0}),
    "exp2_f64": same(lambda x: mpf(2) ** x, -0.5, 0.5, 13, double=True, given={0: 1.0}),
    "tanh_f32": odd(mp.tanh, 0.375, 4),
    "tanh_f64": odd(mp.tanh, 0.375, 9, double=True),
    "sinh_f32": odd(mp.sinh, 1, 4),
    "sinh_f64": odd(mp.sinh, 1, 7, double=True),
    "log1p_narrow_f32": relative(mp.log1p, _log1p_rest, SQUARE, -0.25, 0.5, 9),
    "log1p_root_f32": relative(mp.log1p, _log1p_rest, SQUARE, LOW_ROOT, HIGH_ROOT, 9),
    "log1p_narrow_f64": _atanh(0.0401, 8),
    "log1p_root_f64": _atanh(0.02944, 7),
    "pow_log2_f32": same(
        lambda f: mp.log1p(f) / mp.log(2) / f, LOW_ROOT, HIGH_ROOT, 13, wide=6
    ),
    "pow_atanh_f64": Problem(
        lambda z: (_atanh_part(z) - mpf(2) / 3) / z, SQUARE, 0, 0.02944, tuple(range(9)),
        double=True,
    ),
    "sin_f32": odd(mp.sin, QUARTER, 3),
    "sin_f64": odd(mp.sin, QUARTER, 7, double=True),
    "cos_f32": Problem(_cos_rest, SQUARE, 0, QUARTER**2, tuple(range(3))),
    "cos_f64": Problem(_cos_rest, SQUARE, 0, QUARTER**2, tuple(range(6)), double=True),
    "tan_f32": odd(mp.tan, QUARTER, 7),
    "tan_f64": odd(mp.tan, QUARTER, 15, double=True),
    "atan_f32": odd(mp.atan, 1, 8),
    "atan_f64": odd(mp.atan, 1, 20, double=True),
    "asin_f32": odd(mp.asin, 0.5, 5),
    "asin_f64": odd(mp.asin, 0.5, 12, double=True),
    "erf_f32": _erf(4, 9),
    "erf_f64": _erf(6, 24, double=True),
    "erfc": same(_erfcx, -1, 7.1 / 13.1, 12, double=True),
    "erfc_exp": same(mp.exp, -HALF_LOG_2, HALF_LOG_2, 8, double=True, given={0: 1.0}),
    "erfinv": same(lambda v: _erfinv(v + mpf("2.5")), -2.4999999, 2.5, 11, wide=2),
    "erfinv_near_one": same(
        lambda v: _erfinv((v + 3) ** 2), float(mp.sqrt(5)) - 3.001, float(mp.sqrt(16.7)) - 3, 10,
        wide=2,
    ),
    "lgamma": same(_lgamma, -1, 1, 15, double=True),
    "stirling": Problem(
        _stirling, lambda v: mp.sqrt(v) / mp.loggamma(1 / mp.sqrt(v)), 1e-6, 1 / 9, (0, 1, 2, 3),
        double=True,
    ),
    "digamma": Problem(_digamma, LINEAR, 1e-6, 1 / 36, tuple(range(5)), double=True),
    "sin_pi": same(_sin_pi, 1e-9, 0.25, 7, double=True),
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[*PROBLEMS, []])
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    for name in PROBLEMS if options.list else options.names:
        if options.list:
            print(name)
            continue
        coefficients, off = solve(PROBLEMS[name])
        print(f"{name}: error 2**{float(mp.log(off, 2)):.1f}")
        print("".join(f"    {value!r},\n" for value in coefficients), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
