"""Rewriting of expressions."""

from __future__ import annotations

from straightline.ir.dtypes import f32, i64
from straightline.ir.index import Axis, Given, Size, add, index, mul
from straightline.ir.nodes import Buffer, Const, Load, Op, Position, op, walk
from straightline.ir.rewrite import Memo, guarded, replace

n = Size("n", 2)
i, j = Axis("i", index(n)), Axis("j", index(4))
a = Buffer("a", f32, (index(n), index(4)), (index(4), index(1)))
b = Buffer("b", f32, (index(4),), (index(1),))
ids = Buffer("ids", i64, (index(n),), (index(1),))


def test_axes_are_replaced_in_coordinates_positions_masks_and_computed_numbers():
    row = Given(Load(ids, (index(i),)), 0, 3)
    mask = op("lt", Position(index(i)), Const(i64, 3))
    expr = op("add", Load(a, (index(i), index(row)), mask), Load(b, (index(j),)))
    new = replace(expr, {i: add(i, 1), j: mul(j, 2)})
    moved = Given(Load(ids, (add(i, 1),)), 0, 3)
    masked = op("lt", Position(add(i, 1)), Const(i64, 3))
    assert new is op("add", Load(a, (add(i, 1), index(moved)), masked), Load(b, (mul(j, 2),)))


def test_axes_may_change_places():
    expr = Load(a, (index(i), index(j)))
    assert replace(expr, {i: index(j), j: index(i)}) is Load(a, (index(j), index(i)))


def test_loads_are_replaced_with_their_coordinates_moved_and_the_new_is_left_alone():
    def inline(load: Load):
        return op("neg", Load(b, load.coords)) if load.buffer is b else None

    expr = op("mul", Load(b, (index(j),)), Load(a, (index(i), index(j))))
    expected = op("mul", op("neg", Load(b, (add(j, 1),))), Load(a, (index(i), add(j, 1))))
    assert replace(expr, {j: add(j, 1)}, inline) is expected


def test_a_computed_number_that_comes_to_be_a_position_is_an_index():
    expr = Load(b, (index(Given(Load(ids, (index(i),)), 0, 3)),))
    assert replace(expr, {}, lambda load: Position(index(j)) if load.buffer is ids else None) is (
        Load(b, (index(j),))
    )


def test_what_does_not_change_stays_the_same_object():
    expr = op("add", Load(b, (index(j),)), Load(a, (index(i), index(Given(Position(index(j)))))))
    assert replace(expr, {Axis("k", index(3)): index(0)}, lambda load: None) is expr


def chain(depth: int) -> Op:
    expr = op("neg", Load(b, (index(j),)))
    for _ in range(depth):
        expr = op("add", expr, expr)
    return expr


def test_shared_parts_are_rewritten_once_at_any_depth():
    calls = []
    expr = replace(chain(3000), {j: index(0)}, lambda load: calls.append(load))
    assert len(calls) == 1
    assert sum(1 for _ in walk(expr)) == 3002


def test_a_memo_carries_over():
    calls = []
    memo: Memo = {}
    for root in (chain(5), chain(6)):
        replace(root, {j: index(0)}, lambda load: calls.append(load), memo)
    assert len(calls) == 1


def test_guarded_masks_each_load_and_those_inside_of_indices():
    mask = op("lt", Position(index(i)), Const(i64, 3))
    other = op("eq", Load(ids, (index(i),)), Const(i64, 0))
    inner = Given(Load(ids, (index(i),)), 0, 3)
    expr = op("neg", Load(a, (index(i), index(inner)), other))
    safe = Load(ids, (index(i),), mask)
    expected = Load(
        a, (index(i), index(Given(safe, 0, 3))), op("and", mask, op("eq", safe, Const(i64, 0)))
    )
    assert guarded(expr, mask) is op("neg", expected)
