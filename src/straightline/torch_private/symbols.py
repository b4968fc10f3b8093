"""Express torch's symbolic sizes over what a program receives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sympy
import torch
from torch.utils._sympy.printers import PythonPrinter

Bindings = Mapping[sympy.Symbol, str]


def bindings(named: Iterable[tuple[str, Any]]) -> Bindings:
    """Where each size symbol can be read: from a number that is passed, else from a tensor's size.

    `named` are the program's inputs, fake, with their names in the generated source.
    """
    numbers: dict[sympy.Symbol, str] = {}
    sizes: dict[sympy.Symbol, str] = {}
    for name, value in named:
        if isinstance(value, torch.SymInt) and isinstance(value.node.expr, sympy.Symbol):
            numbers.setdefault(value.node.expr, name)
        elif type(value).__name__ == "FakeTensor":
            for dim, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
                    sizes.setdefault(size.node.expr, f"{name}.size({dim})")
    return {**sizes, **numbers}


def hint(value: Any) -> Any:
    """The number that a symbol stands for in the call that is being compiled; no guard is made."""
    return value.node.hint


def render(value: torch.SymInt, bound: Bindings) -> str | None:
    """`value` as a Python expression, or None when it depends on something that is not passed."""
    expression = sympy.sympify(value.node.expr)
    if not expression.free_symbols <= set(bound):
        return None
    renamed = expression.xreplace({s: sympy.Symbol(bound[s], integer=True) for s in bound})
    return str(PythonPrinter().doprint(renamed))
