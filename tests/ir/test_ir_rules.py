"""Rules of simplification: that they apply, and that nothing changes by them."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from generate import EXACT, TAKEN, same

from straightline.ir.arithmetic import MEMORY
from straightline.ir.dtypes import BY_NAME, b1, bf16, f16, f32, f64, i8, i32, i64, u8, u32
from straightline.ir.index import Axis, Given, Size, add, index, mod, mul
from straightline.ir.interpret import interpret
from straightline.ir.nodes import (
    Buffer,
    Const,
    Expr,
    How,
    Kernel,
    Load,
    Loop,
    Op,
    Position,
    Store,
    cast,
    op,
)
from straightline.ir.ops import Result
from straightline.ir.rewrite import simplify

COUNT = 128
i = Axis("i", index(COUNT))
HERE = (index(i),)
n = Size("n", 1)
k = Axis("k", index(n))


def leaf(name, dtype):
    return Load(Buffer(name, dtype, (index(COUNT),), (index(1),)), HERE)


x, y = leaf("x", f32), leaf("y", f32)
a, b = leaf("a", i32), leaf("b", i32)
p, q = leaf("p", b1), leaf("q", b1)
small, wide, byte = leaf("small", i8), leaf("wide", i64), leaf("byte", u8)
at_i, at_k = Position(index(i)), Position(index(k))


def c(value, dtype=f32):
    return Const(dtype, value)


TRUE, FALSE = c(True, b1), c(False, b1)
REDUCED = [
    (op("add", x, c(-0.0)), x),
    (op("add", c(-0.0), x), x),
    (op("sub", x, c(0.0)), x),
    (op("sub", c(-0.0), x), op("neg", x)),
    (op("mul", x, c(1.0)), x),
    (op("mul", c(-1.0), x), op("neg", x)),
    (op("div", x, c(1.0)), x),
    (op("div", x, c(-8.0)), op("mul", x, c(-0.125))),
    (op("neg", op("neg", x)), x),
    (op("abs", op("neg", x)), op("abs", x)),
    (op("min", x, x), x),
    (op("max", x, c(-math.inf)), x),
    (op("fma", x, c(1.0), y), op("add", x, y)),
    (op("fma", x, y, c(-0.0)), op("mul", x, y)),
    (op("floor", op("round", x)), op("round", x)),
    (op("ceil", cast(a, f32)), cast(a, f32)),
    (op("copysign", op("abs", x), y), op("copysign", x, y)),
    (op("add", a, c(0, i32)), a),
    (op("sub", a, a), c(0, i32)),
    (op("mul", c(0, i32), a), c(0, i32)),
    (op("max", a, c(i32.lowest, i32)), a),
    (op("floordiv", a, c(1, i32)), a),
    (op("mod", a, c(1, i32)), c(0, i32)),
    (op("shl", a, c(0, i32)), a),
    (op("and", p, TRUE), p),
    (op("and", FALSE, p), FALSE),
    (op("and", p, op("and", q, p)), op("and", q, p)),
    (op("and", p, op("not", p)), FALSE),
    (op("or", op("not", p), p), TRUE),
    (op("or", p, FALSE), p),
    (op("xor", p, TRUE), op("not", p)),
    (op("xor", a, a), c(0, i32)),
    (op("and", a, c(-1, i32)), a),
    (op("not", op("not", p)), p),
    (op("not", op("lt", a, b)), op("ge", a, b)),
    (op("not", op("eq", x, y)), op("ne", x, y)),
    (op("eq", p, FALSE), op("not", p)),
    (op("ne", FALSE, p), p),
    (op("lt", c(1.0), x), op("gt", x, c(1.0))),
    (op("lt", x, x), FALSE),
    (op("ge", a, a), TRUE),
    (op("ge", byte, c(0, u8)), TRUE),
    (op("lt", at_k, Position(index(n))), TRUE),
    (op("ge", Position(add(k, 3)), at_k), TRUE),
    (op("eq", Position(add(k, 3)), at_k), FALSE),
    (op("ge", Position(mod(k, 4)), c(4, i64)), FALSE),
    (op("lt", Position(index(n)), c(1, i64)), FALSE),
    (op("add", at_i, c(2, i64)), Position(add(i, 2))),
    (op("mul", op("neg", at_i), c(2, i64)), Position(mul(i, -2))),
    (Position(index(7)), c(7, i64)),
    (cast(cast(x, f64), f32), x),
    (cast(cast(a, f64), f32), cast(a, f32)),
    (cast(cast(wide, i32), i8), cast(wide, i8)),
    (cast(cast(small, f32), i32), cast(small, i32)),
    (cast(cast(p, f32), b1), p),
    (cast(cast(leaf("h", f16), f32), f16), leaf("h", f16)),
    (op("bitcast", op("bitcast", x, dtype=i32), dtype=f32), x),
    (op("select", TRUE, x, y), x),
    (op("select", p, x, x), x),
    (op("select", op("not", p), x, y), op("select", p, y, x)),
    (op("select", p, FALSE, TRUE), op("not", p)),
    (op("select", p, q, FALSE), op("and", p, q)),
    (op("select", p, op("select", p, x, y), y), op("select", p, x, y)),
    (op("select", p, y, op("select", p, x, y)), y),
    (op("add", c(2.5), c(3.0)), c(5.5)),
    (cast(c(300, i64), u8), c(44, u8)),
    (Load(x.buffer, HERE, TRUE), x),
    (Load(leaf("h", bf16).buffer, HERE, FALSE), c(0.0, bf16)),
    (Load(x.buffer, (index(Given(op("add", at_i, c(-1, i64)), 0, 9)),), p),
     Load(x.buffer, (add(i, -1),), p)),
]  # fmt: skip


@pytest.mark.parametrize(("expr", "expected"), REDUCED, ids=lambda expr: repr(expr))
def test_it_becomes(expr, expected):
    assert simplify(expr) is expected


@pytest.mark.parametrize(
    "expr",
    [
        op("add", x, c(0.0)),
        op("sub", c(0.0), x),
        op("mul", x, c(0.0)),
        op("sub", x, x),
        op("div", x, x),
        op("div", x, c(3.0)),
        op("ne", x, x),
        op("eq", x, x),
        op("not", op("lt", x, y)),
        op("add", op("add", x, c(1.0)), c(2.0)),
        op("exp", c(1.0)),
        op("lt", at_k, c(5, i64)),
        op("add", at_k, c(i64.highest, i64)),
        cast(cast(a, f32), i32),
        cast(cast(x, bf16), f32),
        cast(cast(leaf("u", u32), f64), i32),
        cast(cast(leaf("u", u32), f64), u8),
        cast(cast(a, i8), i32),
    ],
    ids=lambda expr: repr(expr),
)
def test_it_stays(expr):
    assert simplify(expr) is expr


def interesting(dtype) -> list[Expr]:
    """Leaves of a type, constants that rules look for, and one step on."""
    one, other = leaf(f"{dtype}_one", dtype), leaf(f"{dtype}_other", dtype)
    if dtype is b1:
        return [one, other, TRUE, FALSE, op("not", one), op("lt", x, y), op("and", one, other)]
    found: list[Expr] = [one, other, op("neg", one), op("abs", one), op("min", one, other)]
    numbers: list[float] = [0, 1, 2, -1, 8]
    if dtype.is_float:
        numbers = [*map(float, numbers), -0.0, math.inf, -math.inf, math.nan, 0.375, -4.0, 2.0**101]
        found += [op("trunc", one), cast(a, dtype), op("copysign", one, c(-1.0, dtype))]
    else:
        numbers += [dtype.lowest, dtype.highest, dtype.bits]
        found += [op("not", one), op("and", one, other), op("shr", one, other)]
    found += [c(value, dtype) for value in numbers if dtype.is_float or value >= dtype.lowest]
    return [*found, cast(small, dtype), cast(at_i, dtype), cast(cast(one, f64), dtype)]


CASES = [(operation.name, dtype) for operation in EXACT for dtype in TAKEN[operation.operands]]


def run(exprs: list[Expr]) -> list[np.ndarray]:
    """The values of expressions at each position."""
    outputs = [
        Buffer(f"out{at}", e.dtype, (index(COUNT),), (index(1),)) for at, e in enumerate(exprs)
    ]
    stores = tuple(Store(out, HERE, e) for out, e in zip(outputs, exprs, strict=True))
    buffers = tuple(load.buffer for load in INPUTS)
    kernel = Kernel(
        "k",
        (*buffers, *outputs),
        frozenset(out.name for out in outputs),
        (),
        (Loop(i, How.VECTOR, stores),),
    )
    arrays = {buffer.name: DATA[buffer.name] for buffer in buffers}
    arrays |= {out.name: np.zeros(COUNT, MEMORY[out.dtype]) for out in outputs}
    assert interpret(kernel, arrays, {}) == 0
    return [arrays[out.name] for out in outputs]


def data(name: str, dtype) -> np.ndarray:
    rng = np.random.default_rng(len(name) * 100 + dtype.bits)
    memory = MEMORY[dtype]
    if dtype is b1:
        return rng.integers(0, 2, COUNT).astype(bool)
    if dtype is bf16 or not dtype.is_float:
        bits = rng.integers(0, 256, COUNT * dtype.bytes, dtype=np.uint8).view(memory)
        return np.where(rng.random(COUNT) < 0.5, bits, rng.integers(0, 9, COUNT).astype(memory))
    few = np.array([0.0, -0.0, 1, -1, 2.5, -0.5, math.inf, -math.inf, math.nan, 1e-45, 6e4])
    return few[rng.integers(0, len(few), COUNT)].astype(memory)


INPUTS = [x, y, a, b, p, q, small, wide, byte]
INPUTS += [leaf(f"{d}_{side}", d) for d in BY_NAME.values() for side in ("one", "other")]
DATA = {load.buffer.name: data(load.buffer.name, load.dtype) for load in INPUTS}


def check(exprs: list[Expr]) -> None:
    simple = [simplify(expr) for expr in exprs]
    assert simple != exprs
    for expr, new, old_value, new_value in zip(exprs, simple, run(exprs), run(simple), strict=True):
        assert expr.dtype is new.dtype
        assert same(expr.dtype, old_value, new_value), (expr, new)


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
def test_no_bit_changes(name, dtype):
    rng = random.Random(f"{name} {dtype}")
    arity = next(operation.arity for operation in EXACT if operation.name == name)
    among = interesting(dtype)
    args = [*itertools.product(among, repeat=min(arity, 2))]
    exprs: list[Expr] = []
    for chosen in rng.sample(args, min(len(args), 60)):
        third = (rng.choice(among),) if arity == 3 else ()
        exprs.append(op(name, *chosen, *third))
    # Twice: the second time around what came of the first.
    result = exprs[0].dtype
    truths = interesting(b1)
    more = [op("select", rng.choice(truths), e, rng.choice(exprs)) for e in exprs[:10]]
    if result is dtype:
        more += [op(name, e, *(rng.choice(among) for _ in range(arity - 1))) for e in exprs[:20]]
    check([*exprs, *more])


@pytest.mark.parametrize("first", BY_NAME.values(), ids=str)
def test_no_bit_changes_by_casts_of_casts(first):
    value = leaf(f"{first}_one", first)
    types = [*BY_NAME.values()]
    check([Op("cast", c, (Op("cast", b, (value,)),)) for b in types for c in types])


def test_an_operation_whose_type_is_given_is_no_case():
    assert all(operation.result is not Result.GIVEN for operation in EXACT)
