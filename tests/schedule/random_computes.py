"""Random programs of computes, and what running them one after the other gives."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np

from straightline.ir.dtypes import DType, b1, f32, i64
from straightline.ir.index import ZERO, Axis, Index, add, floordiv, index, mod, mul, product
from straightline.ir.interpret import interpret, interpret_compute
from straightline.ir.nodes import (
    Buffer,
    Compute,
    Const,
    Expr,
    Kernel,
    Load,
    Position,
    Require,
    cast,
    fold_types,
    op,
)
from straightline.schedule.program import External, Program, Step

Arrays = dict[str, np.ndarray]
NUMPY = {f32: np.float32, i64: np.int64, b1: np.bool_}
SIZES = (1, 1, 2, 3, 5, 8, 16, 21)


def buffer(name: str, shape: tuple[int, ...], dtype: DType, rng: random.Random) -> Buffer:
    """Memory in an order of dimensions that may be any."""
    order = list(range(len(shape)))
    if rng.random() < 0.3:
        rng.shuffle(order)
    strides = [0] * len(shape)
    step = 1
    for dim in reversed(order):
        strides[dim] = step
        step *= shape[dim]
    return Buffer(name, dtype, tuple(map(index, shape)), tuple(map(index, strides)))


class Draft:
    """A program being written. `there` are the buffers that can be read by now."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        rng = self.rng
        self.inputs = [
            buffer(f"x{n}", tuple(rng.choices(SIZES, k=rng.choice((1, 2, 2, 3)))), f32, rng)
            for n in range(rng.choice((1, 2, 3)))
        ]
        self.there = list(self.inputs)
        self.steps: list[Step] = []

    def read(self, coords: tuple[Index, ...], shape: tuple[Index, ...]) -> Expr:
        """Some buffer's element at a point of this shape, however it can be reached from there."""
        rng = self.rng
        source = rng.choice(self.there[-4:])
        want = source.shape
        form = rng.random()
        if form < 0.25 and product(want) is product(shape):
            return cast(Load(source, _reshaped(coords, shape, want)), f32)
        where, mask = [], None
        for size, at in zip(want, range(len(want)), strict=True):
            same = [c for c, extent in zip(coords, shape, strict=True) if extent is size]
            if size.constant == 1:
                where.append(ZERO)
            elif same and form < 0.9:
                where.append(same[at % len(same)] if len(same) > 1 else same[0])
            elif coords and rng.random() < 0.5:
                moved = add(rng.choice(coords), rng.choice((-1, 0, 1)))
                inside = _inside(moved, size)
                mask = inside if mask is None else op("and", mask, inside)
                where.append(moved)
            else:
                where.append(index(rng.randrange(size.constant)))
        return cast(Load(source, tuple(where), mask), f32)

    def value(self, coords: tuple[Index, ...], shape: tuple[Index, ...]) -> Expr:
        rng = self.rng
        value = self.read(coords, shape)
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            match rng.randrange(6):
                case 0:
                    value = op("mul", value, Const(f32, 0.5))
                case 1:
                    value = op("add", value, self.read(coords, shape))
                case 2:
                    value = op("max", value, self.read(coords, shape))
                case 3:
                    value = op("tanh", value)
                case 4:
                    test = op("lt", value, Const(f32, 0.25))
                    value = op("select", test, value, self.read(coords, shape))
                case 5 if coords:
                    value = op("add", value, cast(Position(rng.choice(coords)), f32))
        return value

    def step(self, name: str) -> Compute:
        rng = self.rng
        like = rng.choice(self.there).shape if rng.random() < 0.7 else None
        sizes = tuple(s.constant for s in like) if like else tuple(rng.choices(SIZES, k=2))
        axes = tuple(Axis(f"a{n}", index(s)) for n, s in enumerate(sizes))
        coords, shape = tuple(map(index, axes)), tuple(map(index, sizes))
        value = self.value(coords, shape)
        requires: tuple[Require, ...] = ()
        if rng.random() < 0.1:
            requires = (Require(op("lt", value, Const(f32, 2.0**100)), 1 + len(self.steps)),)
        form = rng.random()
        if form < 0.5:
            return Compute((buffer(name, sizes, f32, rng),), axes, (value,), requires=requires)
        if form < 0.6:
            along = rng.choice(axes)
            result = buffer(name, sizes, f32, rng)
            return Compute((result,), axes, (value,), along=along, combine="sum", requires=requires)
        over = tuple(axis for axis in axes if rng.random() < 0.5) or axes[-1:]
        kept = tuple(axis for axis in axes if axis not in over)
        if rng.random() < 0.5:
            # As `keepdim` does it: the dimension stays, with one position.
            kept = tuple(Axis(a.name, index(1)) if a in over else a for a in axes)
            over = tuple(Axis(f"o_{a.name}", a.extent) for a in over)
            value = _with_axes(value, axes, over)
            requires = tuple(
                Require(_with_axes(each.condition, axes, over), each.code) for each in requires
            )
        combine = rng.choice(("sum", "max", "min", "argmax"))
        shape_left = tuple(a.extent.constant for a in kept)
        types = fold_types(combine, f32)
        values: tuple[Expr, ...] = (value,)
        results = tuple(
            buffer(name if n == 0 else f"{name}_at", shape_left, t, rng)
            for n, t in enumerate(types)
        )
        if len(types) == 2:
            values = (value, Position(add(*over)))
        return Compute(results, kept, values, over, None, combine, requires)


