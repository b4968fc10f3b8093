"""Types of scalars, and what they promote to.

`bf16` and `f16` are types of memory: they are loaded, stored and cast, and computed with in `f32`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.Enum):
    BOOL = "bool"
    UNSIGNED = "unsigned"
    SIGNED = "signed"
    FLOAT = "float"


@dataclass(frozen=True)
class DType:
    """One scalar type. `bits` is its width in memory, except that a bool takes a byte there."""

    name: str
    kind: Kind
    bits: int

    def __repr__(self) -> str:
        return self.name

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def bytes(self) -> int:
        return max(1, self.bits // 8)

    @property
    def is_float(self) -> bool:
        return self.kind is Kind.FLOAT

    @property
    def is_integer(self) -> bool:
        return self.kind in (Kind.SIGNED, Kind.UNSIGNED)

    @property
    def is_signed(self) -> bool:
        return self.kind is Kind.SIGNED

    @property
    def lowest(self) -> int:
        """The smallest integer of an integer type."""
        return -(1 << (self.bits - 1)) if self.is_signed else 0

    @property
    def highest(self) -> int:
        """The largest integer of an integer type."""
        return (1 << (self.bits - self.is_signed)) - 1


b1 = DType("b1", Kind.BOOL, 1)
u8 = DType("u8", Kind.UNSIGNED, 8)
u16 = DType("u16", Kind.UNSIGNED, 16)
u32 = DType("u32", Kind.UNSIGNED, 32)
u64 = DType("u64", Kind.UNSIGNED, 64)
i8 = DType("i8", Kind.SIGNED, 8)
i16 = DType("i16", Kind.SIGNED, 16)
i32 = DType("i32", Kind.SIGNED, 32)
i64 = DType("i64", Kind.SIGNED, 64)
bf16 = DType("bf16", Kind.FLOAT, 16)
f16 = DType("f16", Kind.FLOAT, 16)
f32 = DType("f32", Kind.FLOAT, 32)
f64 = DType("f64", Kind.FLOAT, 64)

BY_NAME = {
    dtype.name: dtype for dtype in (b1, u8, u16, u32, u64, i8, i16, i32, i64, bf16, f16, f32, f64)
}

COMPUTED_IN = {bf16: f32, f16: f32}


def computed_in(dtype: DType) -> DType:
    """The type that arithmetic on `dtype` happens in."""
    return COMPUTED_IN.get(dtype, dtype)
