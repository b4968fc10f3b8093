"""Rewriting expressions: simplifying, and putting others in place of loads and axes.

Expressions are graphs with shared parts, and stay so: each node is rewritten once, whatever the
number of its uses, and one in which nothing changes stays the same object.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping

from straightline.ir.index import Atom, Axis, Given, Index, Indexlike, index, substitute
from straightline.ir.nodes import (
    Accumulate,
    Check,
    Const,
    Declare,
    Expr,
    Kernel,
    Load,
    Loop,
    Op,
    Position,
    Statement,
    Store,
    op,
    walk,
)
from straightline.ir.rules import TRUE, reduced

Memo = MutableMapping[Expr, Expr]


def rebuild(root: Expr, make: Callable[[Expr, Memo], Expr], memo: Memo | None = None) -> Expr:
    """What `make` gives for the root, having given it what it gave for the operands before.

    A `memo` that is handed in is filled, and saves work over several roots.
    """
    done: Memo = {} if memo is None else memo
    for expr in walk(root, skip=done):
        done[expr] = make(expr, done)
    return done[root]


def with_operands(
    expr: Expr, new: Mapping[Expr, Expr], axes: Mapping[Axis, Indexlike] | None = None
) -> Expr:
    """The same node on other operands, and with other indices in place of axes."""
    match expr:
        case Op(name, dtype, args):
            changed = tuple([new[arg] for arg in args])
            return expr if changed == args else Op(name, dtype, changed)
        case Load(buffer, coords, mask):
            moved = tuple([reindex(coord, new, axes) for coord in coords])
            guard = None if mask is None else new[mask]
            return expr if (moved, guard) == (coords, mask) else Load(buffer, moved, guard)
        case Position(value):
            other = reindex(value, new, axes)
            return expr if other is value else Position(other)
        case _:
            return expr


def reindex(
    value: Index, new: Mapping[Expr, Expr], axes: Mapping[Axis, Indexlike] | None = None
) -> Index:
    """An index with the expressions of computed numbers replaced, and axes."""

    def replacement(atom: Atom) -> Indexlike | None:
        match atom:
            case Axis() if axes is not None:
                return axes.get(atom)
            case Given(inner, low, high) if new[inner] is not inner:
                return given(new[inner], low, high)
            case _:
                return None

    return substitute(value, replacement)


def given(value: Expr, low: int | None = None, high: int | None = None) -> Index:
    """The index that an expression of type `i64` is: one of its own where its value is none."""
    match value:
        case Position(inner):
            return inner
        case Const(_, number):
            return index(int(number))
        case _:
            return index(Given(value, low, high))


def replace(
    expr: Expr,
    axes: Mapping[Axis, Indexlike],
    loads: Callable[[Load], Expr | None] | None = None,
    memo: Memo | None = None,
) -> Expr:
    """`expr` with these indices in place of axes, wherever they stand: in the coordinates of loads,
    in positions, and inside of computed numbers.

    `loads` is shown each load, its coordinates and mask replaced already; what it gives stands in
    place of it, as it is. A memo is shared only by calls with the same `axes` and `loads`. The
    extents of axes stay.
    """

    def make(old: Expr, done: Memo) -> Expr:
        made = with_operands(old, done, axes)
        if loads is not None and isinstance(made, Load):
            other = loads(made)
            return made if other is None else other
        return made

    return rebuild(expr, make, memo)


def guarded(expr: Expr, mask: Expr, memo: Memo | None = None) -> Expr:
    """`expr` touching memory only where `mask` holds; elsewhere its value means nothing.

    The expressions of the mask itself stay as they are.
    """

    def make(old: Expr, done: Memo) -> Expr:
        made = with_operands(old, done)
        if isinstance(made, Load):
            return Load(made.buffer, made.coords, conjunction(mask, made.mask))
        return made

    done: Memo = {} if memo is None else memo
    return rebuild(expr, make, done)


def simplify(expr: Expr, memo: Memo | None = None) -> Expr:
    """An expression with the same bits everywhere (but for those of a NaN), by `rules.RULES`."""

    def make(old: Expr, done: Memo) -> Expr:
        return reduced(with_operands(old, done))

    return rebuild(expr, make, memo)


def conjunction(left: Expr | None, right: Expr | None) -> Expr | None:
    """The mask that holds where both do; None is the one that always does."""
    if left is None or left is right:
        return right
    return left if right is None else reduced(op("and", left, right))


# -- kernels ---------------------------------------------------------------------------------------


def map_expressions(
    body: tuple[Statement, ...],
    change: Callable[[Expr], Expr],
    axes: Mapping[Axis, Indexlike] | None = None,
) -> tuple[Statement, ...]:
    """The statements with each expression changed, those of their index expressions too, and these
    indices in place of axes in the coordinates of stores.

    What a changed mask or condition makes needless is left out.
    """
    return tuple(new for old in body for new in _changed(old, change, axes))


def _changed(
    statement: Statement,
    change: Callable[[Expr], Expr],
    axes: Mapping[Axis, Indexlike] | None,
) -> Iterator[Statement]:
    def masked(mask: Expr | None) -> Expr | None:
        new = None if mask is None else change(mask)
        return None if new is TRUE else new

    match statement:
        case Loop(axis, how, body):
            yield Loop(axis, how, map_expressions(body, change, axes))
        case Accumulate(fold, values, mask):
            yield Accumulate(fold, tuple(map(change, values)), masked(mask))
        case Store(buffer, coords, value, mask):
            guard = masked(mask)
            new = {number.value: change(number.value) for at in coords for number in at.computed}
            moved = tuple(reindex(coord, new, axes) for coord in coords)
            yield Store(buffer, moved, change(value), guard)
        case Check(condition, code):
            new_condition = change(condition)
            if new_condition is not TRUE:
                yield Check(new_condition, code)
        case Declare():
            yield statement


def simplify_kernel(kernel: Kernel) -> Kernel:
    """A kernel that does the same, by `simplify`."""
    memo: Memo = {}
    body = map_expressions(kernel.body, lambda expr: simplify(expr, memo))
    return dataclasses.replace(kernel, body=body)
