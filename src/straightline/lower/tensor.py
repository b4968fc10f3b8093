"""Tensors as lowering sees them: what is read at which coordinates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from straightline.ir.dtypes import DType, b1
from straightline.ir.index import ONE, ZERO, Index, mul
from straightline.ir.nodes import Buffer, Expr, Load, op

Coords: TypeAlias = tuple[Index, ...]
Shape: TypeAlias = tuple[Index, ...]


class Unsupported(Exception):
    """An operation that stays ATen's, and why: words for the report."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Read(Protocol):
    """The element at `coords`; where `mask` is false no memory is touched."""

    def __call__(self, coords: Coords, mask: Expr | None = None) -> Expr: ...


@dataclass(frozen=True)
class Memory:
    """A buffer, and where in its storage it begins, counted in elements; None if not known."""

    buffer: Buffer
    offset: Index | None = ZERO


@dataclass(frozen=True, eq=False)
class Tensor:
    """Elements of one type, each an expression of where it stands.

    `memory` is where they lie, `buffer` the same where the tensor is all of it and nothing else.
    """

    shape: Shape
    dtype: DType
    load: Read
    buffer: Buffer | None = None
    memory: Memory | None = None

    @property
    def dims(self) -> int:
        return len(self.shape)


def of_buffer(buffer: Buffer, offset: Index | None = ZERO) -> Tensor:
    def load(coords: Coords, mask: Expr | None = None) -> Expr:
        return Load(buffer, coords, mask)

    return Tensor(buffer.shape, buffer.dtype, load, buffer, Memory(buffer, offset))


def view(base: Tensor, shape: Sequence[Index], where: Callable[[Coords], Coords]) -> Tensor:
    """The tensor of this shape that holds at its `coords` what `base` holds at `where(coords)`."""

    def load(coords: Coords, mask: Expr | None = None) -> Expr:
        return base.load(where(coords), mask)

    return Tensor(tuple(shape), base.dtype, load, None, base.memory)


def both(left: Expr | None, right: Expr | None) -> Expr | None:
    """Where both masks are true."""
    if left is None or right is None:
        return right if left is None else left
    assert left.dtype is b1
    return op("and", left, right)


def broadcast(coords: Coords, shape: Shape) -> Coords:
    """Where in a tensor of `shape` stands what broadcasting brings to `coords`."""
    own = coords[len(coords) - len(shape) :]
    return tuple(ZERO if n is ONE else c for n, c in zip(shape, own, strict=True))


def contiguous(shape: Sequence[Index]) -> tuple[Index, ...]:
    """The strides of a tensor that lies in memory in the order of its coordinates."""
    strides: list[Index] = []
    step = ONE
    for size in reversed(shape):
        strides.insert(0, step)
        step = mul(step, size)
    return tuple(strides)
