"""Loops in vectors: sizes around every step, strides of every kind, what is left at the end."""

import itertools

import numpy as np
import pytest
from running import IDS, TARGETS, at, both, buffer, kernel, mapped, put, run

from straightline.codegen.llvm.emit import emit
from straightline.codegen.target import AVX512
from straightline.ir import index as ix
from straightline.ir.arithmetic import MEMORY
from straightline.ir.dtypes import b1, bf16, f32, f64, i32, i64, u8
from straightline.ir.index import Axis, Given, Size, index
from straightline.ir.nodes import (
    Buffer,
    Check,
    Const,
    How,
    Kernel,
    Load,
    Loop,
    Position,
    Store,
    cast,
    op,
)

LENGTHS = (*range(71), 127, 128, 1000, 1023)
N = Size("n")
RNG = np.random.default_rng(0)


def filled(dtype, *shape):
    values = RNG.integers(0, 100, shape).astype(MEMORY[dtype])
    return values.view("uint16") & 0x3FFF if dtype is bf16 else values


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("dtype", [b1, u8, bf16, f32, f64], ids=str)
def test_every_length(dtype, target):
    axis = Axis("i", index(N))
    source, out = buffer("in", dtype, N), buffer("out", f32, N)
    twice = op("mul", cast(at(source, axis), f32), Const(f32, 2.0))
    program = mapped("twice", twice, axis, [source], out)
    for length in LENGTHS:
        # Behind the last element nothing is touched.
        arrays = {"in": filled(dtype, length + 9), "out": np.full(length + 9, 7, "float32")}
        expected, found = both(program, arrays, {"n": length}, target)
        assert np.array_equal(expected["out"], found["out"]), length


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
def test_every_constant_length(target):
    for length in (*range(1, 40), 63, 64, 65, 127, 128, 129):
        axis = Axis("i", index(length))
        source, out = buffer("in", f32, length), buffer("out", f32, length)
        # Inside of another loop, so that the length is known and the positions are all run.
        rows = Axis("r", index(1))
        loop = Loop(rows, How.PARALLEL, (Loop(axis, How.VECTOR, (
            put(out, [axis], op("add", at(source, axis), Const(f32, 1.0))),
        )),))  # fmt: skip
        program = kernel("constant", [loop], [source], [out])
        arrays = {"in": filled(f32, length + 9), "out": np.full(length + 9, 7, "float32")}
        expected, found = both(program, arrays, {}, target)
        assert np.array_equal(expected["out"], found["out"]), length


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
def test_part_of_the_positions(target):
    axis = Axis("i", index(N))
    source, out = buffer("in", f32, N), buffer("out", f32, N)
    program = mapped("negated", op("neg", at(source, axis)), axis, [source], out)
    given = filled(f32, 200)
    for lo, hi in [(0, 0), (3, 3), (5, 4), (0, 1), (17, 133), (1, 200), (199, 200)]:
        out_array = np.zeros(200, "float32")
        arrays = {"in": given, "out": out_array}
        assert run(program, arrays, {"n": 200}, target, lo, hi) == 0
        inside = (np.arange(200) >= lo) & (np.arange(200) < hi)
        assert np.array_equal(out_array, np.where(inside, -given, 0.0)), (lo, hi)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("dtype", [u8, f32, i64], ids=str)
def test_every_stride(dtype, target):
    """Both the source and the result, by constants and by sizes."""
    stride = Size("s", 0)
    for length, (step, start), by_size in itertools.product(
        (1, 3, 16, 37), ((0, 0), (1, 0), (2, 0), (3, 5), (7, 1)), (False, True)
    ):
        axis = Axis("i", index(N))
        apart = stride if by_size else step
        source = Buffer("in", dtype, (index(N),), (index(apart),))
        out = Buffer("out", dtype, (index(N),), (index(2),))
        body = (put(out, [axis], at(source, axis)),)
        program = kernel("strided", [Loop(axis, How.VECTOR, body)], [source], [out], [N, stride])
        arrays = {"in": filled(dtype, length * 7 + 9)[start:], "out": filled(dtype, 2 * length)}
        expected, found = both(program, arrays, {"n": length, "s": step}, target)
        assert np.array_equal(expected["out"], found["out"]), (length, step, by_size)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
