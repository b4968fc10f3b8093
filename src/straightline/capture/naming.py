"""Names for what a program is passed, after the user's own."""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Iterable

from straightline.capture.origins import input_name, source_text

_UNUSABLE = frozenset(keyword.kwlist) | frozenset(dir(builtins)) | {"ctx", "grads", "args"}


def arguments(lifted: Iterable[str], sources: Iterable[str]) -> list[tuple[str, str]]:
    """(name, source) of each argument, lifted constants first; names are unique identifiers."""
    taken: set[str] = set()
    named = []
    for wanted, source in [
        *((input_name(n), n) for n in lifted),
        *((input_name(s), source_text(s)) for s in sources),
    ]:
        name, count = wanted, 1
        while name in taken or name in _UNUSABLE:
            name = f"{wanted}_{count}"
            count += 1
        taken.add(name)
        named.append((name, source))
    return named
