"""What holds in every kernel: the list, and the check of it."""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from straightline.ir import scalar
from straightline.ir.disjoint import positions_apart
from straightline.ir.dtypes import DType, Kind, b1, bf16, f16, i64
from straightline.ir.index import ONE, Axis, Div, Given, Index, Mod, Size, at_least
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
    fold_types,
    indices,
    statement_indices,
    statements,
    walk,
)
from straightline.ir.ops import COMBINES, OPERATIONS, SELECT, Operands, Result
from straightline.ir.plain import plain_kernel

INVARIANTS: Mapping[int, str] = {
    # Expressions
    1: "an operation has its number of operands, of one type that it takes, and gives the type "
    "that it says",
    2: "`bf16` and `f16` are loaded, stored, cast and selected, never computed with",
    3: "a constant is a value of its type",
    4: "masks and conditions are `b1`",
    5: "a load or a store has a coordinate for each dimension of its buffer",
    6: "a computed number is an `i64`, and its range is not empty",
    7: "what an index is divided by is known to be positive",
    # Names
    8: "names are identifiers and no keywords of Python; buffers, folds, and sizes with axes have "
    "each one of their own",
    9: "a kernel uses its own buffers and sizes, whose shapes and strides are of sizes alone",
    # Loops
    10: "an axis is used inside of its loop only, and no loop is inside of another of its axis",
    11: "an extent is of sizes and of axes of loops around it, but for a VECTOR loop's",
    12: "PARALLEL loops are outermost",
    13: "no VECTOR loop is inside of another one",
    # Folds
    14: "a fold's components, and the values that it takes, are those of its combine",
    15: "a fold is declared once, and accumulated in the same body or in loops inside of it",
    16: "a fold is read behind the loops it is accumulated in, and not accumulated after that",
    17: "a running fold is read behind its accumulate, in the same body; all loops between its "
    "declaration and that are SERIAL",
    # Memory
    18: "outputs are stored to, and apart from scratch nothing else is",
    19: "scratch is stored to before it is loaded, and there is none where the outermost loop is "
    "a VECTOR",
    20: "no position of a PARALLEL or VECTOR loop loads or stores what another one stores",
    # Computes
    21: "a compute has a result for each component, in the shape of its axes",
    22: "a compute is a map, a reduction of `over`, or a scan along one of its axes",
}


class InvalidKernel(Exception):
    """An invariant does not hold."""

    def __init__(self, number: int, node: object) -> None:
        super().__init__(f"invariant {number}: {INVARIANTS[number]}\n  at {node!r}")
        self.number = number
        self.node = node


def verify(kernel: Kernel) -> None:
    """Raises `InvalidKernel` unless all of `INVARIANTS` hold."""
    _Verifier(kernel).run()


def verify_compute(compute: Compute) -> None:
    """Raises `InvalidKernel` unless the compute, and the plainest kernel of it, are sound."""
    components = len(compute.values)
    if compute.combine is not None:
        components = COMBINES[compute.combine].width
    _require(len(compute.results) == components and compute.buffers != (), 21, compute)
    shape = tuple(axis.extent for axis in compute.axes)
    for buffer in compute.buffers:
        _require(buffer.shape == shape, 21, buffer)
    for result, value in zip(compute.results, compute.values, strict=False):
        if result is not None:
            _require(result.dtype is value.dtype, 21, result)
    reduction = bool(compute.over) and compute.along is None
    scan = not compute.over and compute.along in compute.axes
    _require(
        (reduction or scan) if compute.combine else not (compute.over or compute.along), 22, compute
    )
    verify(plain_kernel(compute))


def _require(holds: bool, number: int, node: object) -> None:
    if not holds:
        raise InvalidKernel(number, node)


# -- expressions -----------------------------------------------------------------------------------

_NARROW = (bf16, f16)


def _takes(operands: Operands, dtype: DType) -> bool:
    match operands:
        case Operands.FLOAT:
            return dtype.is_float
        case Operands.INTEGER:
            return dtype.is_integer
        case Operands.NUMBER:
            return dtype.kind is not Kind.BOOL
        case Operands.BITS:
            return not dtype.is_float
        case Operands.ANY:
            return True


