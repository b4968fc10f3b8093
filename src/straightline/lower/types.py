"""torch's types of numbers and the IR's, and what eager computes an operation in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch

from straightline.ir.dtypes import (
    DType,
    b1,
    bf16,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)
from straightline.ir.index import Index
from straightline.ir.nodes import Expr
from straightline.lower.tensor import Tensor, Unsupported

FROM_TORCH: Mapping[torch.dtype, DType] = {
    torch.bool: b1,
    torch.uint8: u8,
    torch.uint16: u16,
    torch.uint32: u32,
    torch.uint64: u64,
    torch.int8: i8,
    torch.int16: i16,
    torch.int32: i32,
    torch.int64: i64,
    torch.bfloat16: bf16,
    torch.float16: f16,
    torch.float32: f32,
    torch.float64: f64,
}
TO_TORCH: Mapping[DType, torch.dtype] = {dtype: name for name, dtype in FROM_TORCH.items()}


@dataclass(frozen=True)
class Real:
    """A Python float computed from sizes: an expression of type `f64`."""

    value: Expr


Number: TypeAlias = bool | int | float | Index | Real
Operand: TypeAlias = Tensor | Number


def from_torch(dtype: torch.dtype) -> DType:
    found = FROM_TORCH.get(dtype)
    if found is None:
        raise Unsupported("complex" if dtype.is_complex else f"elements of type {dtype}")
    return found


def of_number(value: Number) -> DType:
    """What a Python number counts as, beside tensors."""
    match value:
        case bool():
            return b1
        case int() | Index():
            return i64
        case _:
            return from_torch(torch.get_default_dtype())


def promoted(left: DType | None, right: DType | None) -> DType | None:
    if left is None or right is None or left is right:
        return right if left is None else left
    return from_torch(torch.promote_types(TO_TORCH[left], TO_TORCH[right]))


def common(*operands: Operand) -> DType:
    """The type that eager takes operands to: tensors with dimensions decide, then those without,
    then numbers; the later ones matter only where they are of a higher kind.
    """
    ranks: list[DType | None] = [None, None, None]
    for operand in operands:
        if isinstance(operand, Tensor):
            rank, dtype = (0 if operand.dims else 1), operand.dtype
        else:
            rank, dtype = 2, of_number(operand)
        ranks[rank] = promoted(ranks[rank], dtype)
    result = _over(ranks[0], _over(ranks[1], ranks[2]))
    assert result is not None
    return result


def _over(higher: DType | None, lower: DType | None) -> DType | None:
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher.is_float:
        return higher
    if higher is b1 or lower.is_float:
        return promoted(higher, lower)
    return higher