def test_transposed_flipped_and_reshaped(target):
    rows, columns = Size("r"), Size("c")
    i, j = Axis("i", index(rows)), Axis("j", index(columns))
    source = buffer("in", f32, rows, columns)
    turned = Buffer("turned", f32, (index(columns), index(rows)), (index(1), index(columns)))
    last = ix.sub(columns, ix.add(j, 1))
    flat = ix.add(ix.mul(i, columns), j)
    other = buffer("other", f32, columns, rows)
    reshaped = Load(other, (ix.floordiv(flat, rows), ix.mod(flat, rows)))
    out = [buffer(f"out{k}", f32, rows, columns) for k in range(4)]
    row = (
        put(out[0], [i, j], Load(turned, (index(j), index(i)))),
        put(out[1], [i, j], at(source, i, last)),
        put(out[2], [i, last], at(source, i, j)),
        put(out[3], [i, j], reshaped),
    )
    body = Loop(i, How.PARALLEL, (Loop(j, How.VECTOR, row),))
    program = Kernel(
        "turned",
        (source, turned, other, *out),
        frozenset(each.name for each in out),
        (rows, columns),
        (body,),
    )
    for height, width in [(1, 1), (3, 50), (17, 33), (2, 200), (5, 0)]:
        arrays = {each.name: filled(f32, height * width) for each in program.buffers}
        expected, found = both(program, arrays, {"r": height, "c": width}, target)
        for each in out:
            assert np.array_equal(expected[each.name], found[each.name]), (each, height, width)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
def test_gathered_under_masks(target):
    axis = Axis("i", index(N))
    ids, source = buffer("ids", i32, N), buffer("in", f32, 10)
    where = cast(at(ids, axis), i64)
    inside = op("and", op("ge", where, Const(i64, 0)), op("lt", where, Const(i64, 10)))
    gathered = Load(source, (index(Given(where, 0, 9)),), inside)
    first = Load(source, (index(0),), inside)  # one element, for some of the lanes
    none = Load(source, (index(1 << 40),), op("lt", where, Const(i64, -100)))
    shifted = Load(ids, (ix.sub(axis, 3),), op("ge", Position(index(axis)), Const(i64, 3)))
    value = op("add", op("add", op("add", gathered, first), none), cast(shifted, f32))
    out = buffer("out", f32, N)
    program = mapped("gathered", value, axis, [ids, source], out)
    for length in (0, 1, 5, 16, 40, 100):
        chosen = RNG.integers(-5, 15, length).astype("int32")
        given, result = filled(f32, 10), np.zeros(length, "float32")
        assert run(program, {"ids": chosen, "in": given, "out": result}, {"n": length}, target) == 0
        there = (chosen >= 0) & (chosen < 10)
        one = np.where(there, given[np.clip(chosen, 0, 9)] + given[0], 0)
        three = np.concatenate([np.zeros(3), chosen])[:length]
        assert np.array_equal(result, one + three)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
def test_scattered_and_stored_under_masks(target):
    axis = Axis("i", index(N))
    ids, out = buffer("ids", i64, N), buffer("out", i64, N)
    where = at(ids, axis)
    even = op("eq", op("and", where, Const(i64, 1)), Const(i64, 0))
    here = index(Given(where, 0, None))
    body = (Store(out, (here,), Position(index(axis)), even),)
    program = kernel("scattered", [Loop(axis, How.VECTOR, body)], [ids], [out], [N])
    for length in (0, 1, 9, 64, 77):
        arrays = {"ids": RNG.permutation(length), "out": np.full(length, -1)}
        expected, found = both(program, arrays, {"n": length}, target)
        assert np.array_equal(expected["out"], found["out"])


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
@pytest.mark.parametrize("dtype", [u8, i32, f32, bf16], ids=str)
def test_one_lane_of_a_narrowed_vector_is_stored_alone(dtype, target):
    """Where a mask is known, LLVM stores the wide element of one lane."""
    for length in (17, 33, 49):
        axis, rows = Axis("i", index(length)), Axis("r", index(3))
        source = buffer("in", f64 if dtype is f32 else i64, 3, length)
        out = Buffer("out", dtype, (index(3), index(length)), (index(length + 5), index(1)))
        only = op("eq", Position(index(axis)), Const(i64, length - 3))
        value = cast(at(source, rows, axis), dtype)
        for mask in (None, only):
            row = Store(out, (index(rows), index(axis)), value, mask)
            loop = Loop(rows, How.SERIAL, (Loop(axis, How.VECTOR, (row,)),))
            program = kernel("narrowed", [loop], [source], [out])
            arrays = {
                "in": filled(source.dtype, 3 * length),
                "out": filled(dtype, 3 * (length + 5)),
            }
            expected, found = both(program, arrays, {}, target)
            assert np.array_equal(expected["out"], found["out"]), (length, mask)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
