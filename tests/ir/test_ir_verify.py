"""Each invariant of kernels: text that breaks it, by one change to a kernel that is sound."""

from __future__ import annotations

import dataclasses

import pytest

from straightline.ir.dtypes import b1, bf16, f32, i32, i64
from straightline.ir.index import Axis, Given, Index, Size, add, floordiv, index, mod
from straightline.ir.nodes import (
    Buffer,
    Compute,
    Const,
    Fold,
    How,
    Kernel,
    Load,
    Loop,
    Op,
    Position,
    Require,
    Store,
    cast,
    op,
)
from straightline.ir.text import parse
from straightline.ir.verify import INVARIANTS, InvalidKernel, verify, verify_compute

SOUND = """\
kernel row
size n: 1..
size m: 0..
input x: f32[n, m] strides [m, 1]
input h: bf16[n] strides [1]
output y: f32[n, m] strides [m, 1]
output z: f32[n] strides [1]
scratch kept: f32[m] strides [1]

parallel i < n:
    check lt(position(i), 9:i64) else 1
    fold top = max(f32)
    vector j < m:
        top <- x[i, j]
        kept[j] = x[i, (j // n) if lt(position(j), 3:i64)]
    fold total = sum(f32)
    serial k < m:
        total <- exp(sub(kept[k], folded(top))) if ne(position(k), 4:i64)
        y[i, k] = running(total)
    z[i] = cast(f32, h[i])
"""


def test_a_sound_kernel():
    verify(parse(SOUND))


BROKEN = [
    (1, "exp(sub(kept[k], folded(top)))", "sub(position(k), folded(top))"),
    (1, "cast(f32, h[i])", "bitcast(f32, h[i])"),
    (1, "cast(f32, h[i])", "exp(cast(f32, not(1.0:f32)))"),
    (1, "cast(f32, h[i])", "2:i32"),
    (1, "cast(f32, h[i])", "select(true:b1, 1.0:f32, 2:i32)"),
    (2, "cast(f32, h[i])", "cast(f32, neg(h[i]))"),
    (2, "cast(f32, h[i])", "cast(f32, lt(h[i], h[i]))"),
    (2, "top = max(f32)", "top = max(bf16)"),
    (3, "cast(f32, h[i])", "0.1:f32"),
    (3, "cast(f32, h[i])", "cast(f32, 300:i8)"),
    (3, "cast(f32, h[i])", "cast(f32, 1.0:i8)"),
    (4, "check lt(position(i), 9:i64)", "check position(i)"),
    (4, "if ne(position(k), 4:i64)", "if position(k)"),
    (4, "if lt(position(j), 3:i64)", "if position(j)"),
    (4, "cast(f32, h[i])", "1.0:f32 if position(i)"),
    (4, "cast(f32, h[i])", "select(position(i), 1.0:f32, 1.0:f32)"),
    (5, "top <- x[i, j]", "top <- x[i]"),
    (5, "z[i] =", "z[i, 0] ="),
    (6, "top <- x[i, j]", "top <- x[<cast(i32, x[i, j]) in 0..3>, j]"),
    (6, "top <- x[i, j]", "top <- x[<position(j) in 3..2>, j]"),
    (7, "(j // n)", "(j // m)"),
    (7, "(j // n)", "(j % j)"),
    (7, "h: bf16[n]", "h: bf16[(n // m)]"),
    (8, "kernel row", "kernel lambda"),
    (9, "size m: 0..", "size m: 3..2"),
    (9, "strides [1]\noutput y", "strides []\noutput y"),
    (11, "vector j < m", "vector j < <position(i) in ..>"),
    (12, "serial k < m", "parallel k < m"),
    (14, "top = max(f32)", "top = argmax(f32)"),
    (14, "top = max(f32)", "top = max(f32, i64)"),
    (14, "top = max(f32)", "top = any(f32)"),
    (14, "top <- x[i, j]", "top <- x[i, j], position(j)"),
    (14, "top <- x[i, j]", "top <- position(j)"),
    (14, "folded(top)", "folded(top, 1)"),
    (15, "    fold total = sum(f32)\n", "    fold total = sum(f32)\n    fold total = sum(f32)\n"),
    (16, "z[i] = cast(f32, h[i])", "z[i] = folded(total)\n    total <- 1.0:f32"),
    (16, "kept[j] = x", "kept[j] = folded(top)\n        kept[j] = x"),
    (16, "        top <- x[i, j]\n", ""),
    (17, "serial k", "vector k"),
    (17, "z[i] = cast(f32, h[i])", "z[i] = running(total)"),
    (18, "output z", "input z"),
    (18, "    z[i] = cast(f32, h[i])\n", ""),
    (19, "        kept[j] = x[i, (j // n) if lt(position(j), 3:i64)]\n", ""),
    (19, "parallel i", "vector i"),
    (20, "        y[i, k] = running(total)",
     "        y[i, k] = 1.0:f32\n    vector l < m:\n        y[i, l] = y[i, 0]"),
    (20, "cast(f32, h[i])", "z[0]"),
    (20, "z[i] =", "z[0] ="),
    (20, "kept[j] = x", "kept[0] = x"),
    (20, "kept[j] = x[i, (j // n) if lt(position(j), 3:i64)]",
     "kept[j] = 1.0:f32\n        kept[j] = kept[0]"),
]  # fmt: skip


