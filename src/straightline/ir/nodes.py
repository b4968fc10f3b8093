"""The loop IR: its grammar.

    kernel     = name, buffers, sizes, body*                    what is called
    statement  = loop(axis, how, body*)                         every position of the axis
               | declare(fold)                                  a fold starts, at its identity
               | accumulate(fold, expr*, mask?)                 and takes a value in
               | store(buffer, index*, expr, mask?)
               | check(expr, code)                              stop with that status unless true
    expr       = const | load(buffer, index*, mask?) | position(index) | op(name, expr*)
               | folded(fold, component)                        what it came to, after its loops
               | running(fold, component)                       what it has come to by now
    index      see `index`: sizes, axes, sums, products, `//`, `%`, and numbers computed by an expr

Before a schedule there are only computes, each the elements of one tensor:

    compute    = buffers, axes, expr*                           a map: the value at each point, or
               | buffers, axes, over, combine, expr*            a reduction of `over`, or
               | buffers, axes, along, combine, expr*           a scan along one of the axes

Nodes are frozen and interned: equal ones are one object, so that a shared expression is computed
once; buffers and folds are, too. Kernels, statements and computes are plain frozen data.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from straightline.ir.dtypes import DType, b1, i64
from straightline.ir.index import Axis, Index, Size
from straightline.ir.interning import intern
from straightline.ir.ops import COMBINES, OPERATIONS, SELECT, Result


@dataclass(init=False, frozen=True, eq=False, slots=True, weakref_slot=True)
class Buffer:
    """Memory of a tensor: the element at `coords` lies `sum(coord * stride)` elements behind the
    first.
    """

    name: str
    dtype: DType
    shape: tuple[Index, ...]
    strides: tuple[Index, ...]

    def __new__(
        cls, name: str, dtype: DType, shape: tuple[Index, ...], strides: tuple[Index, ...]
    ) -> Buffer:
        fields = (name, dtype, shape, strides)
        return intern(cls, fields, fields)

    def __repr__(self) -> str:
        return self.name


# -- expressions -----------------------------------------------------------------------------------


@dataclass(init=False, frozen=True, eq=False, slots=True, weakref_slot=True)
class Const:
    """A number. Equal means equal bits: zeros of either sign are two, and NaN is itself."""

    dtype: DType
    value: bool | int | float

    def __new__(cls, dtype: DType, value: bool | int | float) -> Const:
        key = struct.pack("d", value) if isinstance(value, float) else (type(value), value)
        return intern(cls, (dtype, key), (dtype, value))

    def __repr__(self) -> str:
        return f"{self.value}:{self.dtype}"


@dataclass(init=False, frozen=True, eq=False, slots=True, weakref_slot=True)
class Load:
    """One element. Where `mask` is false memory is not touched, and the value is zero."""

    buffer: Buffer
    coords: tuple[Index, ...]
    mask: Expr | None = None

    def __new__(cls, buffer: Buffer, coords: tuple[Index, ...], mask: Expr | None = None) -> Load:
        return intern(cls, (buffer, coords, mask), (buffer, coords, mask))

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    def __repr__(self) -> str:
        computed = any(coord.computed for coord in self.coords)
        return f"{self.buffer.name}[{'…' if computed else ', '.join(map(repr, self.coords))}]"


@dataclass(init=False, frozen=True, eq=False, slots=True, weakref_slot=True)
class Position:
    """An index as a value of type `i64`."""

    index: Index

    def __new__(cls, index: Index) -> Position:
        return intern(cls, (index,), (index,))

    @property
    def dtype(self) -> DType:
        return i64

    def __repr__(self) -> str:
        return f"position({self.index})"


@dataclass(init=False, frozen=True, eq=False, slots=True, weakref_slot=True)
class Op:
    """An operation of `ops.OPERATIONS`, or `select`."""

    name: str
    dtype: DType
    args: tuple[Expr, ...]

    def __new__(cls, name: str, dtype: DType, args: tuple[Expr, ...]) -> Op:
        return intern(cls, (name, dtype, args), (name, dtype, args))

    def __repr__(self) -> str:
        return _brief(self, 4)


def _brief(expr: Expr, depth: int) -> str:
    """Text of bounded length, however much an expression shares; `text` has the whole of it."""
    if not isinstance(expr, Op):
        return repr(expr)
    args = ", ".join(_brief(arg, depth - 1) for arg in expr.args) if depth else "…"
    return f"{expr.name}({args})"


@dataclass(init=False, frozen=True, eq=False, slots=True, weakref_slot=True)
class Fold:
    """One value made of many by `ops.COMBINES[combine]`; `dtypes` are those of its components."""

    name: str
    combine: str
    dtypes: tuple[DType, ...]

    def __new__(cls, name: str, combine: str, dtypes: tuple[DType, ...]) -> Fold:
        fields = (name, combine, dtypes)
        return intern(cls, fields, fields)

    def __repr__(self) -> str:
        return self.name


@dataclass(init=False, frozen=True, eq=False, slots=True, weakref_slot=True)
class Folded:
    """Component of a fold that is complete: outside of the loops that it was accumulated in."""

    fold: Fold
    component: int = 0

    def __new__(cls, fold: Fold, component: int = 0) -> Folded:
        return intern(cls, (fold, component), (fold, component))

    @property
    def dtype(self) -> DType:
        return self.fold.dtypes[self.component]

    def __repr__(self) -> str:
        return f"{self.fold}.{self.component}" if len(self.fold.dtypes) > 1 else str(self.fold)


@dataclass(init=False, frozen=True, eq=False, slots=True, weakref_slot=True)
class Running:
    """Component of a fold as far as it has come: behind its `Accumulate`, in the same body."""

    fold: Fold
    component: int = 0

    def __new__(cls, fold: Fold, component: int = 0) -> Running:
        return intern(cls, (fold, component), (fold, component))

    @property
    def dtype(self) -> DType:
        return self.fold.dtypes[self.component]

    def __repr__(self) -> str:
        return f"running({self.fold}, {self.component})"


Expr: TypeAlias = Const | Load | Position | Op | Folded | Running


# -- statements ------------------------------------------------------------------------------------


class How(enum.Enum):
    """How the positions of a loop are visited.

    PARALLEL  in any order, by several threads: no position reads what another writes
    SERIAL    one after the other
    VECTOR    several at a time, each a lane; in any order
    """

    PARALLEL = "parallel"
    SERIAL = "serial"
    VECTOR = "vector"


@dataclass(frozen=True)
class Loop:
    axis: Axis
    how: How
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Declare:
    fold: Fold


@dataclass(frozen=True)
class Accumulate:
    """Takes a value in, where `mask` is true."""

    fold: Fold
    values: tuple[Expr, ...]
    mask: Expr | None = None


@dataclass(frozen=True)
class Store:
    buffer: Buffer
    coords: tuple[Index, ...]
    value: Expr
    mask: Expr | None = None


@dataclass(frozen=True)
class Check:
    """Unless `condition` holds, the kernel stops with status `code`, before anything below."""

    condition: Expr
    code: int


Statement: TypeAlias = Loop | Declare | Accumulate | Store | Check


@dataclass(frozen=True)
class Kernel:
    """What is called. `outputs` names the buffers that are written, each element of them once.

    `scratch` are buffers private to one position of the outermost loop.
    """

    name: str
    buffers: tuple[Buffer, ...]
    outputs: frozenset[str]
    sizes: tuple[Size, ...]
    body: tuple[Statement, ...]
    scratch: tuple[Buffer, ...] = ()


@dataclass(frozen=True)
class Require:
    """A condition that each point of `axes` has to meet before any of its compute's reads, else
    the kernel stops with status `code`.
    """

    condition: Expr
    code: int


@dataclass(frozen=True)
class Compute:
    """The elements of one tensor, or of several of one shape, before there is a schedule.

    `values` are the components at the point `axes` (and `over`); `results` says which buffer each
    component of what comes of it goes to, None where it is not wanted. `axes` are in the order of
    the buffers' dimensions. `along` is the axis of a scan.
    """

    results: tuple[Buffer | None, ...]
    axes: tuple[Axis, ...]
    values: tuple[Expr, ...]
    over: tuple[Axis, ...] = ()
    along: Axis | None = None
    combine: str | None = None
    requires: tuple[Require, ...] = ()

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return tuple(buffer for buffer in self.results if buffer is not None)


# -- making and walking ----------------------------------------------------------------------------


def op(name: str, *args: Expr, dtype: DType | None = None) -> Op:
    """The operation on these operands; `dtype` for those whose result it is up to."""
    if name == SELECT:
        return Op(name, args[1].dtype, args)
    match OPERATIONS[name].result:
        case Result.SAME:
            return Op(name, args[0].dtype, args)
        case Result.BOOL:
            return Op(name, b1, args)
        case Result.GIVEN:
            if dtype is None:
                raise ValueError(f"{name} needs a type")
            return Op(name, dtype, args)


def cast(value: Expr, dtype: DType) -> Expr:
    return value if value.dtype is dtype else op("cast", value, dtype=dtype)


def fold_types(combine: str, dtype: DType) -> tuple[DType, ...]:
    """The types of the components of a fold of values of this type."""
    if combine.startswith("arg"):
        return (dtype, i64)
    return (dtype,) * COMBINES[combine].width


def indices(expr: Expr) -> tuple[Index, ...]:
    """The index expressions in a node itself."""
    match expr:
        case Load(_, coords, _):
            return coords
        case Position(index):
            return (index,)
        case _:
            return ()


def operands(expr: Expr) -> Iterator[Expr]:
    """What a node is computed from: those in its index expressions too."""
    match expr:
        case Op(_, _, args):
            yield from args
        case Load(_, _, mask) if mask is not None:
            yield mask
        case _:
            pass
    for index in indices(expr):
        yield from (number.value for number in index.computed)


def walk(*roots: Expr, skip: Container[Expr] = ()) -> Iterator[Expr]:
    """Every expression below the roots once, operands before what uses them.

    Those to `skip` are left out, with what is only below them.
    """
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        expr, ready = stack.pop()
        if ready:
            yield expr
        elif expr not in seen and expr not in skip:
            seen.add(expr)
            stack.append((expr, True))
            stack.extend((operand, False) for operand in operands(expr) if operand not in seen)


def statements(body: Iterable[Statement]) -> Iterator[Statement]:
    """Every statement, those inside of loops too, in order."""
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from statements(statement.body)


def statement_indices(statement: Statement) -> tuple[Index, ...]:
    """The index expressions in a statement itself."""
    match statement:
        case Loop(axis):
            return (axis.extent,)
        case Store(_, coords):
            return coords
        case _:
            return ()


def expressions(statement: Statement) -> tuple[Expr, ...]:
    """What a statement computes, those in its index expressions too, but for a loop's body."""
    roots: list[Expr | None] = []
    match statement:
        case Accumulate(_, values, mask):
            roots = [*values, mask]
        case Store(_, _, value, mask):
            roots = [value, mask]
        case Check(condition):
            roots = [condition]
        case _:
            pass
    for index in statement_indices(statement):
        roots += [number.value for number in index.computed]
    return tuple(root for root in roots if root is not None)
