"""How far the expanded functions are from the exact value, in units of the last place.

    python scripts/ulp.py --stride 1009                 each function on a sample of all of float32
    python scripts/ulp.py --functions exp,erf --json ulp.json     two of them on all 2**32 values
    python scripts/ulp.py --dtype f64                   against mpmath on random values
    python scripts/ulp.py --against-double              all of float32 against the f64 expansions

The exact value of a float32 function is torch's in float64. Eager's own error stands beside. Exit
status 1 where a function is further off than 2 and than eager, or NaN, infinite or of another sign
than the exact value.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import mpmath
import numpy as np
import torch
from elementwise import compiled

from straightline.codegen.math.expand import expand, supported
from straightline.ir.dtypes import BY_NAME, DType, f32, f64, i32
from straightline.ir.nodes import Buffer, Const, Expr, Load, Op, cast, op, walk
from straightline.ir.ops import OPERATIONS

FUNCTIONS = [name for name, operation in OPERATIONS.items() if operation.ulp]
ARITY = {name: OPERATIONS[name].arity for name in FUNCTIONS}
BAR = 2.0
BATCH = 1 << 20

SPECIAL = [
    *(0.0, 1e-45, 1e-40, 2.0**-126, 1e-30, 1e-7, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 10.0),
    *(88.72, 88.73, 89.415, 103.9, 104.1, 127.0, 128.0, 149.0, 150.0, 1e5, 2.0**24, 2.0**24 + 2),
    *(1e10, 1e20, 2.0**80, 1e30, 3.4028234663852886e38, float("inf")),
]


def operands(name: str, dtype: DType) -> tuple[Load, ...]:
    return tuple(Load(Buffer(f"x{k}", dtype, (), ()), ()) for k in range(ARITY[name]))


def expanded(name: str, dtype: DType, has_scale: bool = False) -> Expr:
    """The expansion of the function on its operands, which are loads."""
    return expand(op(name, *operands(name, dtype)), has_scale)


def machine_code(name: str, dtype: DType, has_scale: bool = False) -> Callable[..., np.ndarray]:
    return compiled(expanded(name, dtype, has_scale), operands(name, dtype))


def operation_count(expr: Expr) -> int:
    return sum(isinstance(node, Op) for node in walk(expr))


def eager(name: str, *args: np.ndarray) -> np.ndarray:
    return getattr(torch, name)(*map(torch.from_numpy, args)).numpy()


def exact(name: str, *args: np.ndarray) -> np.ndarray:
    """In double precision, of float32 operands."""
    with np.errstate(all="ignore"):  # the conversion of signalling NaN
        return eager(name, *(arg.astype(np.float64) for arg in args))


def distance(result: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """In units of the last place of the nearest number; infinite where only one is NaN, or an
    infinite one is not reached.
    """
    with np.errstate(all="ignore"):
        nearest = truth.astype(result.dtype)
        size = np.where(np.isfinite(nearest), np.abs(nearest), np.finfo(result.dtype).max)
        off = np.abs(result.astype(truth.dtype) - truth)
        off = (off / np.spacing(size).astype(truth.dtype)).astype(np.float64)
    equal = (result == nearest) | (np.isnan(result) & np.isnan(nearest))
    return np.where(
        equal, np.where(np.isfinite(off), off, 0.0), np.where(np.isnan(off), np.inf, off)
    )


def wrong_signs(result: np.ndarray, truth: np.ndarray) -> np.ndarray:
    return (np.signbit(result) != np.signbit(truth)) & ~np.isnan(result)


def special(name: str) -> tuple[np.ndarray, ...]:
    """Ends, zeros and limits of either sign, and NaN: of two operands, all pairs."""
    both = np.array([*SPECIAL, *(-value for value in SPECIAL), float("nan")], np.float32)
    grid = np.meshgrid(*[both] * ARITY[name])
    return tuple(np.ascontiguousarray(axis.ravel()) for axis in grid)


def _patterns(stride: int) -> Iterator[tuple[np.ndarray]]:
    for low in range(0, 1 << 32, BATCH * stride):
        bits = np.arange(low, min(low + BATCH * stride, 1 << 32), stride, dtype=np.uint64)
        yield (bits.astype(np.uint32).view(np.float32),)


def _pairs(count: int, seed: int = 0) -> Iterator[tuple[np.ndarray, ...]]:
    """Random bits, numbers around 1, and for powers those whose results are finite."""
    rng = np.random.default_rng(seed)
    for _ in range(-(-count // BATCH)):
        part = BATCH // 4
        bits = rng.integers(0, 1 << 32, (2, part), np.uint64).astype(np.uint32).view(np.float32)
        spread = np.exp2(rng.uniform(-20, 20, part)) * rng.choice([-1, 1], part)
        base = np.exp2(rng.uniform(-1, 1, part)).astype(np.float32)
        exponent = rng.uniform(-150, 150, part) / np.log2(base.astype(np.float64))
        whole = rng.integers(-12, 13, part).astype(np.float64)
        left = [bits[0], spread, base, rng.uniform(-50, 50, part)]
        right = [bits[1], rng.uniform(-10, 10, part), exponent, whole]
        yield tuple(np.concatenate([x.astype("f4") for x in side]) for side in (left, right))


def samples(name: str, stride: int) -> Iterator[tuple[np.ndarray, ...]]:
    """Every `stride`-th bit pattern of float32; of two operands, so many random pairs."""
    return _patterns(stride) if ARITY[name] == 1 else _pairs((1 << 32) // stride)


@dataclass(frozen=True)
class Result:
    """`wrong`: how many results have another sign than they should. `at`: operands, in hex."""

    function: str
    dtype: str
    samples: int
    operations: int
    operations_with_scale: int
    ulp: float
    at: list[str]
    eager_ulp: float
    eager_at: list[str]
    wrong: int

    @property
    def within(self) -> bool:
        return self.ulp <= max(BAR, self.eager_ulp) and not self.wrong


class _Largest:
    def __init__(self) -> None:
        self.ulp, self.at = -1.0, list[str]()

    def see(self, result: np.ndarray, truth: np.ndarray, args: tuple[np.ndarray, ...]) -> None:
        # Where the result is the nearest number there is nothing to measure.
        with np.errstate(all="ignore"):
            apart = np.flatnonzero(result != truth.astype(result.dtype))
        if not apart.size:
            apart = np.zeros(1, int)
        off = distance(result[apart], truth[apart])
        largest = int(off.argmax())
        if off[largest] > self.ulp:
            index = apart[largest]
            self.ulp, self.at = float(off[largest]), [float(arg[index]).hex() for arg in args]


def measure(
    name: str, dtype: DType, batches: Iterator[tuple[np.ndarray, ...]], has_scale: bool = False
) -> Result:
    run = machine_code(name, dtype, has_scale)
    ours, eagers, count, wrong = _Largest(), _Largest(), 0, 0
    for args in batches:
        truth = exact(name, *args) if dtype is f32 else mpmath_exact(name, *args)
        result = run(*args)
        ours.see(result, truth, args)
        eagers.see(eager(name, *args), truth, args)
        wrong += int(wrong_signs(result, truth).sum())
        count += len(args[0])
    return Result(
        name,
        dtype.name,
        count,
        operation_count(expanded(name, dtype)),
        operation_count(expanded(name, dtype, has_scale=True)),
        ours.ulp,
        ours.at,
        eagers.ulp,
        eagers.at,
        wrong,
    )


# -- against our own double precision --------------------------------------------------------------


def off_expression(name: str) -> Expr:
    """The distance of the function in `f32` from the one in `f64`, which is measured itself against
    mpmath: zero where its result is the nearest number, infinite where only one of them is NaN.
    """
    (x,) = operands(name, f32)
    result = expand(op(name, x))
    truth = expand(op(name, cast(x, f64)))
    nearest = cast(truth, f32)
    exponent = op("and", op("bitcast", nearest, dtype=i32), Const(i32, 0x7F800000))
    unit = op("mul", cast(op("bitcast", exponent, dtype=f32), f64), Const(f64, 2.0**-23))
    off = op("abs", op("sub", cast(result, f64), truth))
    off = op("div", off, op("max", unit, Const(f64, 2.0**-149)))
    off = op("select", op("eq", off, off), off, Const(f64, float("inf")))
    both_nan = op("and", op("ne", result, result), op("ne", nearest, nearest))
    equal = op("or", op("eq", result, nearest), both_nan)
    return op("select", equal, Const(f64, 0.0), off)


def all_against_double(name: str) -> tuple[float, float]:
    """The largest distance over all of float32, and where it is."""
    run = compiled(off_expression(name), operands(name, f32))
    out, worst, at = np.empty(BATCH, np.float64), -1.0, 0.0
    for (x,) in _patterns(1):
        largest = int(run(x, out=out).argmax())
        if out[largest] > worst:
            worst, at = float(out[largest]), float(x[largest])
    return worst, at


# -- double precision ------------------------------------------------------------------------------

_MPMATH: dict[str, Callable[..., mpmath.mpf]] = {
    "exp2": lambda x: mpmath.power(2, x),
    "log2": lambda x: mpmath.log(x, 2),
    "log10": mpmath.log10,
    "log1p": mpmath.log1p,
    "expm1": mpmath.expm1,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "lgamma": lambda x: mpmath.re(mpmath.loggamma(x)),
    "pow": mpmath.power,
    **{name: getattr(mpmath, name) for name in ("exp", "log", "sin", "cos", "tan", "tanh", "erf")},
    **{name: getattr(mpmath, name) for name in ("sinh", "cosh", "asin", "acos", "atan", "asinh")},
    **{name: getattr(mpmath, name) for name in ("acosh", "atanh", "erfc", "erfinv", "digamma")},
    **{name: getattr(mpmath, name) for name in ("atan2", "hypot")},
}


def mpmath_exact(name: str, *args: np.ndarray) -> np.ndarray:
    """In numpy's long double: for finite operands other than zero by mpmath, where that gives
    a number other than zero; else what eager gives.
    """
    fallback = eager(name, *args)
    result = fallback.astype(np.longdouble)
    function = _MPMATH[name]
    finite = np.logical_and.reduce([np.isfinite(arg) & (arg != 0) for arg in args])
    with mpmath.workprec(1200 if name in ("sin", "cos", "tan") else 200):
        for index in np.flatnonzero(finite):
            try:
                value = function(*(mpmath.mpf(float(arg[index])) for arg in args))
            except (ValueError, ZeroDivisionError):  # a pole
                continue
            if isinstance(value, mpmath.mpf) and value != 0 and mpmath.isfinite(value):
                high = float(value)
                result[index] = high
                if np.isfinite(high):
                    result[index] += np.longdouble(float(value - high))
    return result


def doubles(name: str, count: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Random bits, moderate numbers, and those where exponentials are finite."""
    rng = np.random.default_rng(seed)
    parts: list[np.ndarray] = []
    for side in range(ARITY[name]):
        part = count // 4
        bits = rng.integers(0, 1 << 64, part, np.uint64).view(np.float64)
        spread = np.exp2(rng.uniform(-60, 60, part)) * rng.choice([-1, 1], part)
        base = np.exp2(rng.uniform(-1, 1, part))
        ends = base if side == 0 else rng.uniform(-1075, 1075, part) / np.log2(parts[0][-part:])
        parts.append(np.concatenate([bits, spread, rng.uniform(-3, 3, part), ends]))
    if ARITY[name] == 1:
        parts[0] = np.concatenate([parts[0], rng.uniform(-750, 750, count // 4)])
    return tuple(parts)


def _print_all_against_double(names: list[str]) -> int:
    worst = 0.0
    for name in names:
        if ARITY[name] == 1 and supported(name, f64):
            off, at = all_against_double(name)
            worst = max(worst, off)
            print(f"{name:8} ulp {off:.3f} [{at.hex()}]", flush=True)
    return 0 if worst <= BAR else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--functions", default="", help="names, with commas between; all of them")
    parser.add_argument("--dtype", choices=("f32", "f64"), default="f32")
    parser.add_argument("--stride", type=int, default=1, help="every so many bit patterns of f32")
    parser.add_argument("--count", type=int, default=20000, help="random numbers of f64")
    parser.add_argument("--scale", action="store_true", help="with ldexp as an instruction")
    parser.add_argument("--against-double", action="store_true", help="see above; f32 alone")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    dtype = BY_NAME[options.dtype]
    names = [name for name in options.functions.split(",") if name] or FUNCTIONS
    if options.against_double:
        return _print_all_against_double(names)
    results = []
    for name in (name for name in names if supported(name, dtype)):
        batches = (
            samples(name, options.stride)
            if dtype is f32
            else iter([doubles(name, options.count), tuple(x.astype("f8") for x in special(name))])
        )
        result = measure(name, dtype, batches, options.scale)
        results.append(result)
        print(
            f"{name:8} {'' if result.within else 'TOO FAR '}ulp {result.ulp:.3f} {result.at}"
            f"  eager {result.eager_ulp:.3f} {result.eager_at}  wrong signs {result.wrong}"
            f"  operations {result.operations} ({result.operations_with_scale})",
            flush=True,
        )
        if options.json:
            options.json.write_text(json.dumps([asdict(each) for each in results], indent=1) + "\n")
    return 0 if all(result.within for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