@pytest.mark.parametrize(("number", "old", "new"), BROKEN)
def test_what_breaks_an_invariant_is_found(number, old, new):
    assert old in SOUND
    text = SOUND.replace(old, new, 1)
    if (number, new) == (19, "vector i"):
        text = text.replace("vector j", "serial j")
    with pytest.raises(InvalidKernel) as caught:
        verify(parse(text))
    assert caught.value.number == number
    assert INVARIANTS[number] in str(caught.value)


n = Size("n", 1)
i, j = Axis("i", index(n)), Axis("j", index(8))
x = Buffer("x", f32, (index(n), index(8)), (index(8), index(1)))
y = Buffer("y", f32, (index(n), index(8)), (index(8), index(1)))
HERE = (index(i), index(j))


def kernel_of(*body, how: How = How.PARALLEL, **fields) -> Kernel:
    loops = (Loop(i, how, (Loop(j, How.SERIAL, body),)),)
    return dataclasses.replace(Kernel("k", (x, y), frozenset({"y"}), (n,), loops), **fields)


COPY = Store(y, HERE, Load(x, HERE))


@pytest.mark.parametrize(
    ("number", "kernel"),
    [
        (1, kernel_of(Store(y, HERE, Op("nothing", f32, (Load(x, HERE),))))),
        (1, kernel_of(Store(y, HERE, Op("add", f32, (Load(x, HERE),))))),
        (1, kernel_of(Store(y, HERE, cast(Op("lt", f32, (Load(x, HERE),) * 2), f32)))),
        (3, kernel_of(Store(y, HERE, Const(f32, 1)))),
        (8, kernel_of(COPY, name="no name")),
        (8, kernel_of(COPY, buffers=(x, y, x))),
        (8, kernel_of(COPY, scratch=(y,))),
        (8, kernel_of(Loop(Axis("n", index(3)), How.SERIAL, (COPY,)))),
        (8, kernel_of(Loop(Axis("i", index(3)), How.SERIAL, (COPY,)))),
        (10, kernel_of(Loop(i, How.SERIAL, (COPY,)))),
        (9, kernel_of(COPY, buffers=(y,))),
        (9, kernel_of(COPY, sizes=())),
        (10, kernel_of(Store(y, HERE, Load(x, (index(Axis("l", index(n))), index(j)))))),
        (13, kernel_of(Loop(Axis("l", index(3)), How.VECTOR, (COPY,)), how=How.VECTOR)),
        (11, kernel_of(Loop(Axis("l", add(i, 1)), How.SERIAL, (COPY,)), how=How.VECTOR)),
        (18, kernel_of(COPY, outputs=frozenset({"y", "z"}))),
    ],
)
def test_what_text_cannot_say_is_found(number, kernel):
    with pytest.raises(InvalidKernel) as caught:
        verify(kernel)
    assert caught.value.number == number


def in_place(*coords: tuple[Index, Index], how: How = How.PARALLEL) -> Kernel:
    """Loads what it stores at `[i, j]`, at these coordinates."""
    value = Const(f32, 1.0)
    loads = [Load(y, at) for at in coords]
    for load in loads:
        value = op("add", value, load)  # type: ignore[assignment]
    return kernel_of(Store(y, HERE, value), how=how)


