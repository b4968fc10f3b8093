"""Functions as expansions into exact operations, the same for every target.

What comes out computes with additions, products, fused ones, quotients, roots, comparisons and
bits alone: each has one result, so that interpreter and machine code agree to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from straightline.codegen.math import (
    error,
    exponential,
    gamma,
    inverse,
    logarithm,
    power,
    scale,
    trigonometric,
)
from straightline.codegen.math.value import Value
from straightline.ir.dtypes import DType, f32, f64
from straightline.ir.index import Index
from straightline.ir.nodes import Accumulate, Check, Expr, Kernel, Loop, Op, Statement, Store
from straightline.ir.ops import OPERATIONS
from straightline.ir.rewrite import Memo, rebuild, reindex, with_operands

# Operands, and whether the target has `ldexp` as an instruction.
Function: TypeAlias = Callable[..., Value]

FUNCTIONS: Mapping[str, Function] = {
    "exp": exponential.exp,
    "exp2": exponential.exp2,
    "expm1": exponential.expm1,
    "sigmoid": exponential.sigmoid,
    "tanh": exponential.tanh,
    "sinh": exponential.sinh,
    "cosh": exponential.cosh,
    "log": logarithm.log,
    "log2": logarithm.log2,
    "log10": logarithm.log10,
    "log1p": logarithm.log1p,
    "asinh": logarithm.asinh,
    "acosh": logarithm.acosh,
    "atanh": logarithm.atanh,
    "erf": error.erf,
    "erfc": error.erfc,
    "erfinv": error.erfinv,
    "lgamma": gamma.lgamma,
    "digamma": gamma.digamma,
    "pow": power.pow_,
    "hypot": power.hypot,
    "sin": trigonometric.sin,
    "cos": trigonometric.cos,
    "tan": trigonometric.tan,
    "asin": inverse.asin,
    "acos": inverse.acos,
    "atan": inverse.atan,
    "atan2": inverse.atan2,
}
IN_DOUBLE = frozenset(
    {
        *("exp", "exp2", "expm1", "sigmoid", "tanh", "sinh", "cosh"),
        *("log", "log2", "log10", "log1p", "asinh", "acosh", "atanh"),
        *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "erf", "pow", "hypot"),
    }
)


def supported(name: str, dtype: DType) -> bool:
    """Whether there is an expansion of the function for operands of this type."""
    return name in FUNCTIONS and (dtype is f32 or (dtype is f64 and name in IN_DOUBLE))


def _expanded(old: Expr, done: Memo, has_scale: bool) -> Expr:
    new = with_operands(old, done)
    if not isinstance(new, Op):
        return new
    args = [Value(arg) for arg in new.args]
    if supported(new.name, new.dtype):
        return FUNCTIONS[new.name](*args, has_scale).expr
    if new.name in OPERATIONS and OPERATIONS[new.name].ulp:
        raise ValueError(f"no expansion of {new.name} for {new.dtype}")
    return scale.ldexp(*args).expr if new.name == "ldexp" and not has_scale else new


def expand(expr: Expr, has_scale: bool = False, memo: Memo | None = None) -> Expr:
    """`expr` with every function in it expanded. `has_scale`: `ldexp` is an instruction, and may be
    used; the numbers are the same. A memo is shared only by calls with the same `has_scale`.

    Raises ValueError for a function that is not `supported`.
    """
    return rebuild(expr, partial(_expanded, has_scale=has_scale), memo)


def expand_kernel(kernel: Kernel, has_scale: bool = False) -> Kernel:
    """The kernel with every function in it expanded."""
    memo: Memo = {}
    body = tuple(_statement(statement, has_scale, memo) for statement in kernel.body)
    return replace(kernel, body=body)


def _statement(statement: Statement, has_scale: bool, memo: Memo) -> Statement:
    def new(expr: Expr) -> Expr:
        return expand(expr, has_scale, memo)

    def guard(mask: Expr | None) -> Expr | None:
        return None if mask is None else new(mask)

    def moved(coord: Index) -> Index:
        for number in coord.computed:
            new(number.value)
        return reindex(coord, memo)

    match statement:
        case Loop(axis, how, body):
            return Loop(axis, how, tuple(_statement(each, has_scale, memo) for each in body))
        case Accumulate(fold, values, mask):
            return Accumulate(fold, tuple(map(new, values)), guard(mask))
        case Store(buffer, coords, value, mask):
            return Store(buffer, tuple(map(moved, coords)), new(value), guard(mask))
        case Check(condition, code):
            return Check(new(condition), code)
        case _:
            return statement
