"""LLVM IR as text: its types, its constants, and instructions written one after the other.

`bf16` and `f16` are held in registers by their bits, as `i16`; a bool is an `i1`, and a byte in
memory.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from straightline.codegen.target import Target
from straightline.ir.dtypes import DType, b1, bf16, f16, f32, f64

# Lines, and places among them where lines are still put.
Lines: TypeAlias = "list[str | Lines]"


def register(dtype: DType) -> str:
    """The type that one value has in a register."""
    if dtype is f32:
        return "float"
    return "double" if dtype is f64 else f"i{dtype.bits}"


def memory(dtype: DType) -> str:
    """The type that one value has in memory."""
    return "i8" if dtype is b1 else register(dtype)


def vector(base: str, lanes: int) -> str:
    return base if lanes == 1 else f"<{lanes} x {base}>"


_SHORT = {"float": "f32", "double": "f64", "half": "f16", "ptr": "p0"}


def suffix(base: str, lanes: int) -> str:
    """A type as names of intrinsics spell it."""
    short = _SHORT.get(base, base)
    return short if lanes == 1 else f"v{lanes}{short}"


def number(dtype: DType, value: bool | int | float) -> str:
    """A constant without its type."""
    if dtype is b1:
        return "true" if value else "false"
    if dtype is f32:
        return _float64(ctypes.c_float(value).value)
    if dtype is f64:
        return _float64(float(value))
    if dtype is f16:
        return str(_half_bits(float(value)))
    if dtype is bf16:
        return str(_bfloat_bits(float(value)))
    return str(int(value))


def _float64(value: float) -> str:
    (bits,) = struct.unpack("Q", struct.pack("d", value))
    return f"0x{bits:016X}"


def _half_bits(value: float) -> int:
    value = ctypes.c_float(value).value
    try:
        return int.from_bytes(struct.pack("<e", value), "little")
    except OverflowError:
        return 0xFC00 if value < 0 else 0x7C00


def _bfloat_bits(value: float) -> int:
    (bits,) = struct.unpack("I", struct.pack("f", ctypes.c_float(value).value))
    if math.isnan(value):
        return int(bits >> 16 | 0x40)
    return int(bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def splat(base: str, constant: str, lanes: int) -> str:
    """A constant in every lane."""
    return constant if lanes == 1 else f"splat ({base} {constant})"


def sequence(base: str, numbers: Iterable[int]) -> str:
    return "<" + ", ".join(f"{base} {i}" for i in numbers) + ">"


def is_constant(name: str) -> bool:
    return not name.startswith("%")


def integer(name: str) -> int | None:
    """The number that a constant of an integer type is, in every lane."""
    found = re.search(r"(-?\d+)\)?$", name) if is_constant(name) else None
    return int(found[1]) if found else None


@dataclass
class Function:
    """What the instructions of one function share: names not yet taken, what it calls."""

    target: Target
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    declarations: dict[str, str] = field(default_factory=dict)

    def name(self) -> str:
        return f"%v{next(self._numbers)}"

    def label(self, word: str) -> str:
        return f"{word}{next(self._numbers)}"


@dataclass(frozen=True)
class At:
    """A place where instructions on `lanes` lanes are written. Values are names or constants."""

    function: Function
    lines: Lines
    lanes: int

    @property
    def target(self) -> Target:
        return self.function.target

    def over(self, lanes: int) -> At:
        return At(self.function, self.lines, lanes)

    def type(self, base: str) -> str:
        return vector(base, self.lanes)

    def const(self, base: str, constant: str | int) -> str:
        return splat(base, str(constant), self.lanes)

    def do(self, text: str) -> str:
        """An instruction with a result."""
        name = self.function.name()
        self.lines.append(f"  {name} = {text}")
        return name

    def perform(self, text: str) -> None:
        """An instruction without one."""
        self.lines.append(f"  {text}")

    def binary(self, instruction: str, base: str, a: str, b: str) -> str:
        return self.do(f"{instruction} {self.type(base)} {a}, {b}")

    def convert(self, instruction: str, old: str, value: str, new: str) -> str:
        return self.do(f"{instruction} {self.type(old)} {value} to {self.type(new)}")

    def compare(self, instruction: str, base: str, a: str, b: str) -> str:
        return self.do(f"{instruction} {self.type(base)} {a}, {b}")

    def select(self, condition: str, base: str, a: str, b: str) -> str:
        kind = self.type(base)
        return self.do(f"select {self.type('i1')} {condition}, {kind} {a}, {kind} {b}")

    def call(self, intrinsic: str, base: str, *args: str, flag: str = "") -> str:
        """An intrinsic from values of a type to one; `flag` is an operand behind them."""
        kind = self.type(base)
        name = f"{intrinsic}.{suffix(base, self.lanes)}"
        kinds = [kind] * len(args) + [flag.partition(" ")[0]] * bool(flag)
        self.declare(f"{kind} @{name}({', '.join(kinds)})")
        given = [f"{kind} {arg}" for arg in args] + [flag] * bool(flag)
        return self.do(f"call {kind} @{name}({', '.join(given)})")

    def declare(self, signature: str) -> None:
        self.function.declarations.setdefault(signature.partition("@")[2], f"declare {signature}")

    def spread(self, base: str, value: str) -> str:
        """A scalar in every lane."""
        if self.lanes == 1:
            return value
        if is_constant(value):
            return splat(base, value, self.lanes)
        kind = self.type(base)
        one = self.do(f"insertelement {kind} poison, {base} {value}, i64 0")
        zeros = f"<{self.lanes} x i32> zeroinitializer"
        return self.do(f"shufflevector {kind} {one}, {kind} poison, {zeros}")

    def block(self, label: str) -> None:
        """Control falls into a new block."""
        self.lines.append(f"  br label %{label}")
        self.lines.append(f"{label}:")


def flat(lines: Lines) -> Iterator[str]:
    for line in lines:
        if isinstance(line, str):
            yield line
        else:
            yield from flat(line)