def test_the_same_element_may_be_loaded_and_stored():
    verify(in_place(HERE))
    # Of one's own row any element: it is another one's by no position of `i`.
    verify(in_place((index(i), add(j, -1))))
    # One after the other, anything.
    verify(in_place((add(i, 1), index(j)), how=How.SERIAL))


def test_blocks_of_rows_do_not_meet():
    outer, inner = Axis("o", index(4)), Axis("p", index(8))
    flat = Buffer("y", f32, (index(32),), (index(1),))
    at = add(Index((((outer,), 8),), 0), inner)

    def kernel(load: Index, how: How) -> Kernel:
        body = (Loop(inner, how, (Store(flat, (at,), Load(flat, (load,))),)),)
        return Kernel("k", (flat,), frozenset({"y"}), (), (Loop(outer, How.PARALLEL, body),))

    verify(kernel(at, How.VECTOR))
    verify(kernel(Index((((outer,), 8),), 0), How.SERIAL))
    for load, how in ((Index((((outer,), 8),), 0), How.VECTOR), (add(at, 1), How.SERIAL)):
        with pytest.raises(InvalidKernel, match="invariant 20"):
            verify(kernel(load, how))


def test_elements_of_a_flat_loop_are_its_own():
    flat = Axis("f", index(32))
    at = (floordiv(flat, 8), mod(flat, 8))
    square = Buffer("y", f32, (index(4), index(8)), (index(8), index(1)))
    store = Store(square, at, op("neg", Load(square, at)))
    loop = Loop(flat, How.VECTOR, (store,))
    verify(Kernel("k", (square,), frozenset({"y"}), (), (loop,)))


r, place = Buffer("r", f32, (index(n),), (index(1),)), Buffer("p", i64, (index(n),), (index(1),))
ARGMAX = Compute((r, place), (i,), (Load(x, HERE), Position(index(j))), (j,), combine="argmax")
GATHER = Load(x, (index(Given(Load(place, (index(i),)), 0, 3)), index(j)))


@pytest.mark.parametrize(
    "compute",
    [
        ARGMAX,
        Compute((None, place), (i,), ARGMAX.values, (j,), combine="argmax"),
        Compute((y,), (i, j), (Load(x, HERE),), along=j, combine="sum"),
        Compute((r, None), (i,), (Load(x, HERE),), (j,), combine="logsumexp"),
        Compute((y,), (i, j), (GATHER,), requires=(Require(Const(b1, True), 1),)),
    ],
)
def test_sound_computes(compute):
    verify_compute(compute)


@pytest.mark.parametrize(
    ("number", "compute"),
    [
        (21, Compute((r,), (i,), ARGMAX.values, (j,), combine="argmax")),
        (21, Compute((None, None), (i,), ARGMAX.values, (j,), combine="argmax")),
        (21, Compute((y,), (i,), (Const(f32, 1.0),))),
        (21, Compute((r,), (i,), (Const(i32, 1),))),
        (22, Compute((r,), (i,), (Load(x, HERE),), (j,))),
        (22, Compute((r,), (i,), (Load(x, HERE),), along=j, combine="sum")),
        (22, Compute((r,), (i,), (Const(f32, 1.0),), combine="sum")),
        (10, Compute((r,), (i,), (Load(x, HERE),))),
        (2, Compute((Buffer("r", bf16, r.shape, r.strides),), (i,),
                    (op("neg", Const(bf16, 1.0)),))),
    ],
)  # fmt: skip
def test_computes_that_are_not(number, compute):
    with pytest.raises(InvalidKernel) as caught:
        verify_compute(compute)
    assert caught.value.number == number


def test_every_invariant_is_broken_somewhere():
    numbers = {number for number, _, _ in BROKEN} | {10, 11, 13, 21, 22}
    assert numbers == set(INVARIANTS)


def test_folds_of_one_kernel_have_names_of_their_own():
    text = SOUND.replace("fold total = sum(f32)", "fold top = sum(f32)")
    kernel = parse(text.replace("total", "top").replace("folded(top)", "1.0:f32"))
    assert Fold("top", "sum", (f32,)) != Fold("top", "max", (f32,))
    with pytest.raises(InvalidKernel, match="invariant 8"):
        verify(kernel)
