"""Folds: along the row, down the columns, of everything; in every type and with every combine."""

import math

import numpy as np
import pytest
from generate import same
from running import IDS, TARGETS, at, both, buffer, kernel, put, run

from straightline.codegen.llvm.host import host
from straightline.ir import index as ix
from straightline.ir.arithmetic import MEMORY
from straightline.ir.dtypes import b1, f32, f64, i32, i64, u8
from straightline.ir.index import Axis, Size, index
from straightline.ir.nodes import (
    Accumulate,
    Const,
    Declare,
    Expr,
    Fold,
    Folded,
    How,
    Loop,
    Position,
    Running,
    Statement,
    fold_types,
    op,
)

ROWS, COLUMNS = Size("r"), Size("c")
ROW, COL = Axis("i", index(ROWS)), Axis("j", index(COLUMNS))
SHAPES = [(1, 1), (3, 7), (17, 64), (5, 100), (70, 33), (2, 1023), (0, 5), (5, 0)]
RNG = np.random.default_rng(0)
EXACT = [
    ("sum", i32), ("sum", u8), ("product", i64), ("min", f32), ("max", f32), ("max", u8),
    ("min", f64), ("max", b1), ("min", b1), ("any", b1), ("all", b1), ("any", i32), ("all", u8),
    ("xor", i64), ("argmin", f32), ("argmax", f32), ("argmax", i32), ("argmin", u8),
    ("argmax", b1), ("argmax", f64),
]  # fmt: skip


def folded(kind, combine, dtype, mask=False):
    """Rows, columns, or the whole of a matrix."""
    fold = Fold("f", combine, fold_types(combine, dtype))
    source = buffer("in", dtype, ROWS, COLUMNS)
    values: list[Expr] = [at(source, ROW, COL)]
    if combine.startswith("arg"):
        whole = ix.add(ix.mul(ROW, COLUMNS), COL)
        position = {"rows": index(COL), "columns": index(ROW), "whole": whole}[kind]
        values.append(Position(position))
    only = op("ne", op("and", Position(ix.add(ROW, COL)), Const(i64, 3)), Const(i64, 0))
    take = Accumulate(fold, tuple(values), only if mask else None)
    along = {"rows": [ROW], "columns": [COL], "whole": []}[kind]
    outs = [
        buffer(f"out{k}", part, *(axis.extent for axis in along))
        for k, part in enumerate(fold.dtypes)
    ]
    body: list[Statement]
    stores: list[Statement] = [put(out, along, Folded(fold, k)) for k, out in enumerate(outs)]
    match kind:
        case "rows":
            row = (Declare(fold), Loop(COL, How.VECTOR, (take,)), *stores)
            body = [Loop(ROW, How.PARALLEL, row)]
        case "columns":
            column = (Declare(fold), Loop(ROW, How.SERIAL, (take,)), *stores)
            body = [Loop(COL, How.VECTOR, column)]
        case _:
            nest = Loop(ROW, How.SERIAL, (Loop(COL, How.VECTOR, (take,)),))
            body = [Declare(fold), nest, *stores]
    return kernel(f"{combine}_{kind}", body, [source], outs, [ROWS, COLUMNS])


def given(dtype, count):
    if dtype is b1:
        return RNG.random(count) < 0.5
    if dtype.is_integer:
        return RNG.integers(0, 9, count).astype(MEMORY[dtype])
    values = RNG.integers(-9, 9, count).astype(MEMORY[dtype])
    values[RNG.random(count) < 0.002] = math.nan
    values[RNG.random(count) < 0.01] = -math.inf
    return values


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("kind", ["rows", "columns", "whole"])
@pytest.mark.parametrize(("combine", "dtype"), EXACT, ids=[f"{c}-{d}" for c, d in EXACT])
def test_exact_folds(combine, dtype, kind, target):
    for mask in (False, True) if kind == "rows" else (False,):
        program = folded(kind, combine, dtype, mask)
        for rows, columns in SHAPES:
            arrays = {"in": given(dtype, rows * columns)}
            for out in program.buffers[1:]:
                count = {"rows": rows, "columns": columns, "whole": 1}[kind]
                arrays[out.name] = np.zeros(count, MEMORY[out.dtype])
            expected, found = both(program, arrays, {"r": rows, "c": columns}, target)
            for out in program.buffers[1:]:
                assert same(out.dtype, expected[out.name], found[out.name]), (rows, columns, mask)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("combine", ["argmin", "argmax"])
