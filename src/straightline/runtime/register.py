"""Generated text becomes functions that tracebacks, `inspect` and debuggers can read."""

from __future__ import annotations

import itertools
import linecache
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from straightline.torch_private.tracing import never_trace

_counts: dict[str, itertools.count[int]] = {}


def file_name(title: str) -> str:
    """A readable name for a generated file, `<straightline:title>`, that no living one has."""
    name = f"<straightline:{title}>"
    while name in linecache.cache:
        name = f"<straightline:{title}#{next(_counts.setdefault(title, itertools.count(2)))}>"
    return name


def functions(
    file: str, text: str, namespace: Mapping[str, object]
) -> dict[str, Callable[..., Any]]:
    """Compile `text` and return the functions it defines.

    Its lines are in `linecache` under `file` for as long as one of their code objects lives. Dynamo
    never traces them, nor what they call.
    """
    module: dict[str, Any] = dict(namespace)
    module["__name__"] = "straightline"
    code = compile(text, file, "exec", dont_inherit=True)
    exec(code, module)
    defined: dict[str, types.FunctionType] = {
        name: value
        for name, value in module.items()
        if isinstance(value, types.FunctionType) and value.__code__.co_filename == file
    }
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    for function in defined.values():
        never_trace(function.__code__)
    first = next(iter(defined.values()))
    weakref.finalize(first.__code__, linecache.cache.pop, file, None).atexit = False
    return {**defined}
