"""How many positions of a loop are done at a time, decided for a kernel before it is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from straightline.codegen.target import Target
from straightline.ir import index as ix
from straightline.ir.dtypes import DType
from straightline.ir.index import Index
from straightline.ir.nodes import (
    Accumulate,
    Buffer,
    Declare,
    Fold,
    How,
    Kernel,
    Load,
    Loop,
    Op,
    Running,
    Statement,
    Store,
    expressions,
    statements,
    walk,
)
from straightline.ir.ops import OPERATIONS

# Scratch buffers up to this size together lie on the stack.
STACK_BYTES = 64 << 10
_MOST_LANES = 64
# So many at most where each lane touches a place of its own.
_MOST_APART = 16
# Loops of few vectors are written out up to this cost: it takes time to compile.
_STRAIGHT_COST = 320


@dataclass(frozen=True)
class Copy:
    """A loop is written out as copies one behind the other: whole steps of `count` vectors with
    `lanes` each, then what is left of it, `masked` where lanes may stand for no position.

    A `straight` one is the whole loop: its few vectors stand where the loop does, and what is known
    of them is known to the next loop over the same axis.
    """

    lanes: int
    count: int
    masked: bool = False
    straight: bool = False

    @property
    def step(self) -> int:
        return self.lanes * self.count


ONE_AT_A_TIME = Copy(1, 1)

Slots = frozenset[tuple[Fold, int, int]]


@dataclass(frozen=True)
class Plan:
    """`copies` by the identity of the loop, for loops that are done in vectors."""

    kernel: Kernel
    copies: dict[int, tuple[Copy, ...]]
    running: frozenset[Fold]
    on_stack: tuple[Buffer, ...]

    def place(self, buffer: Buffer) -> int:
        """The position of its address among those that the kernel is called with."""
        return (*self.kernel.buffers, *passed_scratch(self.kernel)).index(buffer)

    def touched(self, body: tuple[Statement, ...], shape: tuple[int, int], inside: bool) -> Slots:
        """The folds declared outside of `body` that it takes values into, with the lanes and the
        number of parts it does so in; `shape` is that of the positions around it.
        """
        found: set[tuple[Fold, int, int]] = set()
        own = {st.fold for st in body if isinstance(st, Declare)}
        for st in body:
            match st:
                case Accumulate(fold):
                    found.add((fold, *shape))
                case Loop():
                    for copy in self.copies_of(st, inside):
                        lanes = (copy.lanes, copy.count) if copy != ONE_AT_A_TIME else shape
                        found |= self.touched(st.body, lanes, inside or self.in_vectors(st))
                case _:
                    pass
        return frozenset(slot for slot in found if slot[0] not in own)

    def in_vectors(self, loop: Loop) -> bool:
        return id(loop) in self.copies

    def copies_of(self, loop: Loop, inside: bool) -> tuple[Copy, ...]:
        """The copies of a loop, which is done one by one `inside` of one in vectors."""
        return (ONE_AT_A_TIME,) if inside else self.copies.get(id(loop), (ONE_AT_A_TIME,))


def plan(kernel: Kernel, target: Target) -> Plan:
    loops = list(_vector_loops(kernel.body))
    ranged = loops[0] if len(kernel.body) == 1 and loops and kernel.body[0] is loops[0] else None
    lanes = _lanes(loops, target)
    running = frozenset(
        expr.fold
        for st in statements(kernel.body)
        for expr in walk(*expressions(st))
        if isinstance(expr, Running)
    )
    copies = {id(loop): _copies(loop, lanes, target, loop is ranged) for loop in loops}
    passed = passed_scratch(kernel)
    on_stack = tuple(buffer for buffer in kernel.scratch if buffer not in passed)
    return Plan(kernel, copies, running, on_stack)


def passed_scratch(kernel: Kernel) -> tuple[Buffer, ...]:
    """The scratch buffers whose memory the caller gives, behind the kernel's own buffers."""
    sizes = [elements(buffer) for buffer in kernel.scratch]
    total = 0
    for buffer, size in zip(kernel.scratch, sizes, strict=True):
        if size is None:
            return kernel.scratch
        total += size * buffer.dtype.bytes
    return kernel.scratch if total > STACK_BYTES else ()


def offset(buffer: Buffer, coords: tuple[Index, ...]) -> Index:
    """How many elements behind the first of the buffer."""
    return ix.add(*(ix.mul(c, s) for c, s in zip(coords, buffer.strides, strict=True)))


