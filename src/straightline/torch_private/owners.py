"""Which programs belong to something that was compiled, and under which guards Dynamo calls them.

A program belongs to what the `torch.compile` wrapper wraps that was being called when it was made:
functions that are called after a graph break have programs too. Dynamo lets all wrappers of one
function, or of modules of one class, share what it compiled, if their backends are equal; so it is
here.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo.eval_frame import (
    OptimizedModule,
    _TorchDynamoContext,
    innermost_backend,
    innermost_fn,
)
from torch._dynamo.external_utils import wrap_inline
from torch._guards import CompileContext, TracingContext


def _inner_codes(function: Any, name: str) -> tuple[types.CodeType, ...]:
    """Code of the functions of that name which `function` defines."""
    constants = function.__code__.co_consts
    return tuple(c for c in constants if isinstance(c, types.CodeType) and c.co_name == name)


# What `torch.compile` returns for a function, and the frame around what has none of its own.
_WRAPPERS = _inner_codes(_TorchDynamoContext.__call__, "compile_wrapper")
_INLINE = _inner_codes(wrap_inline, "inner")
# How a module's forward is reached.
_CALLS = frozenset({"forward", "__call__", "_call_impl", "_wrapped_call_impl"})


@dataclass(frozen=True)
class _Birth:
    """Where a program was made: for whom, by which backend, of which frame, in which run."""

    owner: weakref.ref[Any]
    backend: Any
    code: weakref.ref[types.CodeType]
    compile_id: str
    compilation: weakref.ref[CompileContext]


_births: weakref.WeakKeyDictionary[Callable[..., Any], _Birth] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def register(call: Callable[..., Any]) -> Callable[..., Any]:
    """Note for whom the program that is entered by `call` is being compiled."""
    called, tracing, compiling = _called(), TracingContext.try_get(), CompileContext.try_get()
    codes = tracing.traced_code if tracing is not None else None
    if called is None or compiling is None or not codes:
        return call
    birth = _Birth(
        weakref.ref(called[0]),
        called[1],
        weakref.ref(codes[0]),
        str(compiling.compile_id),
        weakref.ref(compiling),
    )
    with _lock:
        for other, earlier in list(_births.items()):
            # Numbers start anew when Dynamo is reset, and a program may live longer.
            same = earlier.code() is codes[0] and earlier.compile_id == birth.compile_id
            if same and earlier.compilation() is not compiling:
                del _births[other]
        _births[call] = birth
    return call


def called_name() -> str | None:
    """The name of what is being compiled, where the frame that Dynamo sees is torch's own."""
    owner, _ = _called() or (None, None)
    name = getattr(owner, "co_name", None) or getattr(owner, "__name__", None)
    return str(name) if name is not None else None


def is_inline(code: types.CodeType) -> bool:
    """The frame is the one that torch puts around what has none of its own."""
    return code in _INLINE


def is_wrapper(target: object) -> bool:
    """Whether `torch.compile` returned `target`."""
    return isinstance(target, OptimizedModule) or (
        isinstance(target, types.FunctionType) and target.__code__ in _WRAPPERS
    )


def compiled_in_place(module: torch.nn.Module) -> Any:
    """The wrapper that `module.compile()` has put into a module, or None."""
    return module._compiled_call_impl


def backend(wrapper: Any) -> Any:
    """The backend of what `torch.compile` returned, as Dynamo compares it."""
    context = wrapper.dynamo_ctx if isinstance(wrapper, OptimizedModule) else None
    if context is None:
        names = wrapper.__code__.co_freevars
        context = wrapper.__closure__[names.index("self")].cell_contents
    return _backend_of(context)


def _backend_of(context: Any) -> Any:
    return innermost_backend(context.callback) if callable(context.callback) else None


def backend_name(wrapper: Any) -> str:
    """The name of the backend of what `torch.compile` returned."""
    found = backend(wrapper)
    return str(getattr(found, "compiler_name", None) or getattr(found, "__name__", found))


def backend_function(wrapper: Any) -> Any:
    """The function that compiles graphs for what `torch.compile` returned."""
    found = backend(wrapper)
    return getattr(found, "compiler_fn", found)


def programs(wrapper: Any, owner: type | None = None) -> list[tuple[str, Any]]:
    """(guards, callable) of what was compiled for a wrapper and can still be called, oldest first.

    `owner` is the class that a wrapper was put into as a method, if it was.
    """
    wanted, of_backend = _owner(wrapper), backend(wrapper)
    if owner is not None and issubclass(owner, torch.nn.Module) and wrapper.__name__ in _CALLS:
        wanted = owner
    with _lock:
        births = list(_births.items())
    found = []
    for call, birth in births:
        code = birth.code()
        if code is None or birth.backend != of_backend or not _belongs(birth.owner(), wanted):
            continue
        for entry in _debug_get_cache_entry_list(code):
            same = str(entry.compile_id) == birth.compile_id
            if same and innermost_backend(entry.backend) == of_backend:
                found.append((_guard_text(entry.guard_manager), call))
    return found


def _belongs(owner: object, wanted: object) -> bool:
    if isinstance(owner, type) and isinstance(wanted, type):
        return issubclass(owner, wanted)
    return owner is wanted


def _called() -> tuple[Any, Any] | None:
    """The owner and the backend of the innermost `torch.compile` wrapper on the stack."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code in _WRAPPERS:
            function, arguments = frame.f_locals["fn"], frame.f_locals["args"]
            of_backend = _backend_of(frame.f_locals["self"])
            method = isinstance(function, types.FunctionType) and function.__name__ in _CALLS
            if method and arguments and isinstance(arguments[0], torch.nn.Module):
                return type(arguments[0]), of_backend
            return _owner(function), of_backend
        frame = frame.f_back
    return None


def _owner(target: Any) -> Any:
    """What compiled code is shared by: a function's code, a module's class, a builtin itself."""
    function: Any = innermost_fn(target)
    match function:
        case torch.nn.Module():
            return type(function)
        case types.MethodType(__self__=torch.nn.Module() as module, __name__=name) if (
            name in _CALLS
        ):
            return type(module)
        case types.MethodType():
            return _owner(function.__func__)
        case functools.partial():
            return _owner(function.func)
        case types.FunctionType() if is_inline(function.__code__):
            return _owner(function.__wrapped__)  # type: ignore[attr-defined]
        case types.FunctionType():
            return function.__code__
        case types.BuiltinFunctionType():
            return function
        case _:
            return type(function)


def _guard_text(manager: Any) -> str:
    parts: Iterable[object] = manager.verbose_code_parts or manager.code_parts or ()
    return "\n".join(str(p) for p in parts)
