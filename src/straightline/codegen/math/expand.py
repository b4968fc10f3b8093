"""Functions as expansions into exact operations, the same for every target.

What comes out computes with additions, products, fused ones, quotients, roots, comparisons and
bits alone: each has one result, so that interpreter and machine code agree to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from straightline.codegen.math import error, exponential, inverse, logarithm, power, trigonometric
from straightline.codegen.math.value import Value
from straightline.ir.dtypes import DType, f32, f64
from straightline.ir.nodes import Expr

Function: TypeAlias = Callable[..., Value]

FUNCTIONS: dict[str, Function] = {
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
    "pow": power.pow_,
    "hypot": power.hypot,
    "atan2": inverse.atan2,
    "sin": trigonometric.sin,
    "cos": trigonometric.cos,
    "tan": trigonometric.tan,
    "asin": inverse.asin,
    "acos": inverse.acos,
    "atan": inverse.atan,
}