def elements(buffer: Buffer) -> int | None:
    """How many elements it spans at most; None where that is not known."""
    most = [
        ix.bounds(ix.mul(ix.sub(n, 1), s))[1]
        for n, s in zip(buffer.shape, buffer.strides, strict=True)
    ]
    known = [distance for distance in most if distance is not None]
    return 1 + sum(known) if len(known) == len(most) else None


def _vector_loops(body: tuple[Statement, ...]) -> Iterator[Loop]:
    """Those that are not inside of another."""
    for st in body:
        if isinstance(st, Loop):
            if st.how is How.VECTOR:
                yield st
            else:
                yield from _vector_loops(st.body)


def _work(loop: Loop) -> tuple[Counter[DType], set[DType], int]:
    """Operations by the type they are on, the types in memory, and what it all costs."""
    on: Counter[DType] = Counter()
    stored = {st.buffer.dtype for st in statements(loop.body) if isinstance(st, Store)}
    cost = 0
    for expr in walk(*(root for st in statements(loop.body) for root in expressions(st))):
        match expr:
            case Op(name, _, args):
                operation = OPERATIONS.get(name)
                price = operation.cost if operation else 1
                on[args[-1].dtype] += price
                cost += price
            case Load():
                stored.add(expr.dtype)
                cost += 1
            case _:
                pass
    for st in statements(loop.body):
        if isinstance(st, Accumulate):
            on[st.fold.dtypes[0]] += 1
            cost += 1
    return on, stored, cost


def _lanes(loops: list[Loop], target: Target) -> int:
    """As many as fit into a register of the type that most is computed in."""
    on: Counter[int] = Counter()
    stored: set[int] = set()
    for loop in loops:
        operations, memory, _ = _work(loop)
        for dtype, times in operations.items():
            on[dtype.bytes] += times
        stored |= {dtype.bytes for dtype in memory}
    if on:
        most = max(on.values())
        width = max(width for width, times in on.items() if times == most)
    else:
        width = max(stored, default=4)
    return min(target.vector_bytes // width, _MOST_LANES)


def _copies(loop: Loop, lanes: int, target: Target, ranged: bool) -> tuple[Copy, ...]:
    _, stored, cost = _work(loop)
    masked = target.masked is not None and all(t.bytes >= target.masked for t in stored)
    low, high = ix.bounds(loop.axis.extent)
    most = None if ranged else high
    while lanes > 2 and most is not None and most <= lanes // 2:
        lanes //= 2
    apart = _touches_apart(loop)
    if apart:
        lanes = min(lanes, _MOST_APART)
    exact = most is not None and low == most
    if exact and most and not any(isinstance(st, Loop) for st in loop.body):
        few = -(-most // lanes)
        whole = most % lanes == 0
        if few <= target.registers // 4 and few * cost <= _STRAIGHT_COST and (whole or masked):
            return (Copy(lanes, few, not whole, straight=True),)
    count = 1 if apart else _count(loop, cost, target)
    while count > 1 and most is not None and most < lanes * count:
        count //= 2
    steps = Copy(lanes, count)
    if exact and most is not None and most % steps.step == 0:
        return (steps,)
    rest: tuple[Copy, ...] = (Copy(lanes, 1, masked=True),) if masked else (ONE_AT_A_TIME,)
    if not masked and count > 1:
        rest = (Copy(lanes, 1), *rest)
    if most is not None and most < steps.step:
        return rest
    return (steps, *rest)


def _touches_apart(loop: Loop) -> bool:
    """Whether elements that do not lie side by side are loaded or stored."""
    places = [
        (expr.buffer, expr.coords)
        for st in statements(loop.body)
        for expr in walk(*expressions(st))
        if isinstance(expr, Load)
    ]
    places += [(st.buffer, st.coords) for st in statements(loop.body) if isinstance(st, Store)]
    near = (ix.ZERO, ix.ONE, ix.index(-1))
    return any(
        ix.slope(offset(*place), loop.axis) not in near or any(c.computed for c in place[1])
        for place in places
    )


def _count(loop: Loop, cost: int, target: Target) -> int:
    """How many vectors side by side: independent chains hide how long an instruction takes."""
    few = target.registers <= 16
    declared = {st.fold for st in statements(loop.body) if isinstance(st, Declare)}
    folds = {
        st.fold
        for st in statements(loop.body)
        if isinstance(st, Accumulate) and st.fold not in declared
    }
    inner = any(isinstance(st, Loop) for st in loop.body)  # reads neighbours in memory together
    if cost <= 4 and not few and (inner or folds) and all(len(f.dtypes) == 1 for f in folds):
        return 8
    if cost <= (8 if few else 12) or (folds and cost <= (16 if few else 32)):
        return 4
    return 2 if cost <= (12 if few else 100) else 1