def check_expression(expr: Expr) -> None:
    """The invariants of an expression by itself, whose operands are sound."""
    match expr:
        case Const(dtype, number):
            _require(scalar.fits(dtype, number), 3, expr)
        case Load(buffer, coords, mask):
            _require(len(coords) == len(buffer.shape), 5, expr)
            _require(mask is None or mask.dtype is b1, 4, expr)
        case Op():
            _check_op(expr)
        case Folded(fold, component) | Running(fold, component):
            _require(0 <= component < len(fold.dtypes), 14, expr)
        case Position():
            pass
    for value in indices(expr):
        _check_index(value)


def _check_op(expr: Op) -> None:
    types = [arg.dtype for arg in expr.args]
    if expr.name == SELECT:
        _require(len(types) == 3, 1, expr)
        _require(types[0] is b1, 4, expr)
        _require(types[1] is types[2] is expr.dtype, 1, expr)
        return
    _require(expr.name in OPERATIONS, 1, expr)
    operation = OPERATIONS[expr.name]
    _require(len(types) == operation.arity and len(set(types)) == 1, 1, expr)
    _require(_takes(operation.operands, types[0]), 1, expr)
    match operation.result:
        case Result.SAME:
            _require(expr.dtype is types[0], 1, expr)
        case Result.BOOL:
            _require(expr.dtype is b1, 1, expr)
        case Result.GIVEN if expr.name == "bitcast":
            _require(expr.dtype.bits == types[0].bits and expr.dtype is not b1, 1, expr)
        case Result.GIVEN:
            return
    _require(expr.name == "bitcast" or types[0] not in _NARROW, 2, expr)


def _check_index(value: Index) -> None:
    for atom in value.atoms:
        match atom:
            case Given(number, low, high):
                _require(number.dtype is i64, 6, atom)
                _require(low is None or high is None or low <= high, 6, atom)
            case Div(_, bottom) | Mod(_, bottom):
                _require(at_least(bottom, 1), 7, atom)
            case _:
                pass


def _check_fold(fold: Fold) -> None:
    _require(fold.combine in COMBINES, 14, fold)
    combine, first = COMBINES[fold.combine], fold.dtypes[0] if fold.dtypes else None
    _require(first is not None and fold.dtypes == fold_types(fold.combine, first), 14, fold)
    assert first is not None
    _require(_takes(combine.operands, first), 14, fold)
    _require(first not in _NARROW, 2, fold)


# -- kernels ---------------------------------------------------------------------------------------

# The statement that a body is part of, and those around it, each by its number in its body.
Path: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class _Scope:
    """A body: the loops around it, from the outermost on."""

    loops: tuple[Loop, ...] = ()
    path: Path = ()

    @property
    def axes(self) -> frozenset[Axis]:
        return frozenset(loop.axis for loop in self.loops)

    def inside(self, other: _Scope) -> bool:
        return self.path[: len(other.path)] == other.path

    def between(self, outer: _Scope) -> tuple[Loop, ...]:
        """The loops around it that are inside of `outer`."""
        return self.loops[len(outer.loops) :]


