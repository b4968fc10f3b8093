"""Sizes of torch's tensors as index expressions."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx

from straightline.ir.dtypes import f64
from straightline.ir.index import ONE, Index, Size, add, floordiv, index, mod, mul
from straightline.ir.nodes import Const, Expr, Position, cast, op
from straightline.lower.tensor import Unsupported
from straightline.lower.types import Real


@dataclass(frozen=True)
class Source:
    """Where a size is read: from a number that is `scale * size + offset`. That is the value of
    `node`, or what it measures in dimension `dim`.
    """

    node: fx.Node
    dim: int | None
    scale: int = 1
    offset: int = 0


class Sizes:
    """The size symbols of one graph, each as the one `Size` that stands for it.

    Only those can be told to a kernel that some number or tensor at hand shows.
    """

    def __init__(self) -> None:
        self.sources: dict[Size, Source] = {}

    def learn(self, node: fx.Node, described: Any) -> None:
        """Takes note of what the value of a node shows, once it is there."""
        if isinstance(described, torch.SymInt):
            self._learn(node, None, described)
        elif isinstance(described, torch.Tensor):
            shape: Iterable[Any] = described.shape
            for dim, size in enumerate(shape):
                if isinstance(size, torch.SymInt):
                    self._learn(node, dim, size)

    def _learn(self, node: fx.Node, dim: int | None, shown: torch.SymInt) -> None:
        expression = sympy.sympify(shown.node.expr)
        if len(expression.free_symbols) != 1:
            return
        (symbol,) = expression.free_symbols
        offset, rest = expression.as_independent(symbol, as_Add=True)
        scale = rest / symbol
        if not (scale.is_Integer and offset.is_Integer):
            return
        size = _size(symbol, shown.node.shape_env)
        self.sources.setdefault(size, Source(node, dim, int(scale), int(offset)))

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

    def real(self, value: torch.SymFloat) -> Real:
        """A float made of sizes, as eager computes it: in doubles."""
        return Real(self._real(value.node.expr, value.node.shape_env))

    def _real(self, expression: sympy.Expr, environment: Any) -> Expr:
        if expression.is_Number:
            return Const(f64, float(expression))
        translate = functools.partial(self._real, environment=environment)
        if expression.is_integer:
            return cast(Position(self._expression(expression, environment)), f64)
        match type(expression).__name__, expression.args:
            case "ToFloat", (whole,):
                return cast(Position(self._expression(whole, environment)), f64)
            case (("IntTrueDiv" | "FloatTrueDiv"), (top, bottom)):
                return op("div", translate(top), translate(bottom))
            case "Mul", factors:
                return functools.reduce(lambda x, y: op("mul", x, y), map(translate, factors))
            case "Add", terms:
                return functools.reduce(lambda x, y: op("add", x, y), map(translate, terms))
        raise Unsupported(f"a number that varies, and is no size ({expression})")

    def _symbol(self, symbol: sympy.Symbol, environment: Any) -> Size:
        size = _size(symbol, environment)
        if size not in self.sources:
            raise Unsupported("a size that nothing at hand shows")
        return size


def _size(symbol: sympy.Symbol, environment: Any) -> Size:
    known = environment.var_to_range.get(symbol)
    low = max(0, int(known.lower)) if known is not None and _is_number(known.lower) else 0
    high = int(known.upper) if known is not None and _is_number(known.upper) else None
    return Size(str(symbol), low, high if high is not None and high < 2**62 else None)


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
