"""Axes that have one position are no loops, unless a fold would be left without any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace as changed

from straightline.ir.index import ONE, ZERO, Axis, Index, index, substitute
from straightline.ir.nodes import Buffer, Compute, Expr, Require, walk
from straightline.ir.rewrite import replace
from straightline.schedule import cost
from straightline.schedule.addresses import address, fast_axis, indices_in
from straightline.schedule.program import reads


@dataclass(frozen=True, eq=False)
class Item:
    """A compute ready to be placed in loops.

    `kept` are the axes of its results that are loops, `coords` where in the results a point lies.
    `fast` is the axis along which its elements lie next to one another, `reads` the buffers that it
    reads, `nodes` the size of its expressions, and `work` about how many operations it takes.
    """

    compute: Compute
    kept: tuple[Axis, ...]
    over: tuple[Axis, ...]
    along: Axis | None
    coords: tuple[Index, ...]
    values: tuple[Expr, ...]
    requires: tuple[Require, ...]
    fast: Axis | None
    reads: frozenset[str]
    nodes: int
    work: int

    @property
    def results(self) -> tuple[Buffer | None, ...]:
        return self.compute.results

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(buffer.name for buffer in self.compute.buffers)

    @property
    def is_map(self) -> bool:
        return not self.compute.over and self.compute.along is None

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (*self.kept, *self.over)


def item(compute: Compute) -> Item:
    """The compute without loops of one position, its axes named by their place."""
    axes: dict[Axis, Index] = {}
    kept, over = [], []
    stays = compute.along
    if compute.over and all(axis.extent is ONE for axis in compute.over):
        stays = compute.over[-1]
    for place, axis in enumerate(compute.axes):
        if axis.extent is ONE and axis is not stays:
            axes[axis] = ZERO
        else:
            kept.append(Axis(f"k{place}", axis.extent))
            axes[axis] = index(kept[-1])
    for place, axis in enumerate(compute.over):
        if axis.extent is ONE and axis is not stays:
            axes[axis] = ZERO
        else:
            over.append(Axis(f"o{place}", axis.extent))
            axes[axis] = index(over[-1])
    along = None
    if compute.along is not None:
        (along,) = (a for a in kept if index(a) is axes[compute.along])
    values = tuple(replace(v, axes) for v in compute.values)
    coords = tuple(axes[a] for a in compute.axes)
    every = (*kept, *over)
    stored = [address(buffer, coords) for buffer in compute.buffers] if not over else []
    return Item(
        compute,
        tuple(kept),
        tuple(over),
        along,
        coords,
        values,
        tuple(Require(replace(r.condition, axes), r.code) for r in compute.requires),
        fast_axis(every, stored if along is None else [], indices_in(*values)),
        reads(compute),
        sum(1 for _ in walk(*values)),
        cost.points(every) * (1 + cost.arithmetic(*values)),
    )


def renamed(source: Item, axes: Mapping[Axis, Axis]) -> Item:
    """The same with other axes."""
    to = {old: index(new) for old, new in axes.items()}

    def one(axis: Axis | None) -> Axis | None:
        return None if axis is None else axes.get(axis, axis)

    return changed(
        source,
        kept=tuple(axes.get(a, a) for a in source.kept),
        over=tuple(axes.get(a, a) for a in source.over),
        along=one(source.along),
        coords=tuple(replace_index(c, to) for c in source.coords),
        values=tuple(replace(v, to) for v in source.values),
        requires=tuple(Require(replace(r.condition, to), r.code) for r in source.requires),
        fast=one(source.fast),
    )


def replace_index(value: Index, axes: Mapping[Axis, Index]) -> Index:
    return substitute(value, lambda atom: axes.get(atom) if isinstance(atom, Axis) else None)
