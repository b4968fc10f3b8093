"""The text of the loop IR, and its reading."""

from __future__ import annotations

import math
import struct

import pytest
from generate import random_kernel

from straightline.ir import text
from straightline.ir.dtypes import bf16, f32, f64, i64
from straightline.ir.index import Axis, Given, Size, add, floordiv, index, mod, mul
from straightline.ir.nodes import (
    Buffer,
    Compute,
    Const,
    Expr,
    How,
    Kernel,
    Load,
    Loop,
    Position,
    Require,
    Store,
    cast,
    op,
)
from straightline.ir.text import ParseError, parse, parse_compute, show, show_compute

SOFTMAX = """\
kernel softmax
size n: 2..
size m: 1..4096
input x: f32[n, m] strides [m, 1]
input ids: i64[n] strides [1]
output y: f32[n, m] strides [m, 1]
scratch kept: f32[m] strides [1]

parallel i < n:
    $0 = ids[i]
    check lt($0, 5:i64) else 3
    fold top = max(f32)
    vector j < m:
        top <- x[i, j]
    fold total = sum(f32)
    vector k < m:
        $1 = exp(sub(x[i, k], folded(top)))
        kept[k] = $1
        total <- $1 if ne(position(k), 7:i64)
    serial l < m:
        y[i, l] = div(kept[l], folded(total))
"""


def test_text_in_text_out():
    kernel = parse(SOFTMAX)
    assert parse(show(kernel)) == kernel
    assert show(kernel) == SOFTMAX.replace("    $0 = ids[i]\n", "").replace(
        "lt($0,", "lt(ids[i],"
    ).replace("$1", "$0")


@pytest.mark.parametrize(
    "seeds", [range(start, start + 50) for start in range(0, 300, 50)], ids=str
)
def test_generated_kernels_go_there_and_back(seeds):
    for seed in seeds:
        kernel, _, _ = random_kernel(seed, functions=True)
        assert parse(show(kernel)) == kernel, seed


n = Size("n", 1)
i, j = Axis("i", index(n)), Axis("j", index(8))
x = Buffer("x", f32, (index(n), index(8)), (index(8), index(1)))
y = Buffer("y", f32, (index(n), index(8)), (index(8), index(1)))
ids = Buffer("ids", i64, (index(n),), (index(1),))
HERE = (index(i), index(j))


def kernel_of(value: Expr, *more: Expr) -> Kernel:
    stores = tuple(Store(y, HERE, each) for each in (value, *more))
    body = (Loop(i, How.PARALLEL, (Loop(j, How.VECTOR, stores),)),)
    return Kernel("k", (x, ids, y), frozenset({"y"}), (n,), body)


def same_after(value: Expr, *more: Expr) -> str:
    kernel = kernel_of(value, *more)
    shown = show(kernel)
    assert parse(shown) == kernel
    return shown


NAN = struct.unpack("d", struct.pack("Q", 0xFFF8000000000123))[0]


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0.1, "0.1"),
        (-0.0, "-0.0"),
        (5e-324, "5e-324"),
        (1e300, "1e+300"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
        (NAN, "nan(0xfff8000000000123)"),
    ],
)
def test_constants_are_exact(number, shown):
    assert f"cast(f32, {shown}:f64)" in same_after(cast(Const(f64, number), f32))


def test_indices_stay_as_they_are():
    flat = add(mul(i, 8), j)
    coords = (floordiv(add(flat, -3), n), mod(mul(flat, n), 8))
    shown = same_after(Load(x, coords))
    assert f"x[{coords[0]}, {coords[1]}]" in shown


def test_computed_numbers_and_masks():
    row = index(Given(Load(ids, (index(i),), op("gt", Position(index(i)), Const(i64, 0))), 0, 7))
    shown = same_after(Load(x, (row, add(row, 1)), op("lt", Position(index(j)), Const(i64, 3))))
    assert "$0 = ids[i if gt(position(i), 0:i64)]" in shown
    assert "x[<$0 in 0..7>, <$0 in 0..7> + 1 if lt(position(j), 3:i64)]" in shown
    open_range = index(Given(Load(ids, (index(i),))))
    assert "<ids[i] in ..>" in same_after(Load(x, (open_range, index(j))))


def test_text_is_linear_in_what_is_computed():
    expr: Expr = Load(x, HERE)
    for _ in range(2000):
        expr = op("add", expr, expr)
    assert len(same_after(expr).splitlines()) < 2020


