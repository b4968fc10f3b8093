"""Random kernels with memory to run them on.

    kernel, arrays, sizes = random_kernel(seed)
    status = interpret(kernel, arrays, sizes)

They are sound (`verify`), and made so that everything that computes them right gives the same bits
(but for those of a NaN, see `same`): with `functions=False` all operations are exact, and folds of
floats do not depend on the order. Where the status is not zero, memory means nothing.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable

import numpy as np

from straightline.ir.arithmetic import MEMORY, is_nan
from straightline.ir.dtypes import BY_NAME, DType, b1, bf16, f16, f32, f64, i8, i32, i64
from straightline.ir.index import (
    Axis,
    Given,
    Index,
    Indexlike,
    Size,
    add,
    evaluate,
    floordiv,
    index,
    mod,
    mul,
)
from straightline.ir.nodes import (
    Accumulate,
    Buffer,
    Check,
    Const,
    Declare,
    Expr,
    Fold,
    Folded,
    How,
    Kernel,
    Load,
    Loop,
    Position,
    Running,
    Statement,
    Store,
    cast,
    fold_types,
    op,
)
from straightline.ir.ops import COMBINES, OPERATIONS, Operands, Result
from straightline.ir.rewrite import conjunction, map_expressions, replace

STORED = tuple(BY_NAME.values())
COMPUTED = tuple(dtype for dtype in STORED if dtype not in (bf16, f16))
EXACT = [
    operation
    for name, operation in OPERATIONS.items()
    if operation.ulp == 0 and name not in ("cast", "bitcast")
]
FUNCTIONS = [operation for operation in OPERATIONS.values() if operation.ulp]
TAKEN = {
    Operands.FLOAT: [dtype for dtype in COMPUTED if dtype.is_float],
    Operands.INTEGER: [dtype for dtype in COMPUTED if dtype.is_integer],
    Operands.NUMBER: [dtype for dtype in COMPUTED if dtype is not b1],
    Operands.BITS: [dtype for dtype in COMPUTED if not dtype.is_float],
    Operands.ANY: [*COMPUTED],
}
LENGTHS = (1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 33)
FAILED = 17


def same(dtype: DType, left: np.ndarray, right: np.ndarray) -> bool:
    """Whether two memories of that type are the same to the bit; any NaN is like any other."""
    nan = is_nan(left, dtype)
    if not np.array_equal(nan, is_nan(right, dtype)):
        return False
    return bool(left[~nan].tobytes() == right[~nan].tobytes())


def random_kernel(
    seed: int, functions: bool = False
) -> tuple[Kernel, dict[str, np.ndarray], dict[str, int]]:
    """A kernel, memory for each of its buffers, and numbers for its sizes."""
    return _Maker(seed, functions).kernel()


Coords = tuple[Index, ...]


class _Maker:
    def __init__(self, seed: int, functions: bool) -> None:
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.operations = [*EXACT, *(FUNCTIONS if functions else ())]
        self.name = f"kernel_{seed}"
        self.sizes: dict[Size, int] = {}
        self.buffers: list[Buffer] = []
        self.scratch: list[Buffer] = []
        self.outputs: set[str] = set()
        self.arrays: dict[str, np.ndarray] = {}
        self.folds = 0
        self.axes = 0

    def kernel(self) -> tuple[Kernel, dict[str, np.ndarray], dict[str, int]]:
        shapes = [
            self.map, self.flat_map, self.tiles, self.rows, self.columns, self.scan, self.total
        ]  # fmt: skip
        body = self.random.choice(shapes)()
        kernel = Kernel(
            self.name,
            tuple(self.buffers),
            frozenset(self.outputs),
            tuple(self.sizes),
            body,
            tuple(self.scratch),
        )
        return kernel, self.arrays, {size.name: number for size, number in self.sizes.items()}

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    # -- sizes, axes, memory -----------------------------------------------------------------------

    def length(self, low: int = 1) -> Index:
        """An extent: a number, a size, or a multiple of one."""
        number = self.random.choice(LENGTHS)
        if self.chance(0.5):
            return index(number)
        if low == 0 and self.chance(0.1):
            number = 0
        size = Size(f"n{len(self.sizes)}", low, self.random.choice([None, 64, 1000]))
        self.sizes[size] = number
        return mul(size, 2) if self.chance(0.15) else index(size)

    def axis(self, extent: Index) -> Axis:
        self.axes += 1
        return Axis(f"i{self.axes}", extent)

    def number(self, value: Index) -> int:
        return evaluate(value, lambda atom: self.sizes[atom])  # type: ignore[index]

    def buffer(self, dtype: DType, shape: Coords, output: bool = False) -> Buffer:
        """With strides of every kind; an element of an output is at one place."""
        order = [*range(len(shape))]
        if self.chance(0.3):
            self.random.shuffle(order)
        stride = index(self.random.choice([1, 1, 1, 2, 3]))
        strides = [stride] * len(shape)
        for at in reversed(order):
            strides[at] = stride
            stride = mul(stride, add(shape[at], self.random.choice([0, 0, 0, 1])))
        if not output and shape and self.chance(0.15):
            strides[self.random.randrange(len(shape))] = index(0)
        buffer = Buffer(f"{'out' if output else 'in'}{len(self.buffers)}", dtype, shape,
                        tuple(strides))  # fmt: skip
        self.buffers.append(buffer)
        lengths = [self.number(length) for length in shape]
        last = sum((n - 1) * self.number(s) for n, s in zip(lengths, strides, strict=True))
        self.arrays[buffer.name] = self.data(dtype, 0 if 0 in lengths else last + 1)
        if output:
            self.outputs.add(buffer.name)
        return buffer

    def data(self, dtype: DType, count: int) -> np.ndarray:
        memory, rng = MEMORY[dtype], self.numbers
        if dtype is b1:
            return rng.integers(0, 2, count).astype(bool)
        if dtype.is_integer:
            bits = rng.integers(0, 256, count * dtype.bytes, dtype=np.uint8).view(memory)
            small = rng.integers(-4 if dtype.is_signed else 0, 10, count).astype(memory)
            return np.where(rng.random(count) < 0.5, small, bits)
        special = np.array([0.0, -0.0, 1.0, -1.0, 0.5, math.inf, -math.inf, math.nan, 3e38, 1e-40])
        special = special.astype("float32")[rng.integers(0, 10, count)]
        normal = (rng.normal(size=count) * 2.0 ** rng.integers(-3, 6, count)).astype("float32")
        mixed = np.where(rng.random(count) < 0.2, special, normal)
        if dtype is bf16:
            return (mixed.view("uint32") >> 16).astype("uint16")
        with np.errstate(over="ignore"):
            return mixed.astype(memory)

    # -- expressions -------------------------------------------------------------------------------

    def load(self, axes: tuple[Axis, ...], checks: list[Statement]) -> Expr:
        """A load at the position in these loops, or near it; `checks` gets what it needs."""
        chosen = [axis for axis in axes if self.chance(0.8)]
        if self.chance(0.3):
            self.random.shuffle(chosen)
        coords: list[Index] = []
        shape: list[Index] = []
        masks: list[Expr | None] = []
        for axis in chosen:
            coord, length, mask = self.coordinate(axis, axes, checks)
            coords.append(coord)
            shape.append(length)
            masks.append(mask)
        if self.chance(0.1):
            masks.append(op("eq", self.position(axes), Const(i64, 1)))
        mask = functools.reduce(conjunction, masks, None)
        dtype = self.random.choice(STORED)
        value = Load(self.buffer(dtype, tuple(shape)), tuple(coords), mask)
        return cast(value, f32) if dtype in (bf16, f16) else value

    def coordinate(
        self, axis: Axis, axes: tuple[Axis, ...], checks: list[Statement]
    ) -> tuple[Index, Index, Expr | None]:
        """(coordinate, length of its dimension, mask)."""
        here, extent = index(axis), axis.extent
        match self.random.choice(["here"] * 5 + ["shift", "flip", "slice", "step", "gather"]):
            case "shift":
                by = self.random.randint(1, 4)
                return add(here, -by), extent, op("ge", Position(here), Const(i64, by))
            case "flip":
                return add(extent, mul(here, -1), -1), extent, None
            case "slice":
                by = self.random.randint(1, 3)
                return add(here, by), add(extent, by + 1), None
            case "step":
                return mul(here, 2), mul(extent, 2), None
            case "gather":
                return self.gather(axis, checks)
            case _:
                return here, extent, None

    def gather(self, axis: Axis, checks: list[Statement]) -> tuple[Index, Index, Expr | None]:
        length = self.random.choice(LENGTHS)
        ids = self.buffer(self.random.choice([i32, i64]), (axis.extent,))
        memory = self.arrays[ids.name]
        wrong = 0.05 if self.chance(0.15) else 0.0
        memory[:] = self.numbers.integers(0, length, len(memory))
        memory[self.numbers.random(len(memory)) < wrong] = -1
        value = cast(Load(ids, (index(axis),)), i64)
        inside = op("and", op("ge", value, Const(i64, 0)), op("lt", value, Const(i64, length)))
        coord = index(Given(value, 0, length - 1))
        if self.chance(0.5):
            checks.append(Check(inside, FAILED))
            return coord, index(length), None
        return coord, index(length), inside

    def position(self, axes: tuple[Axis, ...]) -> Expr:
        value = index(self.random.randint(-2, 2))
        for axis in axes:
            value = add(value, mul(axis, self.random.choice([0, 1, 1, 2, -1])))
        if axes and self.chance(0.3):
            value = self.random.choice([floordiv, mod])(value, self.random.randint(1, 5))
        return Position(value)

    def constant(self, dtype: DType) -> Const:
        if dtype is b1:
            return Const(b1, self.chance(0.5))
        if dtype.is_integer:
            value = self.random.choice([0, 1, 2, 3, 7, -1, dtype.lowest, dtype.highest])
            return Const(dtype, max(value, dtype.lowest))
        few = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.25, 1024.0, math.inf, -math.inf, math.nan]
        return Const(dtype, self.random.choice(few))

    def of_type(self, pool: list[Expr], dtype: DType) -> Expr:
        fitting = [expr for expr in pool if expr.dtype is dtype]
        if fitting and self.chance(0.8):
            return self.random.choice(fitting)
        if self.chance(0.25):
            return self.constant(dtype)
        made = cast(self.random.choice(pool), dtype)
        pool.append(made)
        return made

    def operation(self, pool: list[Expr]) -> Expr:
        operation = self.random.choice(self.operations)
        if self.chance(0.1):
            dtype = self.random.choice(COMPUTED)
            arms = self.of_type(pool, dtype), self.of_type(pool, dtype)
            return op("select", self.of_type(pool, b1), *arms)
        if self.chance(0.04):
            old, new = self.random.choice([(f32, i32), (i32, f32), (f64, i64), (i64, f64)])
            value = self.of_type(pool, old)
            return op("bitcast", self.no_nan(value) if old.is_float else value, dtype=new)
        dtype = self.random.choice(TAKEN[operation.operands])
        args = [self.of_type(pool, dtype) for _ in range(operation.arity)]
        if operation.name == "copysign":
            args[1] = self.no_nan(args[1])
        assert operation.result is not Result.GIVEN
        return op(operation.name, *args)

    def no_nan(self, value: Expr) -> Expr:
        """The bits of a NaN are not defined, and must not come to be numbers."""
        return op("select", op("eq", value, value), value, Const(value.dtype, 0.0))

    def pool(self, leaves: list[Expr], steps: int) -> list[Expr]:
        pool = leaves or [self.constant(f32)]
        for _ in range(steps):
            pool.append(self.operation(pool))
        return pool

    def leaves(
        self, axes: tuple[Axis, ...], checks: list[Statement], more: list[Expr]
    ) -> list[Expr]:
        loads = [self.load(axes, checks) for _ in range(self.random.randint(1, 3))]
        return [*loads, self.position(axes), self.constant(self.random.choice(COMPUTED)), *more]

    def values(
        self, axes: tuple[Axis, ...], checks: list[Statement], more: list[Expr]
    ) -> list[Expr]:
        return self.pool(self.leaves(axes, checks, more), self.random.randint(2, 14))

    # -- statements --------------------------------------------------------------------------------

    def store(self, coords: Coords, shape: Coords, value: Expr) -> Store:
        dtype = value.dtype
        if dtype is f32 and self.chance(0.3):
            dtype = self.random.choice([bf16, f16])
        mask = None
        if coords and self.chance(0.1):
            mask = op("ne", Position(coords[0]), Const(i64, 1))
        return Store(self.buffer(dtype, shape, output=True), coords, cast(value, dtype), mask)

    def stores(self, axes: tuple[Axis, ...], pool: list[Expr]) -> list[Statement]:
        """The last of what has been computed, and some of the rest."""
        order = [*axes]
        if self.chance(0.3):
            self.random.shuffle(order)
        coords = tuple(index(axis) for axis in order)
        shape = tuple(axis.extent for axis in order)
        values = [pool[-1], *self.random.sample(pool, k=min(len(pool), self.random.randint(0, 2)))]
        return [self.store(coords, shape, value) for value in dict.fromkeys(values)]

    def nest(self, axes: tuple[Axis, ...], hows: list[How], body: list[Statement]) -> Loop:
        made = tuple(body)
        for axis, how in reversed([*zip(axes, hows, strict=True)]):
            made = (Loop(axis, how, made),)
        (loop,) = made
        assert isinstance(loop, Loop)
        return loop

    def hows(self, count: int) -> list[How]:
        """Of a nest of loops that may be run in any order."""
        hows = [How.SERIAL] * count
        if count > 1 or self.chance(0.5):
            hows[0] = How.PARALLEL
        if self.chance(0.8) or count == 1:
            hows[-1] = How.VECTOR
        return hows

    def map(self) -> tuple[Statement, ...]:
        axes = tuple(self.axis(self.length(0)) for _ in range(self.random.randint(1, 3)))
        body: list[Statement] = []
        pool = self.values(axes, body, [])
        body += self.stores(axes, pool)
        return (self.nest(axes, self.hows(len(axes)), body),)

    def flat_map(self) -> tuple[Statement, ...]:
        """One loop over all elements of a matrix."""
        width = self.length()
        height = self.length()
        flat = self.axis(mul(height, width))
        at = (floordiv(flat, width), mod(flat, width))
        body: list[Statement] = []
        pool = self.values((flat,), body, [])
        matrix = Load(self.buffer(f32, (height, width)), at)
        pool = self.pool([*pool, matrix, Position(at[1])], 5)
        body.append(self.store(at, (height, width), pool[-1]))
        body += self.stores((flat,), pool)
        return (self.nest((flat,), [self.random.choice([*How])], body),)

    def tiles(self) -> tuple[Statement, ...]:
        """A loop of whole tiles, inside of another one or not."""
        count, width = self.length(0), self.random.choice([2, 4, 8, 16])
        row, long = self.axis(self.length(0)), self.axis(mul(count, width))
        outer, inner = self.axis(count), self.axis(index(width))
        axes: dict[Axis, Indexlike] = {long: add(mul(outer, width), inner)}
        over = (row, long) if self.chance(0.5) else (long,)
        body: list[Statement] = []
        pool = self.values(over, body, [])
        body += self.stores(over, pool)
        moved = map_expressions(tuple(body), lambda expr: replace(expr, axes), axes)
        nest = (outer, row, inner) if len(over) > 1 else (outer, inner)
        return (self.nest(nest, self.hows(len(nest)), [*moved]),)

    def fold(self, values: list[Expr], at: Axis) -> tuple[Fold, tuple[Expr, ...]]:
        """A fold and a value for it whose order does not show."""
        # That of `logsumexp` is a function.
        names = [name for name in COMBINES if name != "logsumexp"]
        combine = COMBINES[self.random.choice(names)]
        dtype = self.random.choice(TAKEN[combine.operands])
        value = self.of_type(values, dtype)
        if dtype.is_float:
            value = self.orderless(combine.name, value)
        self.folds += 1
        fold = Fold(f"f{self.folds}", combine.name, fold_types(combine.name, dtype))
        if combine.width == 2:
            return fold, (value, Position(index(at)))
        return fold, (value,)

    def orderless(self, combine: str, value: Expr) -> Expr:
        match combine:
            case "sum":
                # Sums of small whole numbers are exact.
                return cast(cast(value, i8), value.dtype)
            case "product":
                one, minus = Const(value.dtype, 1.0), Const(value.dtype, -1.0)
                return op("select", op("lt", value, one), one, minus)
            case _:
                # Of zeros of either sign there is only one left.
                return op("add", value, Const(value.dtype, 0.0))

    def accumulates(
        self, pool: list[Expr], at: Axis, count: int
    ) -> tuple[list[Statement], list[Statement], list[Fold]]:
        """(declarations, accumulations, folds)."""
        made = [self.fold(pool, at) for _ in range(count)]
        mask = self.of_type(pool, b1) if self.chance(0.2) else None
        return (
            [Declare(fold) for fold, _ in made],
            [Accumulate(fold, values, mask) for fold, values in made],
            [fold for fold, _ in made],
        )

    def folded(self, folds: list[Fold], node: Callable[[Fold, int], Expr]) -> list[Expr]:
        return [node(fold, at) for fold in folds for at in range(len(fold.dtypes))]

    def rows(self) -> tuple[Statement, ...]:
        """Several passes over each row, the later ones with what the earlier ones came to."""
        row, width = self.axis(self.length(0)), self.length(0)
        body: list[Statement] = []
        known: list[Expr] = []
        kept: list[Buffer] = []
        for _ in range(self.random.randint(1, 3)):
            column = self.axis(width)
            at = (row, column)
            again = [Load(buffer, (index(column),)) for buffer in kept]
            inside: list[Statement] = []
            pool = self.values(at, inside, [*known, *again])
            declared, taken, folds = self.accumulates(pool, column, self.random.randint(0, 2))
            inside += taken
            if self.chance(0.4):
                value = self.random.choice(pool)
                scratch = Buffer(f"kept{len(kept)}", value.dtype, (width,), (index(1),))
                inside.append(Store(scratch, (index(column),), value))
                self.scratch.append(scratch)
                kept.append(scratch)
            if self.chance(0.5) or not folds:
                inside += self.stores(at, pool)
            body += declared
            body.append(Loop(column, self.random.choice([How.SERIAL, How.VECTOR]), tuple(inside)))
            known += self.folded(folds, Folded)
        pool = self.pool([*known, self.position((row,)), self.constant(f32)], 3)
        body += self.stores((row,), pool)
        return (Loop(row, self.random.choice([How.PARALLEL, How.SERIAL]), tuple(body)),)

    def columns(self) -> tuple[Statement, ...]:
        """Folds down the columns, several columns at a time."""
        column, row = self.axis(self.length(0)), self.axis(self.length(0))
        inside: list[Statement] = []
        pool = self.values((column, row), inside, [])
        declared, taken, folds = self.accumulates(pool, row, self.random.randint(1, 2))
        known = [*self.folded(folds, Folded), self.position((column,))]
        ends = self.stores((column,), self.pool(known, self.random.randint(0, 4)))
        ends += self.stores((column,), self.folded(folds, Folded))
        body = [*declared, Loop(row, How.SERIAL, (*inside, *taken)), *ends]
        return (self.nest((column,), [self.random.choice([How.VECTOR, How.PARALLEL])], body),)

    def scan(self) -> tuple[Statement, ...]:
        """Running folds, along rows or down columns."""
        outer, along = self.axis(self.length(0)), self.axis(self.length(0))
        inside: list[Statement] = []
        pool = self.values((outer, along), inside, [])
        declared, taken, folds = self.accumulates(pool, along, self.random.randint(1, 2))
        running = self.folded(folds, Running)
        ends = self.stores((outer, along), running)
        ends += self.stores((outer, along), self.pool([*running, *pool[:2]], 3))
        body = [*declared, Loop(along, How.SERIAL, (*inside, *taken, *ends))]
        if self.chance(0.5):
            body += self.stores((outer,), self.folded(folds, Folded))
        return (self.nest((outer,), [self.random.choice([How.VECTOR, How.PARALLEL])], body),)

    def total(self) -> tuple[Statement, ...]:
        """Everything folded into one, then a loop with what that is."""
        axes = tuple(self.axis(self.length(0)) for _ in range(self.random.randint(1, 2)))
        inside: list[Statement] = []
        pool = self.values(axes, inside, [])
        declared, taken, folds = self.accumulates(pool, axes[-1], self.random.randint(1, 2))
        hows = [How.SERIAL] * (len(axes) - 1) + [self.random.choice([How.SERIAL, How.VECTOR])]
        if len(axes) > 1:
            # A position is a place among all elements.
            width = axes[-1].extent
            everywhere = Position(add(mul(axes[0], width), axes[1]))
            taken = [
                Accumulate(t.fold, (t.values[0], everywhere), t.mask) if len(t.values) > 1 else t
                for t in taken
                if isinstance(t, Accumulate)
            ]
        known = self.folded(folds, Folded)
        body: list[Statement] = [*declared, self.nest(axes, hows, [*inside, *taken])]
        body += self.stores((), self.pool([*known], self.random.randint(0, 3)))
        if self.chance(0.4):
            after = self.axis(self.length(0))
            checks: list[Statement] = []
            pool = self.values((after,), checks, known)
            checks += self.stores((after,), pool)
            body.append(self.nest((after,), [self.random.choice([*How])], checks))
        return tuple(body)
