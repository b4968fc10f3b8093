"""Where in memory the elements of a compute are, and along which axis they are neighbours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from straightline.ir.index import (
    ONE,
    ZERO,
    Axis,
    Index,
    add,
    floordiv,
    index,
    mod,
    mul,
    product,
    slope,
    sub,
)
from straightline.ir.nodes import Buffer, Expr, Load, Position, walk


def address(buffer: Buffer, coords: Iterable[Index]) -> Index:
    """How many elements behind the first one of these coordinates lies."""
    pairs = zip(coords, buffer.strides, strict=True)
    return add(*(mul(coord, stride) for coord, stride in pairs))


def flat(buffer: Buffer) -> Buffer:
    """The same memory as one row of elements."""
    sides = zip(buffer.shape, buffer.strides, strict=True)
    reach = add(1, *(mul(sub(size, 1), stride) for size, stride in sides))
    return Buffer(buffer.name, buffer.dtype, (reach,), (ONE,))


def indices_in(*roots: Expr) -> Iterator[Index]:
    """The addresses and positions that these expressions compute."""
    for node in walk(*roots):
        match node:
            case Load(buffer, coords, _):
                yield address(buffer, coords)
            case Position(where):
                yield where
            case _:
                pass


def fast_axis(axes: Iterable[Axis], stored: Iterable[Index], read: Iterable[Index]) -> Axis | None:
    """The axis along which most of the memory is walked element by element; of equals the last.

    What is stored counts twice: it cannot be gathered.
    """
    candidates = tuple(axes)
    votes = dict.fromkeys(candidates, 0)
    for weight, addresses in ((3, stored), (2, read)):
        for where in addresses:
            for axis in candidates:
                if slope(where, axis) is ONE:
                    votes[axis] += weight
    best = max(votes.values(), default=0)
    return next((axis for axis in reversed(candidates) if votes[axis] == best), None)


def merges(outer: Axis, inner: Axis, addresses: Iterable[Index]) -> bool:
    """Whether two nested loops are one in every address."""
    for where in addresses:
        far, near = slope(where, outer), slope(where, inner)
        if far is None or near is None or far is not mul(near, inner.extent):
            return False
    return True


def merged(axes: tuple[Axis, ...], name: str) -> tuple[Axis, dict[Axis, Index]]:
    """One axis for several nested ones, and where in each of these a position of it lies.

    Where one has no positions, nor has the whole, and any will do.
    """
    whole = Axis(name, product(axis.extent for axis in axes))
    if whole.extent is ZERO:
        return whole, dict.fromkeys(axes, ZERO)
    places: dict[Axis, Index] = {}
    rest = index(whole)
    for axis in reversed(axes[1:]):
        places[axis] = mod(rest, axis.extent)
        rest = floordiv(rest, axis.extent)
    places[axes[0]] = rest
    return whole, places