def test_of_equal_values_the_first_wins(combine, target):
    program = folded("whole", combine, f32)
    for rows, columns in [(1, 40), (7, 100), (3, 5)]:
        for first in (0, 1, columns - 1, rows * columns - 1):
            for value in (math.nan, math.inf if combine == "argmax" else -math.inf):
                matrix = np.ones(rows * columns, "float32")
                matrix[first:] = value
                arrays = {"in": matrix, "out0": np.zeros(1, "f"), "out1": np.zeros(1, "int64")}
                assert run(program, arrays, {"r": rows, "c": columns}, target) == 0
                assert arrays["out1"][0] == first


def error(found, matrix, axis):
    """In units of the last place of the exact sum."""
    exact = matrix.astype("float64").sum(axis)
    return np.abs((found - exact) / np.spacing(np.abs(exact).astype("float32"))).max()


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize(
    ("kind", "axis", "shape"),
    [
        ("rows", 1, (3, 100003)),
        ("rows", 1, (2, 1 << 22)),
        ("rows", 1, (50, 1000)),
        ("columns", 0, (100003, 3)),
        ("columns", 0, (1 << 20, 2)),
        ("columns", 0, (4096, 257)),
        ("whole", None, (1000, 1000)),
        ("whole", None, (100000, 3)),
        ("whole", None, (3, 100000)),
    ],
    ids=str,
)
def test_sums_of_floats_are_near_the_exact_ones(kind, axis, shape, target):
    rows, columns = shape
    program = folded(kind, "sum", f32)
    for wide in (RNG.random(shape), 1000 + RNG.normal(size=shape)):
        matrix = wide.astype("float32")
        exact = matrix.astype("float64").sum(axis)
        arrays = {"in": matrix.reshape(-1), "out0": np.zeros(exact.size, "float32")}
        assert run(program, arrays, {"r": rows, "c": columns}, target) == 0
        found = arrays["out0"].reshape(exact.shape)
        # Twice what torch's own sum has: it too adds in blocks, and columns in single lanes.
        assert error(found, matrix, axis) <= (5.0 if kind == "columns" else 3.0)
        again = {"in": matrix.reshape(-1), "out0": np.zeros(exact.size, "float32")}
        assert run(program, again, {"r": rows, "c": columns}, target) == 0
        assert same(f32, arrays["out0"], again["out0"])


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
def test_sums_keep_what_is_no_number_and_the_sign_of_zero(target):
    program = folded("rows", "sum", f32)
    for row, result in [
        ([math.inf, 1.0], math.inf), ([math.inf, -math.inf], math.nan), ([math.nan], math.nan),
        ([-0.0, -0.0], 0.0), ([], 0.0), ([3e38, 3e38], math.inf),
    ]:  # fmt: skip
        arrays = {"in": np.array(row, "float32"), "out0": np.ones(1, "float32")}
        assert run(program, arrays, {"r": 1, "c": len(row)}, target) == 0
        assert same(f32, arrays["out0"], np.array([result], "float32"))


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("kind", ["rows", "columns", "whole"])
def test_logarithms_of_sums_of_exponentials(kind, target):
    program = folded(kind, "logsumexp", f32)
    axis = {"rows": 1, "columns": 0, "whole": None}[kind]
    for shape in [(1, 1), (3, 70), (33, 9), (40, 100)]:
        matrix = RNG.normal(scale=30, size=shape).astype("float32")
        matrix[0, 0] = -math.inf
        largest = matrix.max(axis, keepdims=True)
        with np.errstate(invalid="ignore"):
            apart = np.where(matrix == largest, 0.0, matrix.astype("float64") - largest)
        rows, columns = shape
        arrays = {"in": matrix.reshape(-1)}
        arrays |= {out: np.zeros(largest.size, "float32") for out in ("out0", "out1")}
        assert run(program, arrays, {"r": rows, "c": columns}, target) == 0
        assert np.array_equal(arrays["out0"], largest.reshape(-1))
        assert np.allclose(arrays["out1"], np.exp(apart).sum(axis).reshape(-1), rtol=1e-6)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("how", ["rows", "columns"])
