"""The reference interpreter, on kernels and computes written out by hand, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from straightline.ir.dtypes import b1, bf16, f16, f32, i32, i64
from straightline.ir.index import Axis, Given, Size, add, index, mul
from straightline.ir.interpret import interpret, interpret_compute
from straightline.ir.nodes import (
    Accumulate,
    Buffer,
    Compute,
    Const,
    Declare,
    Fold,
    Folded,
    How,
    Kernel,
    Load,
    Loop,
    Position,
    Require,
    Running,
    Store,
    cast,
    op,
)

n, m = Size("n"), Size("m", 2, 100)
i, j = Axis("i", index(n)), Axis("j", index(m))


def buffer(name, dtype, *shape):
    strides = []
    for at in range(len(shape)):
        stride = index(1)
        for length in shape[at + 1 :]:
            stride = mul(stride, length)
        strides.append(stride)
    return Buffer(name, dtype, tuple(map(index, shape)), tuple(strides))


x, y = buffer("x", f32, n, m), buffer("y", f32, n, m)
row = buffer("row", f32, n)
out = buffer("out", f32, n, m)
here = (index(i), index(j))
rng = np.random.default_rng(0)
X = rng.normal(size=(3, 5)).astype("float32")
SIZES = {"n": 3, "m": 5}


def test_a_map():
    value = op("add", op("mul", Load(x, here), Const(f32, 2.0)), Load(row, here[:1]))
    result = np.zeros((3, 5), "float32")
    r = rng.normal(size=3).astype("float32")
    compute = Compute((out,), (i, j), (value,))
    assert interpret_compute(compute, {"x": X, "row": r, "out": result}, SIZES) == 0
    assert np.array_equal(result, X * 2 + r[:, None])


def test_tensors_of_numpy_keep_their_strides():
    result = np.zeros((5, 3), "float32").T
    strided = Buffer("out", f32, out.shape, (index(1), index(n)))
    source = Buffer("x", f32, x.shape, (index(10), index(2)))
    big = rng.normal(size=(3, 10)).astype("float32")
    compute = Compute((strided,), (i, j), (Load(source, here),))
    assert interpret_compute(compute, {"x": big[:, ::2], "out": result}, SIZES) == 0
    assert np.array_equal(result, big[:, ::2])


@pytest.mark.parametrize(
    ("combine", "expected"),
    [
        ("sum", lambda a: np.add.accumulate(a, axis=1)[:, -1]),
        ("product", lambda a: np.multiply.accumulate(a, axis=1)[:, -1]),
        ("min", lambda a: a.min(1)),
        ("max", lambda a: a.max(1)),
    ],
)
def test_reductions_of_rows(combine, expected):
    result = np.zeros(3, "float32")
    compute = Compute((row,), (i,), (Load(x, here),), over=(j,), combine=combine)
    assert interpret_compute(compute, {"x": X, "row": result}, SIZES) == 0
    assert np.array_equal(result, expected(X))


def test_the_first_of_equal_values_and_of_nans_is_found():
    data = np.array([[1, 5, 5, 0, 2], [np.nan, 1, 2, np.nan, 3], [3, 3, 3, 3, 3]], "float32")
    values, places = np.zeros(3, "float32"), np.zeros(3, "int64")
    compute = Compute(
        (row, buffer("place", i64, n)),
        (i,),
        (Load(x, here), Position(index(j))),
        over=(j,),
        combine="argmax",
    )
    arrays = {"x": data, "row": values, "place": places}
    assert interpret_compute(compute, arrays, SIZES) == 0
    assert places.tolist() == [1, 0, 0]
    assert np.array_equal(values, [5, np.nan, 3], equal_nan=True)


def test_logsumexp_of_infinities():
    inf = np.inf
    data = np.array([[-inf] * 5, [-inf, 1, 2, -inf, 0], [inf, 0, inf, 1, 2]], "float32")
    top, total = np.zeros(3, "float32"), np.zeros(3, "float32")
    compute = Compute(
        (row, buffer("total", f32, n)), (i,), (Load(x, here),), over=(j,), combine="logsumexp"
    )
    assert interpret_compute(compute, {"x": data, "row": top, "total": total}, SIZES) == 0
    with np.errstate(divide="ignore"):
        expected = [-inf, np.log(np.exp([1.0, 2, 0]).sum()), inf]
        assert np.allclose(top + np.log(total), expected)


def test_a_scan_is_taken_in_order():
    result = np.zeros((3, 5), "float32")
    compute = Compute((out,), (i, j), (Load(x, here),), along=i, combine="sum")
    assert interpret_compute(compute, {"x": X, "out": result}, SIZES) == 0
    assert np.array_equal(result, np.add.accumulate(X, axis=0))


def test_no_positions_fold_to_the_identity():
    result = np.ones(3, "float32")
    zero = Size("m")
    axis = Axis("j", index(zero))
    value = Load(buffer("x", f32, n, zero), (index(i), index(axis)))
    compute = Compute((row,), (i,), (value,), over=(axis,), combine="max")
    data = np.zeros((3, 0), "float32")
    assert interpret_compute(compute, {"x": data, "row": result}, {"n": 3, "m": 0}) == 0
    assert np.array_equal(result, [-np.inf] * 3)


def test_a_row_kernel_of_several_passes():
    """Softmax, with a row of its own that it passes through."""
    kept = Buffer("kept", f32, (index(m),), (index(1),))
    top, total = Fold("top", "max", (f32,)), Fold("total", "sum", (f32,))
    j2, j3 = Axis("j2", index(m)), Axis("j3", index(m))
    at2, at3 = (index(i), index(j2)), (index(i), index(j3))
    power = op("exp", op("sub", Load(x, at2), Folded(top)))
    body = (
        Declare(top),
        Loop(j, How.VECTOR, (Accumulate(top, (Load(x, here),)),)),
        Declare(total),
        Loop(
            j2,
            How.VECTOR,
            (Store(kept, at2[1:], power), Accumulate(total, (Load(kept, at2[1:]),))),
        ),
        Loop(j3, How.VECTOR, (Store(out, at3, op("div", Load(kept, at3[1:]), Folded(total))),)),
    )
    kernel = Kernel(
        "softmax", (x, out), frozenset({"out"}), (n, m), (Loop(i, How.PARALLEL, body),), (kept,)
    )
    result = np.zeros((3, 5), "float32")
    assert interpret(kernel, {"x": X, "out": result}, SIZES) == 0
    exact = np.exp(X.astype("float64") - X.max(1, keepdims=True))
    assert np.allclose(result, exact / exact.sum(1, keepdims=True), rtol=1e-6)


def test_masks_keep_folds_and_memory_untouched():
    inside = op("lt", Position(index(j)), Position(index(i)))
    shifted = (index(i), add(j, -1))
    below = op("gt", Position(index(j)), Const(i64, 0))
    total = Fold("total", "sum", (f32,))
    store = Store(out, here, Load(x, shifted, below), inside)
    body = (
        Declare(total),
        Loop(j, How.SERIAL, (Accumulate(total, (Load(x, here),), inside), store)),
        Store(row, here[:1], Folded(total)),
    )
    kernel = Kernel(
        "masked",
        (x, out, row),
        frozenset({"out", "row"}),
        (n, m),
        (Loop(i, How.PARALLEL, body),),
    )
    result, sums = np.full((3, 5), 7, "float32"), np.zeros(3, "float32")
    assert interpret(kernel, {"x": X, "out": result, "row": sums}, SIZES) == 0
    lower = np.tril(np.ones((3, 5), bool), -1)
    padded = np.concatenate([np.zeros((3, 1), "float32"), X[:, :-1]], axis=1)
    assert np.array_equal(result, np.where(lower, padded, 7))
    assert np.allclose(sums, np.where(lower, X, 0).sum(1))


def test_running_values_behind_masked_positions():
    total = Fold("total", "sum", (f32,))
    even = op("eq", op("mod", Position(index(j)), Const(i64, 2)), Const(i64, 0))
    body = (
        Declare(total),
        Loop(
            j,
            How.SERIAL,
            (Accumulate(total, (Load(x, here),), even), Store(out, here, Running(total))),
        ),
    )
    kernel = Kernel("k", (x, out), frozenset({"out"}), (n, m), (Loop(i, How.PARALLEL, body),))
    result = np.zeros((3, 5), "float32")
    assert interpret(kernel, {"x": X, "out": result}, SIZES) == 0
    taken = np.where(np.arange(5) % 2 == 0, X, 0)
    assert np.array_equal(result, np.add.accumulate(taken, axis=1, dtype="float32"))


GATHERED = Load(x, (index(Given(Load(buffer("ids", i64, n), (index(i),)), 0, 2)), index(j)))


def gather(ids):
    chosen = Load(buffer("ids", i64, n), (index(i),))
    low = op("ge", chosen, Const(i64, 0))
    high = op("lt", chosen, Const(i64, 3))
    compute = Compute((out,), (i, j), (GATHERED,), requires=(Require(op("and", low, high), 42),))
    result = np.full((3, 5), 9, "float32")
    status = interpret_compute(compute, {"x": X, "ids": np.array(ids), "out": result}, SIZES)
    return status, result


def test_a_gather():
    status, result = gather([2, 0, 2])
    assert status == 0
    assert np.array_equal(result, X[[2, 0, 2]])


@pytest.mark.parametrize("ids", [[0, 3, 1], [0, 1, -1]])
def test_a_check_stops_before_anything_below(ids):
    status, result = gather(ids)
    assert status == 42
    assert (result == 9).all()


def test_what_lies_out_of_range_is_an_error():
    shifted = Compute((out,), (i, j), (Load(x, (index(i), add(j, 1))),))
    result = np.zeros((3, 5), "float32")
    with pytest.raises(IndexError, match=r"x\[i, j \+ 1\]: j \+ 1 is 5, of 5"):
        interpret_compute(shifted, {"x": X, "out": result}, SIZES)
    unchecked = Compute((out,), (i, j), (GATHERED,))
    arrays = {"x": X, "ids": np.array([0, 1, 3]), "out": result}
    with pytest.raises(IndexError, match="range"):
        interpret_compute(unchecked, arrays, SIZES)
    short = Compute((out,), (i, j), (Load(x, here),))
    with pytest.raises(IndexError, match="behind the end"):
        interpret_compute(short, {"x": X[:2].ravel(), "out": result}, SIZES)


def test_sizes_and_memory_are_what_the_kernel_says():
    compute = Compute((out,), (i, j), (Load(x, here),))
    arrays = {"x": X, "out": np.zeros((3, 5), "float32")}
    with pytest.raises(ValueError, match="size m is 1"):
        interpret_compute(compute, arrays, {"n": 3, "m": 1})
    with pytest.raises(TypeError, match="x is f32"):
        interpret_compute(compute, {**arrays, "x": X.astype("float64")}, SIZES)


def test_narrow_floats_are_cast_at_loads_and_stores():
    source, target = buffer("source", bf16, n), buffer("target", f16, n)
    value = cast(op("add", cast(Load(source, here[:1]), f32), Const(f32, 1.0)), f16)
    compute = Compute((target,), (i,), (value,))
    memory = np.array([0x3F80, 0x4049, 0xC000], "uint16")  # 1, 3.140625, -2
    result = np.zeros(3, "float16")
    assert interpret_compute(compute, {"source": memory, "target": result}, {"n": 3}) == 0
    assert result.tolist() == [2.0, 4.140625, -1.0]


def test_scratch_belongs_to_one_position_of_the_outermost_loop():
    cell = Buffer("cell", i32, (), ())
    value = cast(Position(index(i)), i32)
    numbers = buffer("numbers", i32, n)
    inner = Axis("k", index(3))
    more = Loop(inner, How.SERIAL, (Store(cell, (), op("add", Load(cell, ()), value)),))
    body = (Store(cell, (), value), more, Store(numbers, here[:1], Load(cell, ())))
    kernel = Kernel(
        "k", (numbers,), frozenset({"numbers"}), (n,), (Loop(i, How.PARALLEL, body),), (cell,)
    )
    result = np.zeros(4, "int32")
    assert interpret(kernel, {"numbers": result}, {"n": 4}) == 0
    assert result.tolist() == [0, 4, 8, 12]
    empty = Kernel(
        "k",
        (numbers,),
        frozenset({"numbers"}),
        (n,),
        (Loop(i, How.PARALLEL, body[1:]),),
        (cell,),
    )
    with pytest.raises(IndexError, match="before it is stored"):
        interpret(empty, {"numbers": result}, {"n": 4})


def test_extents_may_depend_on_outer_loops():
    triangle = Axis("t", add(i, 1))
    total = Fold("total", "sum", (i64,))
    body = (
        Declare(total),
        Loop(triangle, How.SERIAL, (Accumulate(total, (Position(index(triangle)),)),)),
        Store(buffer("sums", i64, n), here[:1], Folded(total)),
    )
    kernel = Kernel(
        "k",
        (buffer("sums", i64, n),),
        frozenset({"sums"}),
        (n,),
        (Loop(i, How.PARALLEL, body),),
    )
    result = np.zeros(4, "int64")
    assert interpret(kernel, {"sums": result}, {"n": 4}) == 0
    assert result.tolist() == [0, 1, 3, 6]


def test_a_check_with_a_condition_on_booleans_of_memory():
    flags = buffer("flags", b1, n)
    compute = Compute(
        (row,), (i,), (Const(f32, 1.0),), requires=(Require(Load(flags, here[:1]), 7),)
    )
    result = np.zeros(3, "float32")
    for values, status in (([True] * 3, 0), ([True, False, True], 7)):
        arrays = {"flags": np.array(values), "row": result}
        assert interpret_compute(compute, arrays, {"n": 3}) == status
