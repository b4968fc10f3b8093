"""Nodes are one object each, found again from any thread, and freed with their last use."""

from __future__ import annotations

import dataclasses
import gc
import math
import struct
import threading
import weakref

import pytest

from straightline.ir.dtypes import b1, f32, f64, i64
from straightline.ir.index import Axis, Given, Index, Size, add, index, mul
from straightline.ir.nodes import (
    Buffer,
    Const,
    Fold,
    Folded,
    Load,
    Op,
    Position,
    Running,
    Store,
    expressions,
    op,
    walk,
)

n = Size("n")
i = Axis("i", index(n))


def buffer(name: str = "x") -> Buffer:
    return Buffer(name, f32, (index(n),), (index(1),))


MAKERS = [
    lambda: Const(f32, 2.0),
    lambda: Load(buffer(), (add(i, 1),), Const(b1, True)),
    lambda: Position(mul(i, 2)),
    lambda: op("exp", Load(buffer(), (index(i),))),
    lambda: Folded(Fold("f", "sum", (f32,))),
    lambda: Running(Fold("f", "argmax", (f32, i64)), 1),
    lambda: index(Given(Load(buffer(), (index(i),)), 0, 9)),
    buffer,
]


@pytest.mark.parametrize("make", MAKERS)
def test_equal_nodes_are_one_object(make):
    assert make() is make()


def test_constants_are_told_apart_by_their_bits():
    payload = struct.unpack("d", struct.pack("Q", 0x7FF8000000000001))[0]
    numbers = [0.0, -0.0, math.nan, payload, 0, False, 1.0, 1, True]
    constants = [Const(f64, number) for number in numbers]
    assert len(set(constants)) == len(numbers)
    assert Const(f32, 0.0) is not constants[0]
    assert Const(f64, math.nan) is constants[2]


def test_a_changed_copy_is_another_node():
    other = dataclasses.replace(buffer(), name="y")
    assert other is buffer("y")
    assert buffer().name == "x"


def test_nodes_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        buffer().name = "y"  # type: ignore[misc]


def test_threads_find_the_same_nodes():
    start = threading.Barrier(4)
    made: list[list[object]] = []

    def make() -> None:
        start.wait()
        made.append([op("add", Const(f32, float(k)), Const(f32, 0.5)) for k in range(2000)])

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, *others = made
    assert all(a is b for other in others for a, b in zip(first, other, strict=True))


def test_nodes_are_freed():
    kept: list[Op] = [op("neg", Const(f32, 0.25 + k)) for k in range(500)]
    references = [weakref.ref(node) for node in kept]
    assert all(reference() is not None for reference in references)
    kept.clear()
    gc.collect()
    assert all(reference() is None for reference in references)


def test_walking_goes_from_operands_to_uses_through_indices_once():
    ids = Load(Buffer("ids", i64, (index(n),), (index(1),)), (index(i),))
    mask = op("lt", ids, Const(i64, 3))
    load = Load(buffer(), (index(Given(ids, 0, 9)),), mask)
    root = op("add", load, load)
    seen = [*walk(root)]
    assert len(seen) == len(set(seen)) == 5
    assert seen.index(ids) < seen.index(mask) < seen.index(load) < seen.index(root)
    assert [*walk(root, skip={load})] == [root]
    store = Store(buffer("y"), (index(Given(ids)),), root, mask)
    assert set(expressions(store)) == {root, mask, ids}


def test_text_of_shared_expressions_is_short():
    expr = Load(buffer(), (index(i),))
    root: Op = op("neg", expr)
    for _ in range(100):
        root = op("add", root, root)
    assert len(repr(root)) < 1000
    assert len(repr(Index((((Given(op("cast", root, dtype=i64)),), 2),), 0))) < 1000
