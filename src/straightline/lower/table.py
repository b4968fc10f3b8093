"""Tables of rules, by the name of the operation (`aten.add.Tensor`, as it prints).

A rule takes a builder and the operation's arguments as its schema orders and names them: tensors
as `Tensor`, sizes as `Index`, numbers, types and flags as they are. It gives the result, or a tuple
of them. By their names, and not as objects, the operations need not all be looked up for a program
that uses three.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from straightline.lower.tensor import Tensor

Result: TypeAlias = Tensor | Sequence[Tensor | None]
Rule: TypeAlias = Callable[..., Result]
R = TypeVar("R", bound=Rule)


class Table(dict[str, Rule]):
    """Rules by the names of operations, without the `aten.` that all begin with."""

    def rule(self, *names: str) -> Callable[[R], R]:
        """Enters the function that follows for these operations."""

        def enter(function: R) -> R:
            self.add(function, *names)
            return function

        return enter

    def add(self, rule: Rule, *names: str) -> None:
        for name in names:
            key = f"aten.{name}" if "." in name else f"aten.{name}.default"
            assert key not in self, key
            self[key] = rule

    def find(self, target: Any) -> Rule | None:
        return self.get(str(target))
