"""The reference interpreter: what a kernel means, in numpy.

Each statement is run for all positions of the loops around it at once, a lane each. That is the
same as one position after the other, since

* positions of PARALLEL and VECTOR loops do not see one another;
* what passes from one position of a SERIAL loop to the next are folds, which are taken in order,
  and memory: a loop that loads what it stores is run position by position.

An expression is computed whole: only a load's own mask keeps it from memory. Loads and stores are
checked against the shape, and computed numbers in their coordinates against their ranges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from straightline.ir import functions
from straightline.ir.arithmetic import EXACT, MEMORY, Array, bitcast, cast, constant, zeros
from straightline.ir.folding import Groups, identities
from straightline.ir.index import Axis, Given, Index, Size, evaluate
from straightline.ir.nodes import (
    Accumulate,
    Buffer,
    Check,
    Compute,
    Const,
    Declare,
    Expr,
    Fold,
    Folded,
    How,
    Kernel,
    Load,
    Loop,
    Op,
    Position,
    Running,
    Statement,
    Store,
    expressions,
    statements,
    walk,
)
from straightline.ir.ops import SELECT
from straightline.ir.plain import plain_kernel


def interpret(kernel: Kernel, arrays: Mapping[str, Array], sizes: Mapping[str, int]) -> int:
    """Runs `kernel` on memory by buffer names, and gives its status.

    A one-dimensional array is the memory from the first element on, any other one a tensor whose
    memory is used with its own strides. Types are those of `arithmetic.MEMORY`.
    """
    numbers = {}
    for size in kernel.sizes:
        number = sizes[size.name]
        if number < size.low or (size.high is not None and number > size.high):
            raise ValueError(f"size {size.name} is {number}, outside of its range")
        numbers[size] = number
    memories = {buffer: _memory(buffer, arrays[buffer.name]) for buffer in kernel.buffers}
    run = _Run(numbers, memories, frozenset(kernel.scratch), _loaded(kernel.body))
    with np.errstate(all="ignore"):
        try:
            run.statements(kernel.body, _Frame(1, {}))
        except _Stopped as stopped:
            return stopped.code
    return 0


def interpret_compute(
    compute: Compute, arrays: Mapping[str, Array], sizes: Mapping[str, int]
) -> int:
    """Computes the results of `compute` into their memory, and gives the status."""
    return interpret(plain_kernel(compute), arrays, sizes)


def _memory(buffer: Buffer, array: Array) -> Array:
    if array.dtype != MEMORY[buffer.dtype]:
        raise TypeError(f"{buffer.name} is {buffer.dtype}, its memory {array.dtype}")
    if array.ndim == 1 and (array.size < 2 or array.strides[0] == array.itemsize):
        return array
    if array.size == 0:
        return np.empty(0, array.dtype)
    last = sum((n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True))
    span = last // array.itemsize + 1
    return np.lib.stride_tricks.as_strided(array, (span,), (array.itemsize,))


class _Stopped(Exception):
    def __init__(self, code: int) -> None:
        self.code = code


@dataclass(frozen=True, eq=False)
class _Frame:
    """The lanes of one body: the positions that they are at, and the lanes of the loop around it
    that they belong to. Those of one owner lie together, in order.
    """

    count: int
    axes: Mapping[Axis, Array]
    parent: _Frame | None = None
    owner: Array = field(default_factory=lambda: np.zeros(1, "int64"))

    def enter(self, axis: Axis, positions: Array, owner: Array) -> _Frame:
        axes = {outer: at[owner] for outer, at in self.axes.items()}
        return _Frame(len(owner), {**axes, axis: positions}, self, owner)

    def lanes_in(self, outer: _Frame) -> Array:
        """For each lane the one of `outer`, a frame around this, that it belongs to."""
        frame, lanes = self, np.arange(self.count)
        while frame is not outer:
            assert frame.parent is not None
            lanes = frame.owner[lanes]
            frame = frame.parent
        return lanes

    def outermost(self) -> _Frame:
        """That of the outermost loop, or the one without a loop."""
        frame = self
        while frame.parent is not None and frame.parent.parent is not None:
            frame = frame.parent
        return frame


@dataclass
class _State:
    """A fold: its components for each lane of the body that declares it."""

    frame: _Frame
    components: list[Array]


@dataclass
class _Scratch:
    span: int
    memory: Array
    written: Array


class _Run:
    def __init__(
        self,
        sizes: Mapping[Size, int],
        memories: Mapping[Buffer, Array],
        scratch: frozenset[Buffer],
        loaded: frozenset[Buffer],
    ) -> None:
        self.sizes = sizes
        self.memories = memories
        self.scratch = scratch
        self.loaded = loaded
        self.private: dict[Buffer, _Scratch] = {}
        self.folds: dict[Fold, _State] = {}
        self.running: dict[Fold, list[Array]] = {}

    def statements(self, body: Sequence[Statement], frame: _Frame) -> None:
        values = _Values(self, frame)
        for statement in body:
            match statement:
                case Loop():
                    self.loop(statement, frame)
                case Declare(fold):
                    start = identities(fold)
                    self.folds[fold] = _State(frame, [np.repeat(s, frame.count) for s in start])
                case Accumulate():
                    self.accumulate(statement, values)
                case Store():
                    self.store(statement, values)
                case Check(condition, code):
                    if not values.of(condition).all():
                        raise _Stopped(code)
            match statement:
                case Check() | Declare():
                    pass
                case Store(buffer) if buffer not in self.loaded:
                    pass
                case _:
                    # What has been computed may have changed.
                    values = _Values(self, frame)

    def loop(self, loop: Loop, frame: _Frame) -> None:
        if frame.parent is None:
            self.private.clear()
            self.inside(loop, frame)
            self.private.clear()
        else:
            self.inside(loop, frame)

    def inside(self, loop: Loop, frame: _Frame) -> None:
        extents = np.maximum(_Values(self, frame).index(loop.axis.extent), 0)
        if loop.how is How.SERIAL and _reads_back(loop):
            for position in range(int(extents.max(initial=0))):
                owner = np.flatnonzero(extents > position)
                inner = frame.enter(loop.axis, np.full(len(owner), position), owner)
                self.statements(loop.body, inner)
            return
        owner = np.repeat(np.arange(frame.count), extents)
        starts = np.cumsum(extents) - extents
        self.statements(
            loop.body, frame.enter(loop.axis, np.arange(len(owner)) - starts[owner], owner)
        )

    def accumulate(self, statement: Accumulate, values: _Values) -> None:
        fold, state = statement.fold, self.folds[statement.fold]
        taken = [values.of(value) for value in statement.values]
        groups = Groups(
            values.frame.lanes_in(state.frame), values.mask(statement.mask), state.frame.count
        )
        state.components, self.running[fold] = groups.fold(fold, taken, state.components)

    def store(self, statement: Store, values: _Values) -> None:
        frame = values.frame
        value = values.of(statement.value)
        mask = values.mask(statement.mask)
        active, address = values.address(statement.buffer, statement.coords, mask)
        if statement.buffer in self.scratch:
            scratch = self.scratch_of(statement.buffer, frame)
            address = address + scratch.span * frame.lanes_in(frame.outermost())[active]
            scratch.written[address] = True
            scratch.memory[address] = value[active]
        else:
            self.memories[statement.buffer][address] = value[active]

    def scratch_of(self, buffer: Buffer, frame: _Frame) -> _Scratch:
        if buffer not in self.private:
            shape = [evaluate(n, self.number) for n in buffer.shape]
            strides = [evaluate(n, self.number) for n in buffer.strides]
            last = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
            span = 0 if 0 in shape else last + 1
            count = span * frame.outermost().count
            memory = zeros(buffer.dtype, count)
            self.private[buffer] = _Scratch(span, memory, np.zeros(count, "bool"))
        return self.private[buffer]

    def number(self, atom: Size | Axis | Given) -> int:
        """What is known outside of all loops."""
        assert isinstance(atom, Size), atom
        return self.sizes[atom]


def _loaded(body: Sequence[Statement]) -> frozenset[Buffer]:
    """The buffers that are loaded from."""
    roots = [expr for statement in statements(body) for expr in expressions(statement)]
    return frozenset(expr.buffer for expr in walk(*roots) if isinstance(expr, Load))


def _reads_back(loop: Loop) -> bool:
    """Whether it loads from a buffer that it stores to."""
    loaded = _loaded(loop.body)
    return any(isinstance(each, Store) and each.buffer in loaded for each in statements(loop.body))


class _Values:
    """Values of expressions in the lanes of a frame, as memory is at this moment."""

    def __init__(self, run: _Run, frame: _Frame) -> None:
        self.run = run
        self.frame = frame
        self.known: dict[Expr, Array] = {}

    def of(self, root: Expr) -> Array:
        for expr in walk(root, skip=self.known):
            self.known[expr] = self.compute(expr)
        return np.broadcast_to(self.known[root], self.frame.count)

    def mask(self, expr: Expr | None) -> Array:
        return np.ones(self.frame.count, "bool") if expr is None else self.of(expr)

    def compute(self, expr: Expr) -> Array:
        match expr:
            case Const(dtype, value):
                return constant(dtype, value)
            case Position(value):
                return self.index(value)
            case Op(name, _, args):
                return self.operation(expr, name, [self.known[arg] for arg in args])
            case Load():
                return self.load(expr)
            case Folded(fold, component):
                state = self.run.folds[fold]
                return state.components[component][self.frame.lanes_in(state.frame)]
            case Running(fold, component):
                return self.run.running[fold][component]

    def operation(self, expr: Op, name: str, args: list[Array]) -> Array:
        if name == SELECT:
            return np.where(*args)
        operand = expr.args[0].dtype
        if name == "cast":
            return cast(args[0], operand, expr.dtype)
        if name == "bitcast":
            return bitcast(args[0], expr.dtype)
        if name in EXACT:
            return EXACT[name](operand, *args)
        return functions.apply(name, operand, *args)

    def load(self, load: Load) -> Array:
        mask = self.mask(load.mask)
        result = zeros(load.dtype, self.frame.count)
        active, address = self.address(load.buffer, load.coords, mask)
        if load.buffer in self.run.scratch:
            scratch = self.run.scratch_of(load.buffer, self.frame)
            address = address + scratch.span * self.frame.lanes_in(self.frame.outermost())[active]
            if not scratch.written[address].all():
                raise IndexError(f"{load} is loaded before it is stored")
            result[active] = scratch.memory[address]
        else:
            result[active] = self.run.memories[load.buffer][address]
        return result

    def address(
        self, buffer: Buffer, coords: tuple[Index, ...], mask: Array
    ) -> tuple[Array, Array]:
        """The lanes that touch memory, and where."""
        active = np.flatnonzero(mask)
        address = np.zeros(len(active), "int64")
        run = self.run
        if len(active) == 0:
            return active, address
        for coord, length, stride in zip(coords, buffer.shape, buffer.strides, strict=True):
            for wrong in self.out_of_range(coord, active):
                raise IndexError(f"{wrong} in {buffer.name}[{_shown(coords)}] is out of its range")
            at = self.index(coord)[active]
            bound = evaluate(length, run.number)
            if at.min() < 0 or at.max() >= bound:
                worst = at.min() if at.min() < 0 else at.max()
                raise IndexError(f"{buffer.name}[{_shown(coords)}]: {coord} is {worst}, of {bound}")
            address += at * evaluate(stride, run.number)
        if buffer not in run.scratch and address.max() >= len(run.memories[buffer]):
            raise IndexError(f"{buffer.name}[{_shown(coords)}] is behind the end of its memory")
        return active, address

    def out_of_range(self, coord: Index, active: Array) -> Iterator[Given]:
        for number in coord.computed:
            at = self.of(number.value)[active]
            low = -np.inf if number.low is None else number.low
            high = np.inf if number.high is None else number.high
            if at.min() < low or at.max() > high:
                yield number

    def index(self, value: Index) -> Array:
        if self.frame.count == 0:
            return np.zeros(0, "int64")
        result: Any = evaluate(value, self.number)
        return np.broadcast_to(np.asarray(result, "int64"), self.frame.count)

    def number(self, atom: Size | Axis | Given) -> Any:
        match atom:
            case Size():
                return self.run.sizes[atom]
            case Axis():
                return self.frame.axes[atom]
            case Given(value):
                return self.of(value)


def _shown(coords: tuple[Index, ...]) -> str:
    return ", ".join(map(repr, coords))