def test_long_expressions_are_cut_into_lines():
    expr: Expr = Load(x, HERE)
    for step in range(300):
        expr = op("add", expr, Const(f32, float(step)))
    assert max(map(len, same_after(expr).splitlines())) < 2 * text.LONG


def test_a_name_stands_in_the_innermost_body_where_it_holds():
    outer = op("exp", cast(Position(index(i)), f32))
    inner = op("exp", Load(x, HERE))
    value = op("add", op("mul", outer, inner), inner)
    k = Axis("k", index(8))
    loops = (
        Loop(j, How.VECTOR, (Store(y, HERE, value),)),
        Loop(k, How.VECTOR, (Store(y, (index(i), index(k)), outer),)),
    )
    kernel = Kernel("k", (x, y), frozenset({"y"}), (n,), (Loop(i, How.PARALLEL, loops),))
    assert parse(show(kernel)) == kernel
    assert show(kernel).endswith("""
parallel i < n:
    $0 = exp(cast(f32, position(i)))
    vector j < 8:
        $1 = exp(x[i, j])
        y[i, j] = add(mul($0, $1), $1)
    vector k < 8:
        y[i, k] = $0
""")


def test_one_axis_may_be_that_of_two_loops():
    value = op("exp", Load(x, HERE))
    loop = Loop(j, How.VECTOR, (Store(y, HERE, op("add", value, value)),))
    kernel = Kernel("k", (x, y), frozenset({"y"}), (n,), (Loop(i, How.PARALLEL, (loop, loop)),))
    assert parse(show(kernel)) == kernel


COMPUTES = [
    Compute((y,), (i, j), (op("exp", Load(x, HERE)),)),
    Compute(
        (Buffer("r", f32, (index(n),), (index(1),)), None),
        (i,),
        (Load(x, HERE), Position(index(j))),
        over=(j,),
        combine="argmax",
    ),
    Compute((y,), (i, j), (Load(x, HERE),), along=i, combine="sum"),
    Compute((Buffer("s", bf16, (), ()),), (), (Const(bf16, 1.0),)),
    Compute(
        (y,),
        (i, j),
        (Load(x, (index(Given(Load(ids, (index(i),)), 0, 3)), index(j))),),
        requires=(Require(op("lt", Load(ids, (index(i),)), Const(i64, 4)), 2),),
    ),
]


@pytest.mark.parametrize("compute", COMPUTES)
def test_computes_go_there_and_back(compute):
    assert parse_compute(show_compute(compute)) == compute


def test_a_compute_is_readable():
    assert (
        show_compute(COMPUTES[1])
        == """\
compute
size n: 1..
input x: f32[n, 8] strides [8, 1]
output r: f32[n] strides [1]
axes i < n
over j < 8
combine argmax
result r
result none

value x[i, j]
value position(j)
"""
    )


@pytest.mark.parametrize(
    ("old", "new", "line", "expected"),
    [
        ("kernel softmax", "softmax", 1, "'kernel', found 'softmax'"),
        ("n: 2..", "n: two", 2, "a number"),
        ("x: f32", "x: f31", 4, "a type, found 'f31'"),
        ("[m, 1]", "[m 1]", 4, "',', found '1'"),
        ("parallel i", "paralel i", 9, "a statement"),
        ("check lt($0,", "check lt($9,", 11, "a name that stands for something here"),
        ("5:i64) else", "5:i63) else", 11, "a constant of a type"),
        ("= max(f32)", "= mix(f32)", 12, "a combine"),
        ("top <- x[i, j]", "top <- z[i, j]", 14, "a buffer, found 'z'"),
        ("        top <- x[i, j]\n", "", 14, "an indented body"),
        ("top <- x[i, j]", "top <- x[i, k]", 14, "a size or an axis of a loop around"),
        ("exp(sub(", "exp(subb(", 17, "an operation, found 'subb'"),
        ("folded(top))", "folded(tip))", 17, "a fold"),
        ("sub(x[i, k], folded(top))", "sub(x[i, k])", 17, "2 operands of sub, not 1"),
        ("kept[k] = $1", "kept[k] = $1 $1", 18, "the end of the line"),
        ("        kept[k] = $1", "          kept[k] = $1", 18, "an indentation of 8 at most"),
    ],
)
def test_errors_say_the_line_and_what_was_expected(old, new, line, expected):
    with pytest.raises(ParseError) as caught:
        parse(SOFTMAX.replace(old, new, 1))
    assert caught.value.line == line
    assert expected in str(caught.value)
