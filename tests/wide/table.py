"""Tables of small programs, and how one is checked.

A program is an ordinary function with fresh inputs. The oracle calls it eagerly and compiled, looks
at everything, writes to the outputs, differentiates and looks again. One size is enough for most:
the tables are about breadth, and dynamic shapes have a table of their own. `pytest -m "slow or not
slow" tests/wide` runs all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from oracle import Case


class Programs(dict[str, Case]):
    """Programs by name."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = {"calls": (4,), **options}

    def add(
        self, name: str, fn: Callable[..., Any], make_args: Callable[..., Any], **options: Any
    ) -> None:
        """`options` are those of `oracle.check`."""
        assert name not in self, f"two programs named {name}"
        self[name] = Case(fn, make_args, {**self.options, **options})

    def __call__(
        self, make_args: Callable[..., Any], **options: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorates a function that has a name of its own."""

        def put(fn: Callable[..., Any]) -> Callable[..., Any]:
            self.add(fn.__name__, fn, make_args, **options)
            return fn

        return put


def some(programs: Programs, share: int) -> list[Any]:
    """Names to parametrise a test with, of which one in `share` is part of the default run."""
    return [
        pytest.param(name, marks=() if place % share == 0 else pytest.mark.slow)
        for place, name in enumerate(programs)
    ]
