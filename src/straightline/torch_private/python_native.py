"""torch's registry of what computes its operations in Python, `torch.backends.python_native`.

straightline is in it under its own name, and the switch that torch keeps for that name is the
switch of our kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._native.dsl_registry import dsl_registry
from torch._native.registry import (
    _filter_state,
    deregister_op_overrides,
    reenable_op_overrides,
)
from torch._vendor.packaging.version import Version

NAME = "straightline"


class Entry:
    """What torch asks of a member of its registry."""

    def __init__(self, version: Callable[[], str | None]) -> None:
        self._version = version

    def runtime_available(self) -> bool:
        return self._version() is not None

    def runtime_version(self) -> Version | None:
        version = self._version()
        return None if version is None else Version(version)

    def deregister_op_overrides(self) -> None:
        switch(on=False)

    def register_op_override(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("straightline compiles graphs, and overrides no operation")


def enter(version: Callable[[], str | None]) -> None:
    """Enters straightline into the registry; `version` is None where it has no kernels."""
    if NAME not in dsl_registry.list_all_dsls():
        dsl_registry.register_dsl(NAME, Entry(version))


def is_on() -> bool:
    """Whether the switch under our name is on."""
    return NAME not in _filter_state._dsl_names


def switch(*, on: bool) -> None:
    """Turns the switch."""
    if on:
        reenable_op_overrides(enable_dsl_names=NAME)
    else:
        deregister_op_overrides(disable_dsl_names=NAME)
