"""Loops: as copies for whole vectors and for what is left, each a counted loop in SSA form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from straightline.codegen.llvm import indices, values
from straightline.codegen.llvm.context import Context, Vector
from straightline.codegen.llvm.folds import identities, sums_floats
from straightline.codegen.llvm.plan import ONE_AT_A_TIME, Copy
from straightline.codegen.llvm.scopes import Value
from straightline.codegen.llvm.text import At, Lines, integer, register, sequence
from straightline.codegen.llvm.text import vector as vector_type
from straightline.ir import index as ix
from straightline.ir.dtypes import i64
from straightline.ir.index import Axis
from straightline.ir.nodes import Fold, Loop, Statement

Statements = Callable[[Context, tuple[Statement, ...]], None]
# Writes the body of a loop for a position behind the lines; may give the next position.
Body = Callable[[str, Lines], "str | None"]

# Sums of floats are taken in blocks of so many, these in blocks again, and so on: each addition
# rounds, and this way a value goes through few of them.
_BLOCK = 16
_MOST_LEVELS = 4


@dataclass(frozen=True)
class Slot:
    """The first `count` parts of a fold in so many lanes."""

    fold: Fold
    lanes: int
    count: int

    def read(self, ctx: Context) -> list[str]:
        components = ctx.folds[self.fold].slots[self.lanes]
        return [name for parts in components for name in parts[: self.count]]

    def write(self, ctx: Context, names: list[str]) -> None:
        for k, parts in enumerate(ctx.folds[self.fold].slots[self.lanes]):
            parts[: self.count] = names[k * self.count : (k + 1) * self.count]

    @property
    def kinds(self) -> list[str]:
        return [
            vector_type(register(dtype), self.lanes)
            for dtype in self.fold.dtypes
            for _ in range(self.count)
        ]


def loop(ctx: Context, st: Loop, run: Statements, given: tuple[str, str] | None = None) -> None:
    """All positions of a loop, or those from and to below the `given` ones."""
    ctx.loops.append(st.axis)
    _loop(ctx, st, run, given)
    ctx.loops.pop()


def _loop(ctx: Context, st: Loop, run: Statements, given: tuple[str, str] | None) -> None:
    extent = st.axis.extent
    values.prepare(ctx, extent)
    count = indices.number(ctx, extent)
    if count.lanes > 1:
        raise ValueError(f"the extent of {st.axis} changes from lane to lane")
    start, end = given or ("0", count.name)
    sure = given is None and ix.at_least(extent, 1)

    copies = ctx.plan.copies_of(st, ctx.inside)
    if copies[0].straight:
        _straight(ctx, st, copies[0], run)
        return
    _leave(ctx, st.axis)
    around = ctx.scopes.chain[-1]
    outer = around.lines
    before: Lines = []
    rest: Lines = []
    entry: Lines = []
    outer += [before, rest]
    around.lines = before
    at = At(ctx.scopes.function, rest, 1)
    slots = _slots(ctx, st, copies)
    initial = [slot.read(ctx) for slot in slots]
    if not sure:
        guard, inside, leave = (at.function.label(word) for word in ("guard", "some", "none"))
        at.block(guard)
        some = at.compare("icmp slt", "i64", start, end)
        at.perform(f"br i1 {some}, label %{inside}, label %{leave}")
        rest.append(f"{inside}:")
    rest.append(entry)
    ctx.scopes.open(entry, closed=not sure)
    position = start
    for copy in copies:
        position = _copy(ctx, st, copy, position, end, rest, run)
    ctx.scopes.close()
    if not sure:
        last = at.function.label("last")
        at.block(last)
        at.block(leave)
        for slot, old in zip(slots, initial, strict=True):
            new = slot.read(ctx)
            slot.write(
                ctx,
                [
                    at.do(f"phi {kind} [{a}, %{guard}], [{b}, %{last}]")
                    for kind, a, b in zip(slot.kinds, old, new, strict=True)
                ],
            )
    around.lines = outer


def _slots(ctx: Context, st: Loop, copies: tuple[Copy, ...]) -> list[Slot]:
    """The parts of folds that change in a loop."""
    counts: dict[tuple[Fold, int], int] = {}
    for copy in copies:
        for slot in _slots_of_copy(ctx, st, copy):
            key = (slot.fold, slot.lanes)
            counts[key] = max(slot.count, counts.get(key, 0))
    return [Slot(fold, lanes, count) for (fold, lanes), count in counts.items()]


def _slots_of_copy(ctx: Context, st: Loop, copy: Copy) -> list[Slot]:
    shape = (copy.lanes, copy.count) if copy != ONE_AT_A_TIME else ctx.shape
    inside = ctx.inside or ctx.plan.in_vectors(st)
    counts: dict[tuple[Fold, int], int] = {}
    for fold, lanes, count in ctx.plan.touched(st.body, shape, inside):
        counts[fold, lanes] = max(count, counts.get((fold, lanes), 0))
    found = [Slot(fold, lanes, count) for (fold, lanes), count in counts.items()]
    return sorted(found, key=lambda slot: (slot.fold.name, slot.lanes))


# -- copies ----------------------------------------------------------------------------------------


def _copy(
    ctx: Context, st: Loop, copy: Copy, start: str, end: str, out: Lines, run: Statements
) -> str:
    """One copy of a loop from position `start`; gives the first position that it leaves."""
    at = At(ctx.scopes.function, out, 1)
    step, first, last = copy.step, integer(start), integer(end)
    trips = None
    if first is not None and last is not None:
        trips = -(-(last - first) // step) if copy.masked else (last - first) // step
        if trips <= 0:
            return start
    limit = end
    if step > 1 and not copy.masked:
        whole = step - 1
        limit = at.binary("sub", "i64", end, str(whole)) if last is None else str(last - whole)

    def body(position: str, lines: Lines) -> None:
        ctx.scopes.open(lines)
        ctx.axes[st.axis] = Value(i64, 1, (position,), ctx.scopes.depth)
        saved = ctx.vector, ctx.inside
        ctx.inside = ctx.inside or ctx.plan.in_vectors(st)
        if copy != ONE_AT_A_TIME:
            active = (
                _active(ctx, position, end, copy.lanes) if copy.masked else (None,) * copy.count
            )
            ctx.vector = Vector(st.axis, copy.lanes, copy.count, active)
        run(ctx, st.body)
        ctx.vector, ctx.inside = saved
        ctx.scopes.close()

    slots = _slots_of_copy(ctx, st, copy)
    sums = [] if copy.masked else [slot for slot in slots if sums_floats(ctx, slot.fold)]
    counted = _Counted(ctx, step, slots, sums, trips)
    levels = _levels(ctx, st, copy, trips) if sums else 0
    after = counted.run(out, start, limit, trips is not None, levels, body)
    return after if trips is None or first is None else str(first + trips * step)


def _active(ctx: Context, position: str, end: str, lanes: int) -> tuple[str | None, ...]:
    """The lanes of the only part that stand for positions before the end."""
    at = ctx.scopes.here(lanes)
    scalar = at.over(1)
    left = scalar.binary("sub", "i64", end, position)
    left = scalar.call("llvm.umin", "i64", left, str(lanes))
    if ctx.scopes.function.target.masked == 1 and lanes < 64:
        bits = scalar.binary("shl", "i64", "1", left)
        bits = scalar.binary("sub", "i64", bits, "1")
        few = scalar.convert("trunc", "i64", bits, f"i{lanes}")
        return (scalar.do(f"bitcast i{lanes} {few} to <{lanes} x i1>"),)
    left = scalar.convert("trunc", "i64", left, "i32")
    numbers = sequence("i32", range(lanes))
    return (at.compare("icmp ult", "i32", numbers, at.spread("i32", left)),)


# -- loops of few vectors --------------------------------------------------------------------------


def _straight(ctx: Context, st: Loop, copy: Copy, run: Statements) -> None:
    """The vectors of a whole loop, where it stands.

    What is made for a position is known as long as the axis is only met in the same shape.
    """
    axis = st.axis
    active: list[str | None] = [None] * copy.count
    over = copy.step - axis.extent.constant
    if over:
        present = (str(lane < copy.lanes - over).lower() for lane in range(copy.lanes))
        active[-1] = "<" + ", ".join(f"i1 {there}" for there in present) + ">"
    vector = Vector(axis, copy.lanes, copy.count, tuple(active))
    if ctx.straight.get(axis) != vector:
        _leave(ctx, axis)
        ctx.straight[axis] = vector
    ctx.axes[axis] = Value(i64, 1, ("0",), 0, frozenset({axis}))
    saved = ctx.vector, ctx.inside
    ctx.vector, ctx.inside = vector, True
    run(ctx, st.body)
    ctx.vector, ctx.inside = saved


def _leave(ctx: Context, axis: Axis) -> None:
    """What is known of positions of the axis does not hold for those that come."""
    if ctx.straight.pop(axis, None) is not None:
        ctx.scopes.forget(axis)


# -- sums ------------------------------------------------------------------------------------------


def _levels(ctx: Context, st: Loop, copy: Copy, trips: int | None) -> int:
    """How often blocks are made of blocks."""
    most = trips
    if most is None:
        high = ix.bounds(st.axis.extent)[1]
        most = None if high is None else high // copy.step
    levels = 0
    while levels < _MOST_LEVELS and (most is None or most > _BLOCK ** (levels + 1)):
        levels += 1
    return levels


# -- counting --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Counted:
    """Loops that count by `step` and carry `slots`; `sums` of them are taken in blocks."""

    ctx: Context
    step: int
    slots: list[Slot]
    sums: list[Slot]
    trips: int | None

    def run(self, out: Lines, start: str, limit: str, sure: bool, levels: int, body: Body) -> str:
        """The loop from `start` to below `limit`; gives the position it ends at. `sure`: it has
        one or more.
        """
        if not levels:
            return self._plain(out, start, limit, sure, body, self.trips == 1)

        def block(position: str, lines: Lines) -> str:
            at = At(self.ctx.scopes.function, lines, 1)
            far = at.binary("add", "i64", position, str(_BLOCK**levels * self.step))
            end = at.call("llvm.smin", "i64", far, limit)
            before = self._restart()
            after = self.run(lines, position, end, True, levels - 1, body)
            self._add(lines, before)
            return after

        return self._plain(out, start, limit, sure, block, False)

    def _restart(self) -> list[list[str]]:
        before = []
        for slot in self.sums:
            before.append(slot.read(self.ctx))
            fresh = identities(self.ctx, slot.fold, slot.lanes, slot.count)
            slot.write(self.ctx, [name for parts in fresh for name in parts])
        return before

    def _add(self, lines: Lines, before: list[list[str]]) -> None:
        for slot, old in zip(self.sums, before, strict=True):
            at = At(self.ctx.scopes.function, lines, slot.lanes)
            base = register(slot.fold.dtypes[0])
            new = slot.read(self.ctx)
            slot.write(
                self.ctx, [at.binary("fadd", base, a, b) for a, b in zip(old, new, strict=True)]
            )

    def _plain(self, out: Lines, start: str, limit: str, sure: bool, body: Body, once: bool) -> str:
        at = At(self.ctx.scopes.function, out, 1)
        inner: Lines = []
        if once:
            out.append(inner)
            return body(start, inner) or start
        entry, head, latch, done = (
            at.function.label(word) for word in ("entry", "loop", "next", "done")
        )
        at.block(entry)
        if sure:
            at.perform(f"br label %{head}")
        else:
            some = at.compare("icmp slt", "i64", start, limit)
            at.perform(f"br i1 {some}, label %{head}, label %{done}")
        out.append(f"{head}:")
        phis: Lines = []
        out += [phis, inner]
        position = at.function.name()
        before = [slot.read(self.ctx) for slot in self.slots]
        inside = [[at.function.name() for _ in names] for names in before]
        self._write(inside)
        following = body(position, inner)
        at.block(latch)
        if following is None:
            following = at.binary("add", "i64", position, str(self.step))
        more = at.compare("icmp slt", "i64", following, limit)
        at.perform(f"br i1 {more}, label %{head}, label %{done}")
        out.append(f"{done}:")
        after = [slot.read(self.ctx) for slot in self.slots]
        phis.append(f"  {position} = phi i64 [{start}, %{entry}], [{following}, %{latch}]")
        for slot, names, old, new in zip(self.slots, inside, before, after, strict=True):
            for name, kind, a, b in zip(names, slot.kinds, old, new, strict=True):
                phis.append(f"  {name} = phi {kind} [{a}, %{entry}], [{b}, %{latch}]")
        if sure:
            return following
        joined = []
        for slot, old, new in zip(self.slots, before, after, strict=True):
            joined.append(
                [
                    at.do(f"phi {kind} [{a}, %{entry}], [{b}, %{latch}]")
                    for kind, a, b in zip(slot.kinds, old, new, strict=True)
                ]
            )
        end = at.do(f"phi i64 [{start}, %{entry}], [{following}, %{latch}]")
        self._write(joined)
        return end

    def _write(self, names: list[list[str]]) -> None:
        for slot, each in zip(self.slots, names, strict=True):
            slot.write(self.ctx, each)
