"""Which positions of a loop touch different elements of a buffer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from straightline.ir.index import ZERO, Axis, Index, add, mul, slope, sub, within

Coords: TypeAlias = tuple[Index, ...]


def positions_apart(axis: Axis, inner: frozenset[Axis], accesses: Iterable[Coords]) -> bool:
    """Whether two positions of `axis` are known never to touch the same element in `accesses`.

    `inner` are the axes of loops inside of that of `axis`. Where all accesses are at the same
    coordinates, it is taken for granted that they are another element at each position.
    """
    different = {*accesses}
    if len(different) <= 1:
        return all(any(axis in coord.axes for coord in coords) for coords in different)
    for dimension in zip(*different, strict=True):
        blocks = {_block(coord, axis, inner) for coord in dimension}
        if len(blocks) == 1 and None not in blocks:
            return True
    return False


def _block(coord: Index, axis: Axis, inner: frozenset[Axis]) -> tuple[Index, Index] | None:
    """(start, step): the position p has to itself what is from `start + step * p` on, before
    `start + step * (p + 1)`. None where it is not so, or not known.
    """
    step = slope(coord, axis)
    if step is None or step.axes & inner or coord.computed:
        return None
    rest = sub(coord, mul(step, axis))
    offset = ZERO
    for term in rest.terms:
        part = Index((term,), 0)
        if part.axes & inner:
            offset = add(offset, part)
    return (sub(rest, offset), step) if within(offset, step) else None
