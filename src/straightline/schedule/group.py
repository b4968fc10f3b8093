"""Which computes become one kernel: those that can share their outer loops.

A group is a set of computes in an order that they can run in, all of them inside of the same outer
loops. What one of them reads of another is read at the same position of these loops, so that it is
there, in a register or in memory that the same thread has just written.

FLAT    there are no other loops: maps of one shape
ROW     inner loops run along memory: rows that are summed, normalised, mapped
COLUMN  inner loops run across it, and an outer one along it: columns that are summed
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from straightline.ir.index import Axis, Index, Size
from straightline.schedule import cost
from straightline.schedule.fuel import Fuel
from straightline.schedule.program import External, Program, loads, sizes, writes
from straightline.schedule.unit import Item, item, renamed


class Kind(enum.Enum):
    FLAT = "flat"
    ROW = "row"
    COLUMN = "column"


FEW, MUCH = 32, 1 << 16
"""A kernel whose outer loops have few positions keeps other threads idle: nothing that does much
work is drawn into one."""

LARGEST = 4000
"""Nodes of all expressions of a group; compile time is linear in it."""

MOST_BUFFERS = 96


@dataclass(frozen=True, eq=False)
class Group:
    """Items whose axes are named alike where they share a loop: `outer` in each of them."""

    kind: Kind
    outer: tuple[Axis, ...]
    items: tuple[Item, ...]

    def inner(self, one: Item) -> tuple[Axis, ...]:
        """The loops that an item has for itself."""
        return tuple(axis for axis in one.axes if axis not in self.outer)

    def producer(self, name: str) -> Item | None:
        return next((one for one in self.items if name in one.names), None)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for one in self.items for name in one.names)

    @functools.cached_property
    def made(self) -> frozenset[str]:
        return frozenset(self.names)

    @functools.cached_property
    def read(self) -> frozenset[str]:
        return frozenset().union(*(one.reads for one in self.items))


def alone(one: Item) -> Group:
    """A group of one."""
    if one.is_map:
        return _grouped(Kind.FLAT, one.kept, (one,))
    if one.along is not None:
        outer = tuple(axis for axis in one.kept if axis is not one.along)
        kind = Kind.COLUMN if one.fast in outer else Kind.ROW
        return _grouped(kind, outer, (one,))
    kind = Kind.COLUMN if one.fast in one.kept else Kind.ROW
    return _grouped(kind, one.kept, (one,))


def _grouped(kind: Kind, outer: Sequence[Axis], items: tuple[Item, ...]) -> Group:
    names = {axis: Axis(f"i{place}", axis.extent) for place, axis in enumerate(outer)}
    return Group(kind, tuple(names.values()), tuple(renamed(one, names) for one in items))


def join(group: Group, one: Item) -> Group | None:
    """The group with one more item at its end, if its loops can be shared."""
    mapping = _from_reads(group, one)
    if mapping is None:
        return None
    if not mapping:
        mapping = _from_shape(group, one)
        if mapping is None:
            return None
    inside = [axis for axis in group.outer if axis in mapping and mapping[axis] in one.kept]
    if one.along is not None:
        inside = [axis for axis in inside if mapping[axis] is not one.along]
    if group.kind is not Kind.FLAT and len(inside) < len(group.outer):
        return None
    shared = {mapping[axis] for axis in inside}
    if not one.is_map and shared != set(one.kept) - {one.along}:
        return None  # each fold belongs to one outer position
    own = {old: Axis(f"{old.name}_{len(group.items)}", old.extent) for old in one.axes}
    own |= {mapping[axis]: axis for axis in group.outer if axis in mapping}
    grown = Group(group.kind, tuple(inside), (*group.items, renamed(one, own)))
    kind = _kind(grown)
    return None if kind is None else Group(kind, grown.outer, grown.items)


def _from_reads(group: Group, one: Item) -> dict[Axis, Axis] | None:
    """Which axis of an item each outer one is, by where it reads what the group makes.

    An outer axis that some read does not follow from end to end cannot be shared, and is left out.
    Empty when the item reads nothing of the group, None when nothing could be shared.
    """
    found: dict[Axis, Axis] = {}
    barred: set[Axis] = set()
    read = False
    for load in loads(*one.values, *(r.condition for r in one.requires)):
        source = group.producer(load.buffer.name)
        if source is None:
            continue
        read = True
        for axis in group.outer:
            (where,) = (
                c for c, at in zip(load.coords, source.coords, strict=True) if _axis_of(at) is axis
            )
            other = _axis_of(where)
            follows = other is not None and other in one.axes and other.extent is axis.extent
            if other is None or not follows or found.setdefault(axis, other) is not other:
                barred.add(axis)
    shared = {axis: other for axis, other in found.items() if axis not in barred}
    if len(set(shared.values())) < len(shared):
        return None
    return None if read and not shared and group.outer else shared


def _axis_of(where: Index) -> Axis | None:
    if where.constant == 0 and len(where.terms) == 1:
        product, count = where.terms[0]
        if count == 1 and len(product) == 1 and isinstance(product[0], Axis):
            return product[0]
    return None


def _from_shape(group: Group, one: Item) -> dict[Axis, Axis] | None:
    """The same for one that reads nothing of the group: by its shape."""
    count = len(group.outer)
    if group.kind is Kind.FLAT and len(one.kept) != count:
        return None
    candidates = one.kept[:count] if group.kind is not Kind.COLUMN else one.kept[-count:]
    same = [a.extent is b.extent for a, b in zip(group.outer, candidates, strict=False)]
    if len(candidates) < count or not all(same):
        return None
    return dict(zip(group.outer, candidates, strict=True))


def _kind(group: Group) -> Kind | None:
    """What a group is; None when its items do not walk memory alike."""
    kinds = set()
    for one in group.items:
        if group.inner(one):
            kinds.add(Kind.COLUMN if one.fast in group.outer else Kind.ROW)
    if not kinds:
        return Kind.FLAT if all(one.is_map for one in group.items) else group.kind
    if group.kind is not Kind.FLAT:
        kinds.add(group.kind)
    return kinds.pop() if len(kinds) == 1 else None


def _shares(group: Group, one: Item) -> str | None:
    """What is won by having an item in a group; None when nothing is."""
    if one.reads & group.made:
        return "reads what the kernel has just computed"
    if one.reads & group.read:
        return "reads the same memory"
    return None


def _fits(grown: Group, group: Group, one: Item) -> bool:
    """Whether the grown group is no worse than two."""
    positions = cost.points(grown.outer)
    narrows = positions < FEW and positions < cost.points(group.outer)
    if narrows and max(sum(each.work for each in group.items), one.work) > MUCH:
        return False
    nodes = sum(each.nodes for each in grown.items)
    return nodes <= LARGEST and len(grown.made | grown.read) <= MOST_BUFFERS


Placed = Group | External


def groups(program: Program, fuel: Fuel) -> tuple[Placed, ...]:
    """The program's steps, those that can share their loops together, in an order they can run in.

    A compute joins the last group that it can, not before what it reads is there.
    """
    placed: list[Placed] = []
    made_at: dict[str, int] = {}
    told_at: dict[Size, int] = {}
    for step in program.steps:
        if isinstance(step, External):
            placed.append(step)
            made_at |= dict.fromkeys(step.writes, len(placed) - 1)
            told_at |= dict.fromkeys(step.tells, len(placed) - 1)
            continue
        one = item(step)
        earliest = max((made_at.get(name, 0) for name in one.reads), default=0)
        if told_at:
            told = (told_at.get(size, 0) for size in sizes(step))
            earliest = max(earliest, *told, 0)
        at = _join_last(placed, earliest, one, fuel)
        made_at |= dict.fromkeys(writes(step), at)
    return tuple(placed)


def _join_last(placed: list[Placed], earliest: int, one: Item, fuel: Fuel) -> int:
    """Put an item into the last group possible, or into a new one; returns its position."""
    for at in range(len(placed) - 1, earliest - 1, -1):
        group = placed[at]
        if isinstance(group, External):
            continue
        why = _shares(group, one)
        grown = join(group, one) if why is not None else None
        if grown is None or why is None or not _fits(grown, group, one):
            continue
        if fuel.take(one.names[0], "fused", why):
            placed[at] = grown
            return at
    placed.append(alone(one))
    return len(placed) - 1
