"""What the items of a group compute, in terms of what is there when they run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from straightline.ir.index import Axis, Index, index
from straightline.ir.nodes import Expr, Fold, Folded, Load, fold_types
from straightline.ir.rewrite import replace
from straightline.schedule.group import Group
from straightline.schedule.inline import under, where_true
from straightline.schedule.sections import Keep, Place, Sections, passes, scratch


@dataclass(frozen=True)
class Computed:
    """A place with its values and conditions, reads of its own group resolved."""

    place: Place
    values: tuple[Expr, ...]
    conditions: tuple[tuple[Expr, int], ...]


def fold(place: Place) -> Fold:
    """What a reduction or a scan accumulates in."""
    compute = place.item.compute
    assert compute.combine is not None
    dtype = place.item.values[0].dtype
    return Fold(f"fold_{place.item.names[0]}", compute.combine, fold_types(compute.combine, dtype))


def computed(group: Group, found: Sections) -> tuple[Computed, ...]:
    """The places in order, with what they compute."""
    done: dict[str, Computed] = {}
    for place in found.places:
        made = _resolved(group, found, place, done)
        done |= dict.fromkeys(place.item.names, made)
    return tuple(dict.fromkeys(done.values()))


def _resolved(group: Group, found: Sections, place: Place, done: dict[str, Computed]) -> Computed:
    def value_of(load: Load) -> Expr | None:
        source = done.get(load.buffer.name)
        return None if source is None else _read(group, place, source, load)

    item = place.item
    return Computed(
        place,
        tuple(replace(value, {}, value_of) for value in item.values),
        tuple((replace(each.condition, {}, value_of), each.code) for each in item.requires),
    )


def _read(group: Group, place: Place, source: Computed, load: Load) -> Expr | None:
    """What a load of something computed in the group is; None: a load it stays."""
    made = source.place
    if made.keep is Keep.VALUE:
        component = [b is not None and b.name == load.buffer.name for b in made.item.results]
        if made.item.is_map:
            return where_true(load.mask, source.values[component.index(True)])
        return where_true(load.mask, Folded(fold(made), component.index(True)))
    if made.at == place.at and place.looped and passes(group, made.item, place.item, load):
        ours = dict(zip(made.inner, map(index, place.inner), strict=True))
        return where_true(load.mask, replace(source.values[0], ours))
    where = dict(_inner_coords(made, load))
    match made.keep:
        case Keep.AGAIN:
            value = replace(source.values[0], where)
            return value if load.mask is None else under(value, load.mask)
        case Keep.SCRATCH:
            return Load(scratch(made), tuple(where[axis] for axis in made.inner), load.mask)
        case _:
            return None


def _inner_coords(made: Place, load: Load) -> Iterator[tuple[Axis, Index]]:
    for axis in made.inner:
        at = made.item.coords.index(index(axis))
        yield axis, load.coords[at]
