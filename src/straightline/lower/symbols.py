"""Sizes of torch's tensors as index expressions."""

from __future__ import annotations

import functools
from typing import Any

import sympy
import torch

from straightline.ir.index import ONE, Index, Size, add, floordiv, index, mod, mul
from straightline.lower.tensor import Unsupported


class Sizes:
    """The size symbols of one graph, each as the one `Size` that stands for it."""

    def __init__(self) -> None:
        self.symbols: dict[Size, sympy.Symbol] = {}

    def index(self, value: int | torch.SymInt) -> Index:
        """`value` as an index; Unsupported for what indices cannot say."""
        if isinstance(value, int):
            return index(value)
        return self._expression(value.node.expr, value.node.shape_env)

    def stride(self, value: int | torch.SymInt) -> Index:
        """As `index`, for a stride: that it is 1 rather than 0 in a tensor without elements, which
        torch writes as `Max(1, size)`, does not matter.
        """
        if isinstance(value, int):
            return index(value)
        return self._expression(_without_max(value.node.expr), value.node.shape_env)

    def _expression(self, expression: sympy.Expr, environment: Any) -> Index:
        translate = functools.partial(self._expression, environment=environment)
        if expression.is_Integer:
            return index(int(expression))
        if expression.is_Symbol:
            return index(self._symbol(expression, environment))
        if expression.is_Add:
            return add(*map(translate, expression.args))
        if expression.is_Mul:
            return functools.reduce(mul, map(translate, expression.args), ONE)
        match type(expression).__name__, expression.args:
            case "Pow", (base, exponent) if exponent.is_Integer and exponent >= 0:
                return functools.reduce(mul, [translate(base)] * int(exponent), ONE)
            case (("FloorDiv" | "CleanDiv"), (top, bottom)):
                return floordiv(translate(top), translate(bottom))
            case (("Mod" | "PythonMod"), (top, bottom)):
                return mod(translate(top), translate(bottom))
        raise Unsupported(f"a size that is no sum of products ({expression})")

    def _symbol(self, symbol: sympy.Symbol, environment: Any) -> Size:
        known = environment.var_to_range.get(symbol)
        low = max(0, int(known.lower)) if known is not None and _is_number(known.lower) else 0
        high = int(known.upper) if known is not None and _is_number(known.upper) else None
        size = Size(str(symbol), low, high if high is not None and high < 2**62 else None)
        self.symbols[size] = symbol
        return size


def _is_number(bound: Any) -> bool:
    return bool(getattr(bound, "is_Integer", False))


def _without_max(expression: sympy.Expr) -> sympy.Expr:
    if type(expression).__name__ == "Max":
        others = [argument for argument in expression.args if argument != 1]
        if len(others) == 1:
            return _without_max(others[0])
    if expression.is_Mul:
        return sympy.Mul(*map(_without_max, expression.args))
    return expression