class _Verifier:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.buffers = frozenset((*kernel.buffers, *kernel.scratch))
        self.sizes = frozenset(kernel.sizes)
        self.sound: set[Expr] = set()
        self.declared: dict[Fold, _Scope] = {}
        self.accumulated: dict[Fold, list[_Scope]] = {}
        self.read: set[Fold] = set()
        self.stored: set[Buffer] = set()

    def run(self) -> None:
        self.names()
        self.body(self.kernel.body, _Scope())
        outputs = {buffer for buffer in self.kernel.buffers if buffer.name in self.kernel.outputs}
        _require(len(outputs) == len(self.kernel.outputs), 18, self.kernel.outputs)
        for buffer in outputs:
            _require(buffer in self.stored, 18, buffer)
        for statement in self.kernel.body:
            if isinstance(statement, Loop):
                check_memory(statement, frozenset(self.kernel.scratch))

    def names(self) -> None:
        kernel = self.kernel
        inside = [*statements(kernel.body)]
        axes = {statement.axis for statement in inside if isinstance(statement, Loop)}
        folds = {statement.fold for statement in inside if isinstance(statement, Declare)}
        _names([kernel.name])
        _names(buffer.name for buffer in (*kernel.buffers, *kernel.scratch))
        _names((*(size.name for size in kernel.sizes), *(axis.name for axis in axes)))
        _names(fold.name for fold in folds)
        for size in kernel.sizes:
            _require(size.high is None or size.low <= size.high, 9, size)
        for buffer in self.buffers:
            _require(len(buffer.shape) == len(buffer.strides), 9, buffer)
            for value in (*buffer.shape, *buffer.strides):
                _check_index(value)
                _require(not value.axes and not value.computed, 9, buffer)
                self.atoms(value, frozenset(), buffer)

    def body(self, body: tuple[Statement, ...], scope: _Scope) -> None:
        seen: set[Expr] = set()
        for number, statement in enumerate(body):
            path = (*scope.path, number)
            for value in statement_indices(statement):
                _check_index(value)
                self.atoms(value, scope.axes, statement)
            self.expressions(statement, scope, seen)
            match statement:
                case Loop():
                    self.loop(statement, scope, path)
                case Declare(fold):
                    _check_fold(fold)
                    _require(fold not in self.declared, 15, statement)
                    self.declared[fold] = scope
                case Accumulate():
                    self.accumulate(statement, scope)
                case Store():
                    self.store(statement)
                case Check(condition):
                    _require(condition.dtype is b1, 4, statement)

    def loop(self, loop: Loop, scope: _Scope, path: Path) -> None:
        axis, extent = loop.axis, loop.axis.extent
        _require(axis not in scope.axes, 10, axis)
        _require(not extent.computed, 11, axis)
        lanes = {outer.axis for outer in scope.loops if outer.how is How.VECTOR}
        _require(not extent.axes & lanes, 11, axis)
        _require(loop.how is not How.PARALLEL or not scope.loops, 12, axis)
        _require(loop.how is not How.VECTOR or not lanes, 13, axis)
        inside = _Scope((*scope.loops, loop), path)
        if scope.loops:
            self.body(loop.body, inside)
            return
        # What scratch holds belongs to one position of an outermost loop.
        self.stored -= frozenset(self.kernel.scratch)
        self.body(loop.body, inside)
        self.stored -= frozenset(self.kernel.scratch)

    def accumulate(self, statement: Accumulate, scope: _Scope) -> None:
        fold = statement.fold
        _require(fold in self.declared and scope.inside(self.declared[fold]), 15, statement)
        _require(fold not in self.read, 16, statement)
        between = scope.between(self.declared[fold])
        _require(all(loop.how is not How.PARALLEL for loop in between), 12, statement)
        taken = fold.dtypes[:1] if fold.combine == "logsumexp" else fold.dtypes
        _require(tuple(value.dtype for value in statement.values) == taken, 14, statement)
        _require(statement.mask is None or statement.mask.dtype is b1, 4, statement)
        self.accumulated.setdefault(fold, []).append(scope)

    def store(self, store: Store) -> None:
        buffer = store.buffer
        own = buffer in self.kernel.scratch or buffer.name in self.kernel.outputs
        _require(buffer in self.buffers, 9, store)
        _require(own, 18, store)
        _require(len(store.coords) == len(buffer.shape), 5, store)
        _require(store.value.dtype is buffer.dtype, 1, store)
        _require(store.mask is None or store.mask.dtype is b1, 4, store)
        self.stored.add(buffer)

    def expressions(self, statement: Statement, scope: _Scope, seen: set[Expr]) -> None:
        """Those of a statement, but for the ones `seen` in the same body before."""
        for expr in walk(*expressions(statement), skip=seen):
            seen.add(expr)
            if expr not in self.sound:
                check_expression(expr)
                self.sound.add(expr)
            for value in indices(expr):
                self.atoms(value, scope.axes, expr)
            match expr:
                case Load(buffer):
                    _require(buffer in self.buffers, 9, expr)
                    scratch = buffer in self.kernel.scratch
                    _require(not scratch or buffer in self.stored, 19, expr)
                case Folded(fold):
                    self.folded(fold, scope, expr)
                case Running(fold):
                    self.running(fold, scope, expr)
                case _:
                    pass

    def folded(self, fold: Fold, scope: _Scope, expr: Expr) -> None:
        _require(fold in self.accumulated, 16, expr)
        declared = self.declared[fold]
        _require(scope.inside(declared), 16, expr)
        depth = len(declared.path)
        for taken in self.accumulated[fold]:
            # In the loop of the declaring body that the fold is accumulated in it is not complete.
            open_loop = taken.path[: depth + 1]
            _require(len(open_loop) == depth or scope.path[: depth + 1] != open_loop, 16, expr)
        self.read.add(fold)

    def running(self, fold: Fold, scope: _Scope, expr: Expr) -> None:
        taken = self.accumulated.get(fold, ())
        _require(any(scope.path == other.path for other in taken), 17, expr)
        between = scope.between(self.declared[fold])
        _require(all(loop.how is How.SERIAL for loop in between), 17, expr)

    def atoms(self, value: Index, axes: frozenset[Axis], node: object) -> None:
        for atom in value.atoms:
            match atom:
                case Axis():
                    _require(atom in axes, 10, (atom, node))
                case Size():
                    _require(atom in self.sizes, 9, (atom, node))
                case _:
                    pass


