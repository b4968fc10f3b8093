"""Objects of which there is one each: made once for a class and a key, and found again."""

from __future__ import annotations

import threading
import weakref
from typing import Any, TypeVar

N = TypeVar("N")


class _Reference(weakref.ref[Any]):
    """A weak reference to an interned object that knows where it is kept."""

    __slots__ = ("key",)
    key: tuple[Any, ...]


_table: dict[tuple[Any, ...], _Reference] = {}
# Taken again within itself: making an object may be when another one is found to be dead.
_lock = threading.RLock()


def _forget(reference: _Reference) -> None:
    with _lock:
        if _table.get(reference.key) is reference:
            del _table[reference.key]


def intern(cls: type[N], key: tuple[object, ...], fields: tuple[object, ...]) -> N:
    """The one object of this class and key, made with these fields if there is none yet.

    Interned objects are compared by identity.
    """
    place = (cls, key)
    reference = _table.get(place)
    found: N | None = None if reference is None else reference()
    if found is not None:
        return found
    node = object.__new__(cls)
    for name, value in zip(cls.__slots__, fields, strict=False):  # type: ignore[attr-defined]
        object.__setattr__(node, name, value)
    made = _Reference(node, _forget)
    made.key = place
    with _lock:
        reference = _table.get(place)
        # Another thread may have been here in between.
        other: N | None = None if reference is None else reference()
        if other is not None:
            return other
        _table[place] = made
    return node
