"""What is switched off, and which programs were compiled under which switches.

A switch counts when a program is compiled. One that is turned later makes Dynamo forget the
programs that it matters to, so that their next call compiles anew. The switch of all kernels is
torch's (`torch.backends.python_native.straightline`), which Dynamo itself looks at in each call.
"""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Iterable

NAMES: set[str] = set()
"""Overloads of operations that are switched off, as `aten.add.Tensor`."""

KEYS: set[str] = set()
"""Dispatch keys that are switched off."""


class Consulted:
    """The switches as one program has them: each as it was when it first mattered."""

    def __init__(self, *, kernels: bool, code: types.CodeType | None) -> None:
        self.kernels = kernels
        self._code = None if code is None else weakref.ref(code)
        self._found: dict[tuple[str, str], bool] = {}
        with _lock:
            _live.add(self)

    def off(self, name: str, key: str) -> bool:
        """Whether the operation of this name is switched off for tensors of this key."""
        return self._found.setdefault((name, key), _off(name, key))

    @property
    def stale(self) -> bool:
        """Whether some switch that mattered is another now."""
        return any(off is not _off(*which) for which, off in list(self._found.items()))

    @property
    def code(self) -> types.CodeType | None:
        """The user's code that was compiled, if that is known and lives."""
        return None if self._code is None else self._code()


_live: weakref.WeakSet[Consulted] = weakref.WeakSet()
_lock = threading.Lock()


def turn(switches: set[str], which: Iterable[str], *, on: bool) -> None:
    """Turns some of `NAMES` or of `KEYS`."""
    if on:
        switches.difference_update(which)
    else:
        switches.update(which)
    with _lock:
        live = list(_live)
    stale = [code for each in live if each.stale and (code := each.code) is not None]
    if stale:
        from straightline.torch_private import dynamo

        dynamo.forget(stale)


def _off(name: str, key: str) -> bool:
    return name in NAMES or key in KEYS
