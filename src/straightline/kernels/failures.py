"""What the status of a kernel is raised as: eager's error, with the line of the model."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torch import fx

from straightline.capture import origins
from straightline.ir.nodes import Check, Kernel, statements
from straightline.lower.graph import Lowered


@dataclass(frozen=True)
class Raised:
    """An error: its type, by name, what it says, and the line of the model, `net.py:3: x[i]`."""

    error: str
    message: str
    where: str | None = None


def of_kernel(kernel: Kernel, lowered: Lowered, nodes: Mapping[str, fx.Node]) -> dict[int, Raised]:
    """What each status that a kernel may stop with means; `nodes` are the graph's, by name."""
    return {code: _raised(lowered, code, nodes) for code in sorted(set(_codes(kernel)))}


def _codes(kernel: Kernel) -> Iterator[int]:
    return (st.code for st in statements(kernel.body) if isinstance(st, Check))


def _raised(lowered: Lowered, code: int, nodes: Mapping[str, fx.Node]) -> Raised:
    name, failure = lowered.failures[code - 1]
    line = origins.origin(nodes[name])
    where = None if line is None else f"{line.file}:{line.line}: {line.text}"
    return Raised(failure.error, failure.message, where)


def failing(known: Mapping[int, Raised]) -> Callable[[int], BaseException]:
    """What makes the error of a status."""

    def failed(status: int) -> BaseException:
        raised = known[status]
        error: BaseException = getattr(builtins, raised.error)(raised.message)
        if raised.where is not None:
            error.add_note(f"raised by a kernel, for {raised.where}")
        return error

    return failed
