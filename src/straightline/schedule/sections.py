"""The inner loops of a group: which of its items share one, and where what they make is kept.

A *section* is one nest of inner loops, or none, run from end to end at each position of the outer
ones; sections follow one another. What an item makes is either a value of the outer position (a
fold, or computed from such), or the elements along its inner loops.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from straightline.ir.index import Axis, Index, index, mul
from straightline.ir.nodes import Buffer, Load
from straightline.schedule import cost
from straightline.schedule.group import Group, Kind
from straightline.schedule.program import loads
from straightline.schedule.unit import Item

SCRATCH_BYTES = 1 << 15
"""What a kernel keeps for one outer position: it should stay in the first cache."""

AGAIN = 6
"""Up to this cost elements are computed again in a later section, rather than kept."""


class Keep(enum.Enum):
    """Where an item's result is for later readers of its group."""

    VALUE = "a value at the outer position"
    PASSING = "read at its own position only"
    AGAIN = "computed again"
    SCRATCH = "memory of the kernel's own"
    MEMORY = "its buffer"


@dataclass(frozen=True)
class Place:
    """Where an item runs: in section number `at`; one without inner loops, before it."""

    item: Item
    inner: tuple[Axis, ...]
    at: int
    keep: Keep

    @property
    def looped(self) -> bool:
        """Whether it runs in a section, and not between two."""
        return bool(self.inner) or not self.item.is_map


@dataclass(frozen=True)
class Section:
    """Loops from the outermost in; serial ones where their order matters."""

    axes: tuple[Axis, ...]
    serial: bool


@dataclass(frozen=True)
class Sections:
    sections: tuple[Section, ...]
    places: tuple[Place, ...]

    def producer(self, name: str) -> Place | None:
        return next((place for place in self.places if name in place.item.names), None)


def sections(group: Group, needed: frozenset[str]) -> Sections:
    """Place the items of a group. `needed` are the buffers that something outside of it reads."""
    found: list[Section] = []
    at: dict[str, tuple[Item, int]] = {}
    order: list[tuple[Item, int]] = []
    for one in group.items:
        lowest = _earliest(group, one, at)
        inner = group.inner(one)
        place = lowest
        if inner or not one.is_map:
            wanted = Section(inner, one.along is not None)
            place = _place(found, wanted, lowest)
        at |= dict.fromkeys(one.names, (one, place))
        order.append((one, place))
    keeps = _keeps(group, dict(at), order, needed)
    places = tuple(Place(one, group.inner(one), where, keeps[one.names[0]]) for one, where in order)
    return Sections(tuple(found), places)


def _place(found: list[Section], wanted: Section, lowest: int) -> int:
    for place in range(lowest, len(found)):
        if _alike(found[place], wanted):
            return place
    found.append(wanted)
    return len(found) - 1


def _alike(one: Section, other: Section) -> bool:
    extents = [tuple(axis.extent for axis in each.axes) for each in (one, other)]
    return extents[0] == extents[1] and one.serial == other.serial


def _earliest(group: Group, one: Item, at: Mapping[str, tuple[Item, int]]) -> int:
    """The first section that all it reads is there in."""
    lowest = 0
    for load in loads(*one.values, *(r.condition for r in one.requires)):
        if load.buffer.name not in at:
            continue
        source, place = at[load.buffer.name]
        here = not group.inner(source) and source.is_map
        same = here or passes(group, source, one, load)
        lowest = max(lowest, place if same else place + 1)
    return lowest


def passes(group: Group, source: Item, reader: Item, load: Load) -> bool:
    """Whether a reader in the same loops takes the element just made at its own position."""
    ours, theirs = group.inner(reader), group.inner(source)
    if not source.is_map or len(ours) != len(theirs) or reader.along is not None:
        return False
    if [a.extent for a in ours] != [a.extent for a in theirs]:
        return False
    to = dict(zip(theirs, ours, strict=True))
    pairs = zip(load.coords, source.coords, strict=True)
    return all(_moved(coord, to) is where for where, coord in pairs)


def _moved(where: Index, to: Mapping[Axis, Axis]) -> Index:
    """A coordinate of the source, which is an axis or zero, with the reader's axis."""
    if not where.terms:
        return where
    ((product, _),) = where.terms
    (axis,) = product
    assert isinstance(axis, Axis)
    return index(to.get(axis, axis))


def _keeps(
    group: Group,
    at: Mapping[str, tuple[Item, int]],
    order: list[tuple[Item, int]],
    needed: frozenset[str],
) -> dict[str, Keep]:
    """Where each item's result is kept, by the name of its first buffer."""
    later = {
        load.buffer.name
        for one, place in order
        for load in loads(*one.values, *(r.condition for r in one.requires))
        if load.buffer.name in at
        and not (
            at[load.buffer.name][1] == place and passes(group, at[load.buffer.name][0], one, load)
        )
    }
    left = SCRATCH_BYTES
    result = {}
    for one, _ in order:
        inner = group.inner(one)
        keep = Keep.PASSING
        if not inner or (not one.is_map and one.along is None):
            keep = Keep.VALUE
        elif later.intersection(one.names):
            size = cost.known(axis.extent for axis in inner)
            bytes_ = (
                None if size is None else size * sum(b.dtype.bytes for b in one.compute.buffers)
            )
            if needed.intersection(one.names):
                keep = Keep.MEMORY
            elif one.is_map and cost.arithmetic(*one.values) <= AGAIN:
                keep = Keep.AGAIN
            elif _fits_scratch(group, one) and bytes_ is not None and bytes_ <= left:
                keep = Keep.SCRATCH
                left -= bytes_
            else:
                keep = Keep.MEMORY
        result[one.names[0]] = keep
    return result


def _fits_scratch(group: Group, one: Item) -> bool:
    """Several positions of a vector would share what is private to one outer position."""
    return one.is_map and group.kind is Kind.ROW


def scratch(place: Place) -> Buffer:
    """Memory for the elements that one outer position of an item makes."""
    (buffer,) = place.item.compute.buffers
    shape = tuple(axis.extent for axis in place.inner)
    strides = []
    reach = index(1)
    for extent in reversed(shape):
        strides.append(reach)
        reach = mul(reach, extent)
    return Buffer(f"{buffer.name}_row", buffer.dtype, shape, tuple(reversed(strides)))