def test_a_check_stops_before_what_stands_below(target):
    axis = Axis("i", index(N))
    ids, source, out = buffer("ids", i64, N), buffer("in", f32, 4), buffer("out", f32, N)
    where = at(ids, axis)
    inside = op("lt", where, Const(i64, 4))
    body = (
        Check(inside, 42),
        put(out, [axis], Load(source, (index(Given(where, 0, 3)),))),
    )
    program = kernel("checked", [Loop(axis, How.VECTOR, body)], [ids, source], [out], [N])
    for length in (1, 7, 64, 100):
        for wrong in {None, 0, length // 2, length - 1}:
            chosen = RNG.integers(0, 4, length)
            if wrong is not None:
                chosen[wrong] = 1 << 50  # far from any memory
            arrays = {"ids": chosen, "in": filled(f32, 4), "out": np.zeros(length, "float32")}
            status = run(program, arrays, {"n": length}, target)
            assert status == (0 if wrong is None else 42)


@pytest.mark.parametrize("target", TARGETS, ids=IDS)
def test_loads_do_not_leave_a_loop_without_positions(target):
    """Nor does one behind a check, although neither depends on the loop."""
    axis, inner = Axis("i", index(N)), Axis("j", index(Size("m")))
    nowhere = Buffer("in", f32, (index(1),), (index(1),))
    out = buffer("out", f32, N)
    far = Load(nowhere, (index(1 << 45),))
    failing = Check(Const(b1, False), 9)
    for body in (
        Loop(inner, How.VECTOR, (put(out, [inner], far),)),
        Loop(inner, How.VECTOR, (failing, put(out, [inner], far))),
    ):
        program = kernel(
            "nowhere", [Loop(axis, How.SERIAL, (body,))], [nowhere], [out], [N, Size("m")]
        )
        arrays = {"in": filled(f32, 1), "out": np.zeros(8, "float32")}
        checked = failing in body.body
        for n, m in [(0, 5), (5, 0)] + [(3, 4)] * checked:
            status = run(program, arrays, {"n": n, "m": m}, target)
            assert status == (9 if n * m else 0)


def test_what_does_not_change_in_a_loop_stands_before_it():
    rows, axis = Axis("r", index(8)), Axis("i", index(N))
    scale, source = buffer("scale", f32, 8), buffer("in", f32, N)
    out = buffer("out", f32, 8, N)
    factor = op("sqrt", at(scale, rows))
    value = op("add", op("mul", factor, at(source, axis)), op("neg", factor))
    body = Loop(rows, How.PARALLEL, (Loop(axis, How.VECTOR, (put(out, [rows, axis], value),)),))
    text = emit([kernel("hoisted", [body], [scale, source], [out], [N])], AVX512)
    assert text.count("@llvm.sqrt.f32(float %") == 1
    assert text.count("fneg") == 1
    assert "sqrt.v16f32" not in text


def test_stored_values_are_not_loaded_again():
    axis = Axis("i", index(N))
    source, out = buffer("in", f32, N), buffer("out", f32, N)
    body = (
        put(out, [axis], op("neg", at(source, axis))),
        put(out, [axis], op("abs", at(out, axis))),
    )
    text = emit([kernel("twice", [Loop(axis, How.VECTOR, body)], [source], [out], [N])], AVX512)
    loads = [
        line for line in text.splitlines() if "= load <" in line or "@llvm.masked.load" in line
    ]
    vectors = [line for line in loads if "declare" not in line]
    stores = text.count("store <16 x float>")
    assert len(vectors) == stores // 2 + 1  # those of whole vectors, and the one under a mask
