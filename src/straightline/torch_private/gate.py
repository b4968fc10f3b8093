"""The version gate: is the installed torch the one whose private side straightline knows?

`check()` compares every private name that straightline uses with the record of the installed
torch's minor. It fails closed: what the record does not know is a difference, and on any difference
the pipeline hands the graph to torch's stock `aot_autograd`, naming what differed.

Contract of `check()`: it raises nothing whatever torch looks like, and looks only once per process.
It imports the modules that the record names, so call it at the first compile and not at import.
"""

import functools
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import ParamSpec, TypeVar

from straightline.torch_private import records
from straightline.torch_private.records.shape import Kind, Record, Shape, describe

P = ParamSpec("P")
T = TypeVar("T")

_SHOWN_DIFFERENCES = 3

_PART_NAMES: dict[Kind, str] = {"dataclass": "field", "enum": "member"}

_KIND_NAMES: dict[Kind, str] = {
    "module": "a module",
    "enum": "an enum",
    "dataclass": "a dataclass",
    "class": "a class",
    "function": "a Python function",
    "builtin": "a builtin function",
    "value": "a plain value",
}


@dataclass(frozen=True, slots=True)
class GateReport:
    """What the gate found. Each difference is one sentence that names what differs."""

    torch_version: str
    differences: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.differences

    def summary(self) -> str:
        """One line for a warning or a table; the first few differences, and how many more."""
        if self.ok:
            return f"torch {self.torch_version} is as recorded"
        shown = "; ".join(self.differences[:_SHOWN_DIFFERENCES])
        rest = len(self.differences) - _SHOWN_DIFFERENCES
        more = f"; and {rest} more" if rest > 0 else ""
        return f"torch {self.torch_version} is not as recorded: {shown}{more}"


@functools.cache
def check() -> GateReport:
    """The report on the installed torch; the same one for the whole process."""
    version = _installed_version()
    record = load_record(version)
    if record is None:
        known = ", ".join(recorded_minors()) or "none"
        return GateReport(version, (f"no record for torch {version} (recorded minors: {known})",))
    return GateReport(version, tuple(differences(record)))


def load_record(version: str) -> Record | None:
    """The record of the minor that `version` belongs to, if there is one."""
    parsed = re.match(r"(\d+)\.(\d+)", version)
    if parsed is None or ".".join(parsed.groups()) not in recorded_minors():
        return None
    module = importlib.import_module(f"{records.__name__}.v{parsed[1]}_{parsed[2]}")
    record: Record = module.RECORD
    return record


def recorded_minors() -> tuple[str, ...]:
    """The torch minors that have a record, oldest first."""
    names = (re.fullmatch(r"v(\d+)_(\d+)", m.name) for m in pkgutil.iter_modules(records.__path__))
    minors = sorted((int(name[1]), int(name[2])) for name in names if name)
    return tuple(f"{major}.{minor}" for major, minor in minors)


def differences(record: Record) -> Iterator[str]:
    """A sentence for everything in which the installed torch is not as `record` says."""
    for module_name, shapes in record.items():
        module = _attempt(importlib.import_module, module_name)
        if isinstance(module, Exception):
            yield f"{module_name} cannot be imported: {_in_words(module)}"
            continue
        for name, recorded in shapes.items():
            yield from _compare(module, name, f"{module_name}.{name}", recorded)


def _compare(module: ModuleType, name: str, path: str, recorded: Shape) -> Iterator[str]:
    value = _attempt(functools.reduce, getattr, name.split("."), module)
    if isinstance(value, AttributeError):
        yield f"{path} is missing"
        return
    if isinstance(value, Exception):
        yield f"{path} cannot be read: {_in_words(value)}"
        return
    found = _attempt(describe, value, recorded.attributes)
    if isinstance(found, Exception):
        yield f"{path} cannot be inspected: {_in_words(found)}"
        return
    yield from _changes(path, recorded, found)


def _attempt(look: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T | Exception:
    try:
        return look(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - a changed torch may raise anything
        return error


def _changes(path: str, recorded: Shape, found: Shape) -> Iterator[str]:
    if found.kind != recorded.kind:
        yield f"{path} is {_KIND_NAMES[found.kind]}, and was {_KIND_NAMES[recorded.kind]}"
        return
    part = _PART_NAMES.get(found.kind)
    if part is None:
        if found.parts != recorded.parts:
            yield f"{path} takes {_call(found)}, and took {_call(recorded)}"
    else:
        yield from (f"{path} has a new {part} '{x}'" for x in _without(found, recorded))
        yield from (f"{path} has no {part} '{x}' any more" for x in _without(recorded, found))
    gone = (x for x in recorded.attributes if x not in found.attributes)
    yield from (f"{path} has no attribute '{x}' any more" for x in gone)


def _without(these: Shape, those: Shape) -> Iterator[str]:
    return (part for part in these.parts if part not in those.parts)


def _call(shape: Shape) -> str:
    return f"({', '.join(x + '...' if x.endswith('=') else x for x in shape.parts)})"


def _in_words(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _installed_version() -> str:
    version = _attempt(lambda: str(importlib.import_module("torch").__version__))
    return f"unknown ({_in_words(version)})" if isinstance(version, Exception) else version
