"""Axes that have one position are no loops, unless a fold would be left without any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from straightline.ir.index import ONE, ZERO, Axis, Index, index, substitute
from straightline.ir.nodes import Buffer, Compute, Expr, Require
from straightline.ir.rewrite import replace


@dataclass(frozen=True)
class Item:
    """A compute ready to be placed in loops.

    `kept` are the axes of its results that are loops, `coords` where in the results a point lies.
    """

    compute: Compute
    kept: tuple[Axis, ...]
    over: tuple[Axis, ...]
    along: Axis | None
    coords: tuple[Index, ...]
    values: tuple[Expr, ...]
    requires: tuple[Require, ...]

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
    return Item(
        compute,
        tuple(kept),
        tuple(over),
        along,
        tuple(axes[a] for a in compute.axes),
        tuple(replace(v, axes) for v in compute.values),
        tuple(Require(replace(r.condition, axes), r.code) for r in compute.requires),
    )


def renamed(source: Item, axes: Mapping[Axis, Axis]) -> Item:
    """The same with other axes."""
    to = {old: index(new) for old, new in axes.items()}
    return Item(
        source.compute,
        tuple(axes.get(a, a) for a in source.kept),
        tuple(axes.get(a, a) for a in source.over),
        axes.get(source.along, source.along) if source.along is not None else None,
        tuple(replace_index(c, to) for c in source.coords),
        tuple(replace(v, to) for v in source.values),
        tuple(Require(replace(r.condition, to), r.code) for r in source.requires),
    )


def replace_index(value: Index, axes: Mapping[Axis, Index]) -> Index:
    return substitute(value, lambda atom: axes.get(atom) if isinstance(atom, Axis) else None)