def _with_axes(value: Expr, axes: tuple[Axis, ...], over: tuple[Axis, ...]) -> Expr:
    from straightline.ir.rewrite import replace

    by_name = {f"o_{a.name}": a for a in axes}
    return replace(value, {by_name[o.name]: index(o) for o in over})


def _inside(where: Index, size: Index) -> Expr:
    low = op("ge", Position(where), Const(i64, 0))
    return op("and", low, op("lt", Position(where), Const(i64, size.constant)))


def _reshaped(coords: tuple[Index, ...], shape: tuple[Index, ...], want: tuple[Index, ...]):
    flat = ZERO
    for coord, size in zip(coords, shape, strict=True):
        flat = add(mul(flat, size), coord)
    where = []
    for size in reversed(want):
        where.append(mod(flat, size))
        flat = floordiv(flat, size)
    return tuple(reversed(where))


def random_program(seed: int) -> tuple[Program, list[Buffer]]:
    """A program, and the buffers that it is given."""
    draft = Draft(seed)
    rng = draft.rng
    for number in range(rng.choice((1, 2, 3, 5, 8))):
        if rng.random() < 0.1:
            source = rng.choice(draft.there)
            copy = Buffer(f"e{number}", source.dtype, source.shape, source.strides)
            reads, made = frozenset({source.name}), frozenset({copy.name})
            draft.steps.append(External(f"e{number}", reads, made))
            draft.there.append(copy)
            continue
        compute = draft.step(f"t{number}")
        draft.steps.append(compute)
        draft.there += list(compute.buffers)
    names = [b.name for b in draft.there if b not in draft.inputs]
    wanted = rng.sample(names, rng.randint(1, len(names)))
    needed = frozenset([*wanted, names[-1]])
    return Program(tuple(draft.steps), needed), draft.inputs


# -- running ---------------------------------------------------------------------------------------


def memory(of: Buffer) -> np.ndarray:
    count = 1
    for size in of.shape:
        count *= size.constant
    return np.zeros(max(count, 1), NUMPY[of.dtype])


def inputs_of(buffers: list[Buffer], seed: int) -> Arrays:
    random_numbers = np.random.default_rng(seed)
    return {
        b.name: random_numbers.standard_normal(memory(b).size).astype(np.float32) for b in buffers
    }


def run_each(program: Program, given: Arrays) -> tuple[int, Arrays]:
    """The status, and every buffer, of running step after step."""
    arrays = dict(given)
    for step in program.steps:
        if isinstance(step, External):
            (source,), (made,) = step.reads, step.writes
            arrays[made] = arrays[source].copy()
            continue
        arrays |= {b.name: memory(b) for b in step.buffers}
        status = interpret_compute(step, arrays, {})
        if status:
            return status, arrays
    return 0, arrays


def run_steps(
    steps: tuple[Kernel | External, ...], made: Mapping[str, Buffer], given: Arrays
) -> tuple[int, Arrays]:
    """The same of kernels."""
    arrays = dict(given)
    for step in steps:
        if isinstance(step, External):
            (source,), (copy,) = step.reads, step.writes
            arrays[copy] = arrays[source].copy()
            continue
        arrays |= {name: memory(made[name]) for name in step.outputs}
        status = interpret(step, arrays, {})
        if status:
            return status, arrays
    return 0, arrays
