"""A group as a kernel: its loops in order, merged where memory allows, and what happens in them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from straightline.ir.index import Axis, Index, index, slope
from straightline.ir.nodes import (
    Accumulate,
    Check,
    Declare,
    Expr,
    Folded,
    How,
    Kernel,
    Loop,
    Running,
    Statement,
    Store,
)
from straightline.schedule import addresses, statements, tiles
from straightline.schedule.group import Group, Kind
from straightline.schedule.sections import Keep, Place, Sections, scratch, sections
from straightline.schedule.statements import moved
from straightline.schedule.values import Computed, computed, fold


def kernel(name: str, group: Group, needed: frozenset[str]) -> Kernel:
    """The kernel of a group. `needed` are the buffers that something outside of it reads."""
    found = sections(group, needed)
    body = statements.alike(_outer(group, _body(group, found, needed)))
    own = {scratch(p).name: scratch(p) for p in found.places if p.keep is Keep.SCRATCH}
    read, written = statements.buffers(body)
    given = {n: b for n, b in (read | written).items() if n not in own}
    private = tuple({**read, **written}[n] for n in own)
    return Kernel(
        name,
        tuple(given.values()),
        frozenset(written) - own.keys(),
        statements.sizes(body, (*given.values(), *private)),
        body,
        private,
    )


def _body(group: Group, found: Sections, needed: frozenset[str]) -> tuple[Statement, ...]:
    """What happens at one position of the outer loops: sections, and what stands between them."""
    items = computed(group, found)
    inside: list[Statement] = []
    numbers = itertools.count()
    known: dict[tuple[Index, ...], tuple[Axis, ...]] = {}
    for at, section in enumerate(found.sections):
        here = [one for one in items if one.place.at == at]
        for one in here:
            if not one.place.looped:
                inside += _at_one_position(one, needed)
        looped = [one for one in here if one.place.looped]
        extents = tuple(axis.extent for axis in section.axes)
        if extents not in known:
            # Sections with the same axes can hand on in registers what one of them has read.
            known[extents] = tuple(Axis(f"j{next(numbers)}", extent) for extent in extents)
        axes = known[extents]
        serial = section.serial or group.kind is Kind.COLUMN
        inside += _section(axes, looped, needed, serial=serial)
    for one in items:
        if one.place.at >= len(found.sections):
            inside += _at_one_position(one, needed)
    return tuple(inside)


def _section(
    axes: tuple[Axis, ...], items: Sequence[Computed], needed: frozenset[str], *, serial: bool
) -> Iterator[Statement]:
    """Folds start, the loops run, and what folds came to is stored."""
    folds = [one for one in items if not one.place.item.is_map]
    for one in folds:
        yield Declare(fold(one.place))
    body: list[Statement] = []
    for one in items:
        named = dict(zip(one.place.inner, map(index, axes), strict=True))
        body += moved(_at_one_position(one, needed), named)
    yield from _nested(axes, tuple(body), serial=serial)
    for one in folds:
        if one.place.item.along is None:
            made = fold(one.place)
            values = [Folded(made, n) for n in range(len(made.dtypes))]
            yield from _stored(one.place, values, needed)


def _at_one_position(one: Computed, needed: frozenset[str]) -> Iterator[Statement]:
    """What an item does at one position of all its loops."""
    for condition, code in one.conditions:
        yield Check(condition, code)
    if one.place.item.is_map:
        yield from _stored(one.place, one.values, needed)
        return
    made = fold(one.place)
    yield Accumulate(made, one.values)
    if one.place.item.along is not None:
        yield from _stored(one.place, [Running(made, n) for n in range(len(made.dtypes))], needed)


def _stored(place: Place, values: Sequence[Expr], needed: frozenset[str]) -> Iterator[Statement]:
    if place.keep is Keep.SCRATCH:
        yield Store(scratch(place), tuple(map(index, place.inner)), values[0])
    for buffer, value in zip(place.item.results, values, strict=False):
        if buffer is not None and (place.keep is Keep.MEMORY or buffer.name in needed):
            yield Store(buffer, place.item.coords, value)


# -- loops -----------------------------------------------------------------------------------------


def _nested(
    axes: Sequence[Axis], body: tuple[Statement, ...], *, serial: bool
) -> tuple[Statement, ...]:
    """Inner loops around a body; unless `serial`, the last takes several positions at a time."""
    last = None if serial else _fast(axes, body)
    order, body = _merged(_ordered(axes, body, last), body)
    for n, axis in enumerate(reversed(order)):
        how = How.VECTOR if n == 0 and not serial else How.SERIAL
        body = (Loop(axis, how, body),)
    return body


def _outer(group: Group, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """The outer loops around a body: at most one that threads share, and one of vectors."""
    if not group.outer:
        return body
    vector = _fast(group.outer, body) if group.kind is not Kind.ROW else None
    order = _ordered(group.outer, body, last=vector)
    if group.kind is Kind.FLAT:
        order, body = _merged(order, body)
    across = tiles.crossed(order, body) if group.kind is Kind.FLAT else None
    if across is not None:
        made = tiles.tiled(order, across, body)
        order, body = list(made.others), made.body
    elif vector is not None:
        body = (Loop(order[-1], How.VECTOR, body),)
        order = order[:-1]
    if not order:
        return body
    whole, places = addresses.merged(tuple(order), "p")
    return (Loop(whole, How.PARALLEL, moved(body, places)),)


def _fast(axes: Sequence[Axis], body: Iterable[Statement]) -> Axis | None:
    body = tuple(body)
    read = addresses.indices_in(*statements.expressions(body))
    return addresses.fast_axis(axes, list(statements.stored_at(body)), list(read))


def _ordered(axes: Sequence[Axis], body: Iterable[Statement], last: Axis | None) -> list[Axis]:
    """The axes from the outermost in: those with longer strides in what is stored come first."""
    stored = list(statements.stored_at(body))

    def stride(axis: Axis) -> int:
        found = [slope(where, axis) for where in stored]
        return max((s.constant for s in found if s is not None and s.is_constant), default=0)

    known = all(
        (s := slope(where, axis)) is not None and s.is_constant for where in stored for axis in axes
    )
    order = sorted(axes, key=stride, reverse=True) if stored and known else list(axes)
    if last is not None:
        order.remove(last)
        order.append(last)
    return order


def _merged(
    order: list[Axis], body: tuple[Statement, ...]
) -> tuple[list[Axis], tuple[Statement, ...]]:
    """Neighbouring loops as one, wherever every address allows it."""
    at = len(order) - 1
    while at >= 1:
        outer, inner = order[at - 1], order[at]
        where = [
            *statements.stored_at(body),
            *addresses.indices_in(*statements.expressions(body)),
        ]
        if addresses.merges(outer, inner, where):
            whole, places = addresses.merged((outer, inner), outer.name + inner.name)
            body = moved(statements.flattened(body), places)
            order = [*order[: at - 1], whole, *order[at + 1 :]]
        at -= 1
    return order, body
