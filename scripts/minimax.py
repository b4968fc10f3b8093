"""Coefficients of polynomials that approximate a function best, rounded to the type they are for.

    python scripts/minimax.py --list
    python scripts/minimax.py exp                 coefficients, lowest power first, and the error

The error is weighted (mostly relative) and the largest one is made smallest by exchange (Remez) on
a grid dense at the ends. Coefficients are rounded one after the other, lowest power first, and the
rest fitted anew each time, so that the later ones make up for the rounding of the earlier.
"""

from __future__ import annotations

import struct
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


def solve(problem: Problem, points: int = 600) -> tuple[list[float], float]:
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
