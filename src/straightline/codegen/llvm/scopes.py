"""Where an instruction goes: into the outermost loop that what it is computed from allows.

Every loop body is a scope; the chain of those open goes from the function's entry to the innermost
loop. What has been computed is remembered with the depth it stands at, until that scope closes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from straightline.codegen.llvm.text import At, Function, Lines, is_constant, number, register
from straightline.ir.dtypes import DType
from straightline.ir.nodes import Const


@dataclass(frozen=True, slots=True)
class Value:
    """One number (`lanes` is 1), or one in each lane of several vectors: the `parts`.

    `depth` is the scope in which it is computed. `tags` name what it may change with while that
    scope lasts: buffers that are written, and folds that run.
    """

    dtype: DType
    lanes: int
    parts: tuple[str, ...]
    depth: int = 0
    tags: frozenset[Hashable] = frozenset()

    @property
    def name(self) -> str:
        (only,) = self.parts
        return only


def constant(dtype: DType, value: bool | int | float) -> Value:
    return Value(dtype, 1, (number(dtype, value),))


@dataclass
class Scope:
    """`closed`: what touches memory stays inside of it: a check came first, or a loop may have no
    positions.
    """

    lines: Lines
    closed: bool = False
    keys: list[Hashable] = field(default_factory=list)


class Scopes:
    def __init__(self, function: Function, lines: Lines) -> None:
        self.function = function
        self.chain = [Scope(lines)]
        self._known: dict[Hashable, Value] = {}
        self._tagged: defaultdict[Hashable, set[Hashable]] = defaultdict(set)

    @property
    def depth(self) -> int:
        """That of the innermost scope."""
        return len(self.chain) - 1

    @property
    def lines(self) -> Lines:
        return self.chain[-1].lines

    def at(self, depth: int, lanes: int = 1) -> At:
        """Where instructions of a scope are written now."""
        return At(self.function, self.chain[depth].lines, lanes)

    def here(self, lanes: int = 1) -> At:
        return self.at(self.depth, lanes)

    def open(self, lines: Lines, closed: bool = False) -> None:
        self.chain.append(Scope(lines, closed))

    def close(self) -> None:
        for key in self.chain.pop().keys:
            self._known.pop(key, None)

    def barrier(self) -> int:
        """The least depth for what touches memory."""
        return max((at for at, scope in enumerate(self.chain) if scope.closed), default=0)

    def known(self, key: Hashable) -> Value | None:
        if isinstance(key, Const):
            return constant(key.dtype, key.value)
        return self._known.get(key)

    def remember(self, key: Hashable, value: Value) -> Value:
        self._known[key] = value
        self.chain[value.depth].keys.append(key)
        for tag in value.tags:
            self._tagged[tag].add(key)
        return value

    def forget(self, tag: Hashable) -> None:
        """What was computed from something that has changed is no longer known."""
        for key in self._tagged.pop(tag, ()):
            self._known.pop(key, None)

    def spread(self, value: Value, lanes: int, count: int) -> tuple[str, ...]:
        """Its parts as vectors, a single number in every lane."""
        if value.lanes == lanes:
            return value.parts if len(value.parts) == count else value.parts * count
        at, base = self.at(value.depth, lanes), register(value.dtype)
        if is_constant(value.name):
            return (at.spread(base, value.name),) * count
        key = ("spread", value.name, lanes)
        found = self._known.get(key)
        if found is None:
            name = at.spread(base, value.name)
            found = self.remember(key, Value(value.dtype, lanes, (name,), value.depth, value.tags))
        return found.parts * count


def widest(values: Iterable[Value]) -> tuple[int, int]:
    """The lanes and the number of parts that a result of these has."""
    lanes, count = 1, 1
    for value in values:
        lanes, count = max(lanes, value.lanes), max(count, len(value.parts))
    return lanes, count


def depth_of(values: Iterable[Value]) -> int:
    return max((value.depth for value in values), default=0)


def tags_of(values: Iterable[Value]) -> frozenset[Hashable]:
    return frozenset().union(*(value.tags for value in values))