def test_scans(how, target):
    """A sum so far is taken in order: it has the interpreter's bits."""
    fold = Fold("f", "sum", (f32,))
    best = Fold("m", "argmax", (f32, i64))
    source = buffer("in", f32, ROWS, COLUMNS)
    out, where = buffer("out", f32, ROWS, COLUMNS), buffer("where", i64, ROWS, COLUMNS)
    along = COL if how == "rows" else ROW
    steps = (
        Accumulate(fold, (at(source, ROW, COL),)),
        Accumulate(best, (at(source, ROW, COL), Position(index(along)))),
        put(out, [ROW, COL], op("mul", Running(fold), Running(best, 0))),
        put(where, [ROW, COL], Running(best, 1)),
    )
    outer = Axis("i", index(ROWS)) if how == "rows" else COL
    loop = Loop(along, How.SERIAL, steps)
    body = Loop(outer, How.VECTOR, (Declare(fold), Declare(best), loop))
    program = kernel("scan", [body], [source], [out, where], [ROWS, COLUMNS])
    for rows, columns in SHAPES:
        arrays = {
            "in": RNG.normal(size=rows * columns).astype("float32"),
            "out": np.zeros(rows * columns, "float32"),
            "where": np.zeros(rows * columns, "int64"),
        }
        expected, found = both(program, arrays, {"r": rows, "c": columns}, target)
        assert same(f32, expected["out"], found["out"])
        assert same(i64, expected["where"], found["where"])


def row_kernel(width):
    """Three passes over a row: its mean, its variance, and both used; the row stays in scratch."""
    axis = Axis("j", index(width))
    source, out = buffer("in", f32, ROWS, width), buffer("out", f32, ROWS, width)
    kept = buffer("kept", f32, width)
    total, squares = Fold("total", "sum", (f32,)), Fold("squares", "sum", (f32,))
    share = op("div", Const(f32, 1.0), op("cast", Position(index(width)), dtype=f32))
    away = op("sub", at(source, ROW, axis), op("mul", Folded(total), share))
    one = at(kept, axis)
    scale = op("sqrt", op("add", op("mul", Folded(squares), share), Const(f32, 1e-5)))
    take = Accumulate(squares, (op("mul", one, one),))
    row = (
        Declare(total),
        Loop(axis, How.VECTOR, (Accumulate(total, (at(source, ROW, axis),)),)),
        Declare(squares),
        Loop(axis, How.VECTOR, (put(kept, [axis], away), take)),
        Loop(axis, How.VECTOR, (put(out, [ROW, axis], op("div", one, scale)),)),
    )  # fmt: skip
    sizes = [ROWS, *([width] if isinstance(width, Size) else [])]
    return kernel("normalised", [Loop(ROW, How.PARALLEL, row)], [source], [out], sizes, [kept])


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("width", [1, 2, 7, 16, 64, 100, 128, 129, 257, 1000])
@pytest.mark.parametrize("symbolic", [False, True])
def test_several_passes_over_a_row(width, symbolic, target):
    program = row_kernel(COLUMNS if symbolic else width)
    matrix = RNG.normal(size=(5, width)).astype("float32")
    arrays = {"in": matrix.reshape(-1), "out": np.zeros(5 * width, "float32")}
    assert run(program, arrays, {"r": 5, "c": width}, target) == 0
    exact = matrix.astype("float64")
    exact -= exact.mean(1, keepdims=True)
    exact /= np.sqrt((exact**2).mean(1, keepdims=True) + 1e-5)
    assert np.allclose(arrays["out"].reshape(5, width), exact, rtol=1e-4, atol=1e-5)


def test_scratch_beyond_the_stack_is_passed():
    program = row_kernel(100_000)
    matrix = RNG.normal(size=(2, 100_000)).astype("float32")
    arrays = {"in": matrix.reshape(-1), "out": np.zeros(200_000, "float32")}
    assert run(program, arrays, {"r": 2}, host()) == 0
    assert abs(arrays["out"].reshape(2, -1).std(1) - 1).max() < 1e-4
