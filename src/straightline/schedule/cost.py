"""What expressions cost, and how much of anything there is, where that is known."""

from __future__ import annotations

from collections.abc import Iterable

from straightline.ir.index import Axis, Index, bounds, product
from straightline.ir.nodes import Expr, Load, Op, walk
from straightline.ir.ops import OPERATIONS

GUESS = 256
"""What a size is taken for that is known only when the program runs."""


def arithmetic(*roots: Expr) -> int:
    """The cost of the operations below, shared ones counted once; an addition is 1."""
    return sum(_of(node) for node in walk(*roots))


def _of(node: Expr) -> int:
    match node:
        case Op("select" | "cast", _, _):
            return 1
        case Op(name, _, _):
            return OPERATIONS[name].cost
        case Load(_, _, _):
            return 1
        case _:
            return 0


def amount(extent: Index) -> int:
    """About how large a size is."""
    low, high = bounds(extent)
    if low is not None and low == high:
        return low
    return min(GUESS, high) if high is not None else max(GUESS, low or 0)


def points(axes: Iterable[Axis]) -> int:
    """About how many positions these loops have together."""
    result = 1
    for axis in axes:
        result *= amount(axis.extent)
    return result


def known(extents: Iterable[Index]) -> int | None:
    """Their product; None when it is known only at run time."""
    whole = product(extents)
    return whole.constant if whole.is_constant else None
