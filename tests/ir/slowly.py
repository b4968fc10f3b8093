"""Kernels run one position after the other, in plain Python: the meaning of loops spelled out.

Only for the exact operations. What `interpret` does for all positions at once has to come to the
same.
"""

from __future__ import annotations

import numpy as np

from straightline.ir import scalar
from straightline.ir.dtypes import DType, bf16
from straightline.ir.index import Axis, Index, evaluate
from straightline.ir.nodes import (
    Accumulate,
    Buffer,
    Check,
    Const,
    Declare,
    Expr,
    Fold,
    Folded,
    Kernel,
    Load,
    Loop,
    Op,
    Position,
    Running,
    Statement,
    Store,
)
from straightline.ir.ops import identity

Number = bool | int | float


class Stopped(Exception):
    pass


def run(kernel: Kernel, arrays: dict[str, np.ndarray], sizes: dict[str, int]) -> int:
    try:
        _Run(kernel, arrays, sizes).body(kernel.body)
    except Stopped as stopped:
        (code,) = stopped.args
        return code
    return 0


class _Run:
    def __init__(self, kernel: Kernel, arrays: dict[str, np.ndarray], sizes: dict[str, int]):
        self.arrays = arrays
        self.scratch: dict[tuple[Buffer, int], Number] = {}
        self.private = kernel.scratch
        self.at: dict[object, int] = {size: sizes[size.name] for size in kernel.sizes}
        self.folds: dict[Fold, list[Number]] = {}

    def body(self, body: tuple[Statement, ...]) -> None:
        for statement in body:
            match statement:
                case Loop(axis, _, inside):
                    for position in range(self.index(axis.extent)):
                        if not any(isinstance(outer, Axis) for outer in self.at):
                            self.scratch.clear()
                        self.at[axis] = position
                        self.body(inside)
                        del self.at[axis]
                case Declare(fold):
                    each = enumerate(fold.dtypes)
                    self.folds[fold] = [identity(fold.combine, dtype, c) for c, dtype in each]
                case Accumulate(fold, values, mask):
                    taken = [self.value(value) for value in values]
                    if mask is None or self.value(mask):
                        self.folds[fold] = combine(fold, self.folds[fold], taken)
                case Store(buffer, coords, value, mask):
                    number = self.value(value)
                    if mask is None or self.value(mask):
                        self.store(buffer, self.address(buffer, coords), number)
                case Check(condition, code):
                    if not self.value(condition):
                        raise Stopped(code)

    def index(self, value: Index) -> int:
        def number(atom):
            return self.at[atom] if atom in self.at else self.value(atom.value)

        return evaluate(value, number)

    def address(self, buffer: Buffer, coords: tuple[Index, ...]) -> int:
        at = [self.index(coord) for coord in coords]
        assert all(0 <= c < self.index(s) for c, s in zip(at, buffer.shape, strict=True))
        return sum(c * self.index(s) for c, s in zip(at, buffer.strides, strict=True))

    def store(self, buffer: Buffer, address: int, number: Number) -> None:
        if buffer in self.private:
            self.scratch[buffer, address] = number
        elif buffer.dtype is bf16:
            self.arrays[buffer.name][address] = scalar.bits(bf16, number)
        else:
            self.arrays[buffer.name][address] = number

    def load(self, buffer: Buffer, address: int) -> Number:
        if buffer in self.private:
            return self.scratch[buffer, address]
        number = self.arrays[buffer.name][address].item()
        return scalar.from_bits(bf16, number) if buffer.dtype is bf16 else number

    def value(self, expr: Expr) -> Number:
        match expr:
            case Const(_, value):
                return value
            case Position(value):
                return scalar.wrap(expr.dtype, self.index(value))
            case Load(buffer, coords, mask):
                if mask is not None and not self.value(mask):
                    return zero(buffer.dtype)
                return self.load(buffer, self.address(buffer, coords))
            case Op(name, dtype, args):
                numbers = [self.value(arg) for arg in args]
                return scalar.apply(name, args[-1].dtype, dtype, *numbers)
            case Folded(fold, component) | Running(fold, component):
                return self.folds[fold][component]


def zero(dtype: DType) -> Number:
    return 0.0 if dtype.is_float else 0 if dtype.is_integer else False


ONE_OF = {"sum": "add", "product": "mul", "min": "min", "max": "max",
          "any": "or", "all": "and", "xor": "xor"}  # fmt: skip


def combine(fold: Fold, old: list[Number], new: list[Number]) -> list[Number]:
    dtype = fold.dtypes[0]
    if fold.combine in ("argmin", "argmax"):
        (a, at), (b, other) = old, new
        if a == b or (a != a and b != b):
            return [a, min(at, other)]
        better = a != a or (b == b and (a < b if fold.combine == "argmin" else a > b))
        return old if better else new
    if fold.combine in ("min", "max") and not dtype.is_float and not dtype.is_integer:
        return [min(old[0], new[0]) if fold.combine == "min" else max(old[0], new[0])]
    return [scalar.apply(ONE_OF[fold.combine], dtype, dtype, old[0], new[0])]
