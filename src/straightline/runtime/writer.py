"""Writes the text of generated functions."""

from __future__ import annotations

import builtins
import contextlib
import keyword
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_INDENT = "    "
_RESERVED = frozenset(keyword.kwlist) | frozenset(dir(builtins)) | {"ctx", "grads", "args"}


@dataclass
class Writer:
    """Lines of one source file and the objects that its globals are bound to.

    `sources` has expressions for those globals that cannot tell their names themselves.

    Every name, local or global, is handed out once, so that nothing shadows anything. `duties` says
    which lines do which job, under the names that torch's own tools know.
    """

    lines: list[str] = field(default_factory=list)
    globals: dict[str, object] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    duties: dict[str, list[int]] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)
    _depth: int = 0
    _open: list[str] = field(default_factory=list)

    def line(self, text: str, comment: str = "") -> None:
        """One line at the current depth."""
        for duty in self._open:
            self.duties.setdefault(duty, []).append(len(self.lines))
        full = _INDENT * self._depth + text if text else ""
        self.lines.append(f"{full}  # {comment}" if comment else full)

    @contextlib.contextmanager
    def block(self, header: str) -> Iterator[None]:
        """`header` and what is written inside, one step deeper."""
        self.line(header)
        self._depth += 1
        start = len(self.lines)
        yield
        if len(self.lines) == start:
            self.line("pass")
        self._depth -= 1

    @contextlib.contextmanager
    def duty(self, name: str) -> Iterator[None]:
        """What is written inside does the job that torch calls `name`."""
        self._open.append(name)
        yield
        self._open.pop()

    def name(self, wanted: str) -> str:
        """A name that nothing else has, as near to `wanted` as can be."""
        candidate, count = wanted, 1
        while candidate in self._taken or candidate in _RESERVED:
            candidate = f"{wanted}_{count}"
            count += 1
        self._taken.add(candidate)
        return candidate

    def reserve(self, name: str) -> None:
        """`name` is in use; nothing else gets it."""
        self._taken.add(name)

    def bind(self, value: object, hint: str, source: str | None = None) -> str:
        """The global name of `value`; the same object is bound once. `source` leads to it."""
        for known, bound in self.globals.items():
            if bound is value:
                return known
        name = self.name(hint)
        self.globals[name] = value
        if source is not None:
            self.sources[name] = source
        return name

    def literal(self, value: object, hint: str) -> str:
        """`value` written out where Python can, else bound to a global."""
        text = literal(value)
        return text if text is not None else self.bind(value, hint)

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def duty_text(self, name: str) -> str:
        """The lines that do one job."""
        return "\n".join(self.lines[i] for i in self.duties[name]) + "\n"


def literal(value: object) -> str | None:
    """Source for a constant, or None when it has to be bound as an object."""
    match value:
        case None | bool() | str():
            return repr(value)
        case int() if type(value) is int:
            return repr(value)
        case float() if type(value) is float and math.isfinite(value):
            return repr(value)
        case tuple() if type(value) is tuple:
            return _sequence(value, "({})", single="({},)")
        case list() if type(value) is list:
            return _sequence(value, "[{}]", single="[{}]")
        case _:
            return None


def _sequence(values: Iterable[object], form: str, *, single: str) -> str | None:
    items = [literal(v) for v in values]
    if any(item is None for item in items):
        return None
    return (single if len(items) == 1 else form).format(", ".join(map(str, items)))


def tuple_of(expressions: Iterable[str]) -> str:
    """A tuple display."""
    items = list(expressions)
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def attribute(owner: str, name: str) -> str:
    """Access to attribute `name`, whatever characters it has."""
    plain = name.isidentifier() and not keyword.iskeyword(name)
    return f"{owner}.{name}" if plain else f"getattr({owner}, {name!r})"
