"""Maps that read along one axis and write along another: done in tiles.

Either way one of the two would walk memory a line of the cache for each element. Within a tile the
lines that are read are read again at once, while they are near.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from straightline.ir.dtypes import i64
from straightline.ir.index import ONE, ZERO, Axis, Index, add, floordiv, index, mod, mul, slope
from straightline.ir.nodes import Const, Expr, How, Loop, Position, Statement, op
from straightline.schedule import addresses, cost, statements

SIDE = 16
"""Elements along each side of a tile: a line of the cache, and as many lines as stay near."""


@dataclass(frozen=True)
class Tiled:
    """The loops of one tile around `body`, and the axes of the tiles among the others."""

    others: tuple[Axis, ...]
    body: tuple[Statement, ...]


def crossed(order: Sequence[Axis], body: Iterable[Statement]) -> Axis | None:
    """The axis along which something is read that is written along the last one."""
    body = tuple(body)
    vector = order[-1]
    if cost.amount(vector.extent) < SIDE:
        return None
    for where in addresses.indices_in(*statements.expressions(body)):
        if slope(where, vector) in (ZERO, ONE):
            continue
        for axis in order[:-1]:
            if slope(where, axis) is ONE and cost.amount(axis.extent) >= SIDE:
                return axis
    return None


def tiled(order: Sequence[Axis], across: Axis, body: tuple[Statement, ...]) -> Tiled:
    """The last loop and that of `across` as tiles, whose edges are masked where they reach out."""
    along = order[-1]
    tiles, places, inside = {}, {}, []
    loops = []
    for axis, name in ((across, "r"), (along, "c")):
        count = floordiv(add(axis.extent, SIDE - 1), SIDE)
        tiles[axis] = Axis(f"{name}t", count)
        within = Axis(name, index(SIDE))
        loops.append(within)
        places[axis] = add(mul(tiles[axis], SIDE), within)
        if mod(axis.extent, SIDE) is not ZERO:
            inside.append(_below(places[axis], axis.extent))
    body = statements.moved(body, places)
    for condition in inside:
        body = statements.masked(body, condition)
    rows, columns = loops
    body = (Loop(rows, How.SERIAL, (Loop(columns, How.VECTOR, body),)),)
    return Tiled(tuple(tiles.get(axis, axis) for axis in order), body)


def _below(where: Index, bound: Index) -> Expr:
    limit: Expr = Const(i64, bound.constant) if bound.is_constant else Position(bound)
    return op("lt", Position(where), limit)
