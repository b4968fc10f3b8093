"""What a kernel's builtin is called with, in words that the launcher reads."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from straightline.ir.dtypes import DType, Kind
from straightline.ir.index import ONE, Axis, Given, Index, index
from straightline.ir.nodes import How, Kernel, Loop

# The type codes of dlpack.h.
_CODES = {Kind.SIGNED: 0, Kind.UNSIGNED: 1, Kind.FLOAT: 2, Kind.BOOL: 6}
_BFLOAT = 4
# Threads share vector loops in pieces of so many elements: whole vectors, and whole cache lines.
_VECTOR_STEP = 64


@dataclass(frozen=True)
class Fact:
    """The number at this place among the integers that a builtin is called with."""

    at: int


Number: TypeAlias = int | Fact


@dataclass(frozen=True)
class Work:
    """What it costs to run a kernel: an estimate of `nanoseconds * times` for each position of the
    outermost loop, or for the whole where that loop is not shared by threads. A thread's share is
    at least `grain` positions.
    """

    nanoseconds: float = 0.0
    times: Index = ONE
    grain: int = 1


@dataclass(frozen=True)
class Expected:
    """A tensor as the kernel was compiled for."""

    name: str
    dtype: DType
    shape: tuple[Number, ...]
    strides: tuple[Number, ...]
    written: bool


@dataclass(frozen=True)
class Description:
    """A kernel as its builtin sees it.

    `facts` are the numbers it is called with, behind the tensors: the kernel's sizes, then what
    else shapes, strides and the amount of work are made of. `count` is the number of positions
    that threads may share, or None.
    """

    name: str
    tensors: tuple[Expected, ...]
    facts: tuple[Index, ...]
    count: Number | None
    nanoseconds: float
    times: Number
    grain: int
    step: int


def describe(name: str, kernel: Kernel, work: Work) -> Description:
    facts = [index(size) for size in kernel.sizes]

    def number(value: Index) -> Number:
        if value.is_constant:
            return value.constant
        if value not in facts:
            facts.append(value)
        return Fact(facts.index(value))

    def numbers(values: Sequence[Index]) -> tuple[Number, ...]:
        return tuple(number(value) for value in values)

    count, step = None, 1
    match kernel.body:
        case (Loop(axis, How.PARALLEL | How.VECTOR as how, _),):
            count = number(axis.extent)
            step = _VECTOR_STEP if how is How.VECTOR else 1
        case _:
            pass
    tensors = tuple(
        Expected(b.name, b.dtype, numbers(b.shape), numbers(b.strides), b.name in kernel.outputs)
        for b in kernel.buffers
    )
    times = number(work.times)
    unknown = [atom for fact in facts for atom in fact.atoms if isinstance(atom, Axis | Given)]
    if unknown:
        raise ValueError(f"{name} cannot be told {unknown} when it is called")
    return Description(
        name, tensors, tuple(facts), count, work.nanoseconds, times, work.grain, step
    )


def words(description: Description, code: int) -> bytes:
    """The description for the launcher, of the kernel whose machine code is at this address."""
    header = struct.pack(
        "=qqqqqdqqq",
        code,
        len(description.tensors),
        len(description.facts),
        description.count is not None,
        _word(description.count or 0),
        description.nanoseconds,
        _word(description.times),
        description.grain,
        description.step,
    )
    return header + b"".join(_tensor_words(tensor) for tensor in description.tensors)


def _tensor_words(tensor: Expected) -> bytes:
    code = _BFLOAT if tensor.dtype.name == "bf16" else _CODES[tensor.dtype.kind]
    rank, bits, lanes = len(tensor.shape), 8 * tensor.dtype.bytes, 1
    layout = (
        _word(number) for pair in zip(tensor.shape, tensor.strides, strict=True) for number in pair
    )
    return struct.pack("=iBBH", rank, code, bits, lanes) + struct.pack(f"={2 * rank}q", *layout)


def _word(number: Number) -> int:
    """See @number in launcher.ll."""
    return 2 * number.at + 1 if isinstance(number, Fact) else 2 * number