def _names(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        _require(name.isidentifier() and not keyword.iskeyword(name), 8, name)
        _require(name not in seen, 8, name)
        seen.add(name)


# -- memory ----------------------------------------------------------------------------------------


def check_memory(loop: Loop, scratch: frozenset[Buffer]) -> None:
    """Of an outermost loop: what its positions load and store."""
    for inner, around in _loops_below(loop):
        if inner.how is not How.SERIAL:
            own = scratch if not around else frozenset()
            _check_positions(inner, own)
    if loop.how is How.VECTOR:
        used = {*_loads(loop), *_stores(loop)}
        for buffer, _ in used:
            _require(buffer not in scratch, 19, buffer)


def _check_positions(loop: Loop, private: frozenset[Buffer]) -> None:
    for statement in statements(loop.body):
        if isinstance(statement, Store) and statement.buffer not in private:
            _require(_moves(statement, loop.axis), 20, (statement.buffer, loop.axis))
    stores, loads = {*_stores(loop)}, {*_loads(loop)}
    inner = frozenset(
        statement.axis for statement in statements(loop.body) if isinstance(statement, Loop)
    )
    for buffer in {buffer for buffer, _ in stores} & {buffer for buffer, _ in loads}:
        accesses = [coords for at, coords in (*stores, *loads) if at is buffer]
        apart = buffer in private or positions_apart(loop.axis, inner, accesses)
        _require(apart, 20, (buffer, loop.axis))


def _moves(store: Store, axis: Axis) -> bool:
    """Whether another position may store to another element, or not at all."""
    moving = any(axis in coord.axes or coord.computed for coord in store.coords)
    return moving or store.mask is not None or axis.extent is ONE


def _loops_below(loop: Loop) -> Iterator[tuple[Loop, bool]]:
    """The loop, and each inside of it with True."""
    yield loop, False
    for statement in statements(loop.body):
        if isinstance(statement, Loop):
            yield statement, True


Access: TypeAlias = tuple[Buffer, tuple[Index, ...]]


def _stores(loop: Loop) -> Iterator[Access]:
    for statement in statements(loop.body):
        if isinstance(statement, Store):
            yield statement.buffer, statement.coords


def _loads(loop: Loop) -> Iterator[Access]:
    roots = [expr for statement in statements(loop.body) for expr in expressions(statement)]
    for expr in walk(*roots):
        if isinstance(expr, Load):
            yield expr.buffer, expr.coords
