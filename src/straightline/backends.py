"""What computes operations, and its switches, in the manner of `torch.backends.python_native`.

    straightline.backends.llvm.enabled = False
    with straightline.backends.operations_disabled("relu"):
        ...

There are two backends: `llvm`, the kernels that straightline compiles, and `aten`, torch's own
operations, which run what no kernel does. An operation that is switched off runs as ATen, in every
graph. So does one whose tensors have a dispatch key that is switched off.

Switches hold for the whole process. They count when a function is compiled; turning one compiles
anew, at their next call, the functions that it matters to, and no others. The switch of `llvm` is
that of `torch.backends.python_native.straightline`, where importing this module enters us.
"""

from __future__ import annotations

import difflib
import functools
import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.backends import flags_frozen

from straightline import switches
from straightline.errors import OptionError
from straightline.torch_private import python_native

DISPATCH_KEYS = ("CPU",)
"""The dispatch keys of tensors that kernels are compiled for."""


class Backend:
    """Something that computes operations."""

    name: str

    @property
    def available(self) -> bool:
        """Whether it works on this machine."""
        return self.version is not None

    @property
    def version(self) -> str | None:
        """Its version; None where it does not work."""
        raise NotImplementedError

    @property
    def enabled(self) -> bool:
        """Whether it is switched on."""
        return self._is_on()

    @enabled.setter
    def enabled(self, value: bool) -> None:
        if flags_frozen():
            raise RuntimeError(
                f"not allowed to set {self.name} backend flags after disable_global_flags; "
                "please use disabled() instead"
            )
        if value:
            self.enable()
        else:
            self.disable()

    def _is_on(self) -> bool:
        raise NotImplementedError

    def disable(self) -> None:
        """Switch it off."""
        raise NotImplementedError

    def enable(self) -> None:
        """Switch it on."""
        raise NotImplementedError

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Switch it off inside of a `with` block."""
        before = self.enabled
        self.disable()
        try:
            yield
        finally:
            if before:
                self.enable()

    def __repr__(self) -> str:
        status = "available" if self.available else "unavailable"
        return f"Backend({self.name}, {status}, {'enabled' if self.enabled else 'disabled'})"


class _Llvm(Backend):
    name = "llvm"

    @functools.cached_property
    def version(self) -> str | None:
        try:
            host = importlib.import_module("straightline.codegen.llvm.host")
            host.host()
        except (ImportError, OSError, RuntimeError):
            return None
        return str(host.version())

    def _is_on(self) -> bool:
        return python_native.is_on()

    def disable(self) -> None:
        python_native.switch(on=False)

    def enable(self) -> None:
        python_native.switch(on=True)


class _Aten(Backend):
    name = "aten"

    @property
    def version(self) -> str | None:
        return str(torch.__version__)

    def _is_on(self) -> bool:
        return True

    def disable(self) -> None:
        raise OptionError(
            "the backend 'aten' cannot be disabled: it runs what no other backend does",
            todo="`straightline.backends.llvm` is the one that can be",
        )

    def enable(self) -> None:
        """It is always on."""


llvm = _Llvm()
aten = _Aten()
_BACKENDS: Mapping[str, Backend] = {each.name: each for each in (llvm, aten)}

all_backends: list[str] = list(_BACKENDS)
"""The names of all backends."""


def __getattr__(name: str) -> Any:
    if name == "available_backends":
        return [each.name for each in _BACKENDS.values() if each.available]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), "available_backends"})


def get_backend_operations(backend: str) -> list[str]:
    """The names of the operations that a backend computes, sorted; `.default` is left out.

    Of `llvm` those that kernels can do, depending on their arguments; of `aten` all of torch's.
    """
    _known([backend], all_backends, "backend")
    if backend == "llvm":
        return sorted(map(_short, _lowered()))
    from straightline.torch_private import operations

    return sorted(operations.all_of_aten())


def disable_operations(*operations: str) -> None:
    """Have these operations run as ATen. `add` names all overloads of it, `add.Tensor` one."""
    switches.turn(switches.NAMES, _overloads(operations), on=False)


def enable_operations(*operations: str) -> None:
    """Take `disable_operations` back."""
    switches.turn(switches.NAMES, _overloads(operations), on=True)


@contextmanager
def operations_disabled(*operations: str) -> Iterator[None]:
    """Have these operations run as ATen inside of a `with` block."""
    turned = set(_overloads(operations)) - switches.NAMES
    switches.turn(switches.NAMES, turned, on=False)
    try:
        yield
    finally:
        switches.turn(switches.NAMES, turned, on=True)


def disable_dispatch_keys(*dispatch_keys: str) -> None:
    """Have all operations on tensors of these dispatch keys run as ATen."""
    _known(dispatch_keys, DISPATCH_KEYS, "dispatch key")
    switches.turn(switches.KEYS, dispatch_keys, on=False)


def enable_dispatch_keys(*dispatch_keys: str) -> None:
    """Take `disable_dispatch_keys` back."""
    _known(dispatch_keys, DISPATCH_KEYS, "dispatch key")
    switches.turn(switches.KEYS, dispatch_keys, on=True)


def is_operation_disabled(operation: str) -> bool:
    """Whether all overloads that this names are switched off."""
    return switches.NAMES.issuperset(_overloads([operation]))


def is_backend_disabled(backend: str) -> bool:
    """Whether a backend is switched off."""
    _known([backend], all_backends, "backend")
    return not _BACKENDS[backend].enabled


def _lowered() -> set[str]:
    """The overloads that have rules, as `aten.add.Tensor`."""
    from straightline.lower.rules import RULES, VIEWS

    return {*RULES, *VIEWS}


def _short(overload: str) -> str:
    return overload.removeprefix("aten.").removesuffix(".default")


def _overloads(names: Iterable[str]) -> list[str]:
    """The overloads that these names stand for."""
    found: dict[str, list[str]] = {}
    for overload in _lowered():
        packet, _, _ = _short(overload).partition(".")
        for name in {packet, _short(overload), overload.removeprefix("aten.")}:
            found.setdefault(name, []).append(overload)
    plain = [name.replace("::", ".").removeprefix("aten.") for name in names]
    _known(plain, sorted({*map(_short, _lowered()), *found}), "operation")
    return [overload for name in plain for overload in found[name]]


def _known(names: Iterable[str], known: Sequence[str], kind: str) -> None:
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise OptionError(
                f"unknown {kind} {name!r}{hint}", todo=f"the {kind}s are {', '.join(known)}"
            )


python_native.enter(lambda: llvm.version)
