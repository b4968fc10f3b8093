"""Walking and changing the bodies of kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

from straightline.ir.index import Axis, Given, Index, Size, index
from straightline.ir.nodes import (
    Accumulate,
    Buffer,
    Check,
    Expr,
    Load,
    Loop,
    Statement,
    Store,
    indices,
    op,
    walk,
)
from straightline.ir.rewrite import (
    Memo,
    conjunction,
    guarded,
    rebuild,
    reindex,
    replace,
    with_operands,
)
from straightline.schedule.addresses import address, flat

Value: TypeAlias = Callable[[Expr], Expr]
Coords: TypeAlias = tuple[Index, ...]
Where: TypeAlias = Callable[[Buffer, Coords], tuple[Buffer, Coords]]


def within(body: Iterable[Statement]) -> Iterator[Statement]:
    """Every statement, those in loops too."""
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from within(statement.body)


def expressions(body: Iterable[Statement]) -> Iterator[Expr]:
    """The expressions that statements evaluate, but for those of the places that are stored to."""
    for statement in within(body):
        match statement:
            case Accumulate(_, values, mask):
                yield from values
            case Store(_, _, value, mask):
                yield value
            case Check(condition, _):
                yield condition
                continue
            case _:
                continue
        if mask is not None:
            yield mask


def stored_at(body: Iterable[Statement]) -> Iterator[Index]:
    """The addresses that are stored to."""
    for statement in within(body):
        if isinstance(statement, Store):
            yield address(statement.buffer, statement.coords)


def changed(body: Iterable[Statement], value: Value, where: Where) -> tuple[Statement, ...]:
    """The statements with `value` of their expressions, storing to `where` of their places."""
    return tuple(_changed(statement, value, where) for statement in body)


def _changed(statement: Statement, value: Value, where: Where) -> Statement:
    match statement:
        case Loop(axis, how, inner):
            return Loop(axis, how, changed(inner, value, where))
        case Accumulate(fold, values, mask):
            new = tuple(value(each) for each in values)
            return Accumulate(fold, new, None if mask is None else value(mask))
        case Store(buffer, coords, stored, mask):
            buffer, coords = where(buffer, coords)
            return Store(buffer, coords, value(stored), None if mask is None else value(mask))
        case Check(condition, code):
            return Check(value(condition), code)
        case _:
            return statement


def moved(body: Iterable[Statement], axes: Mapping[Axis, Index]) -> tuple[Statement, ...]:
    """The statements at these indices in place of axes."""
    memo: Memo = {}

    def value(expr: Expr) -> Expr:
        return replace(expr, axes, memo=memo)

    def where(buffer: Buffer, coords: Coords) -> tuple[Buffer, Coords]:
        given: Memo = {each: value(each) for coord in coords for each in _given(coord)}
        return buffer, tuple(reindex(coord, given, axes) for coord in coords)

    return changed(body, value, where)


def _given(coord: Index) -> Iterator[Expr]:
    for atom in coord.atoms:
        if isinstance(atom, Given):
            found: Expr = atom.value
            yield found


def masked(body: Iterable[Statement], mask: Expr) -> tuple[Statement, ...]:
    """The statements of maps where `mask` holds; elsewhere they touch no memory."""
    return tuple(_masked(statement, mask) for statement in body)


def _masked(statement: Statement, mask: Expr) -> Statement:
    match statement:
        case Store(buffer, coords, value, own):
            return Store(buffer, coords, guarded(value, mask), conjunction(mask, own))
        case Check(condition, code):
            return Check(op("or", op("not", mask), guarded(condition, mask)), code)
        case _:
            raise ValueError(f"{statement} stands in no map")


def flattened(body: Iterable[Statement]) -> tuple[Statement, ...]:
    """The statements with each buffer as one row of elements."""
    memo: Memo = {}

    def make(old: Expr, done: Memo) -> Expr:
        made = with_operands(old, done)
        if isinstance(made, Load):
            return Load(flat(made.buffer), (address(made.buffer, made.coords),), made.mask)
        return made

    def where(buffer: Buffer, coords: Coords) -> tuple[Buffer, Coords]:
        return flat(buffer), (address(buffer, coords),)

    return changed(body, lambda expr: rebuild(expr, make, memo), where)


def alike(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """The statements with each buffer in one form: all as rows if some are, in other loops."""
    forms = {b for found in _buffers(body) for b in found}
    names = {buffer.name for buffer in forms}
    return body if len(names) == len(forms) else flattened(body)


def _buffers(body: tuple[Statement, ...]) -> tuple[list[Buffer], list[Buffer]]:
    """The buffers that are read, and those that are written, in the order they appear."""
    nodes = walk(*expressions(body), *_of_places(body))
    read = [node.buffer for node in nodes if isinstance(node, Load)]
    return read, [s.buffer for s in within(body) if isinstance(s, Store)]


def buffers(body: Iterable[Statement]) -> tuple[dict[str, Buffer], dict[str, Buffer]]:
    """The buffers that are read, and those that are written, by name in the order they appear."""
    read, written = _buffers(tuple(body))
    return {b.name: b for b in read}, {b.name: b for b in written}


def _of_places(body: Iterable[Statement]) -> Iterator[Expr]:
    for statement in within(body):
        if isinstance(statement, Store):
            for coord in statement.coords:
                yield from _given(coord)


def sizes(body: Iterable[Statement], of: Iterable[Buffer]) -> tuple[Size, ...]:
    """The sizes that loops, places and buffers depend on, in the order they appear."""
    found: dict[Size, None] = {}

    def note(where: Index) -> None:
        for atom in where.atoms:
            match atom:
                case Size():
                    found[atom] = None
                case Axis(_, extent):
                    note(extent)
                case _:
                    pass

    for buffer in of:
        for each in (*buffer.shape, *buffer.strides):
            note(each)
    for statement in within(body):
        if isinstance(statement, Loop):
            note(index(statement.axis.extent))
        if isinstance(statement, Store):
            for coord in statement.coords:
                note(coord)
    for node in walk(*expressions(body), *_of_places(body)):
        for where in indices(node):
            note(where)
    return tuple(found)
