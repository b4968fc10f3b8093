"""What `straightline.compile` returns."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from straightline.errors import OptionError


def _programs(target: object) -> list[tuple[str, Any]]:
    """(guards, program) of each graph compiled so far, in the order in which Dynamo tries them."""
    from straightline.torch_private import dynamo

    return [
        (guards, program)
        for guards, function in dynamo.entries(target)
        if (program := getattr(function, "__straightline__", None)) is not None
    ]


def source(target: object) -> str:
    """The generated text for `target`, each program headed by the guards that select it."""
    inner = getattr(target, "_straightline", target)
    if not hasattr(inner, "_torchdynamo_orig_callable") and not hasattr(inner, "_orig_mod"):
        raise OptionError(
            f"straightline.source takes something that was compiled, not {target!r}",
            todo="pass what torch.compile or straightline.compile returned",
        )
    parts = []
    for guards, program in _programs(inner):
        heading = "\n".join(f"# when {line}" for line in guards.splitlines())
        parts.append(f"{heading}\n{program.source}" if heading else program.source)
    return "\n\n".join(parts)


class _Seen:
    """What people can read about something compiled."""

    __slots__ = ()

    _straightline: Callable[..., Any]

    @property
    def source(self) -> str:
        """The text of every function generated so far, each with the guards that select it."""
        return source(self._straightline)

    @property
    def graphs(self) -> tuple[fx.GraphModule, ...]:
        """The graphs that functions were generated from: forward, then backward, per program."""
        return tuple(g for _, p in _programs(self._straightline) for g in p.graphs)

    @property
    def num_kernels(self) -> int:
        """How many fused kernels run; graph operations are not kernels."""
        return 0


class CompiledFunction(_Seen):
    """A compiled function, bound method or other callable."""

    def __init__(self, original: Callable[..., Any], compiled: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)
        self._straightline = compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._straightline(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is None:
            return self
        return functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<straightline compiled {self.__wrapped__!r}>"  # type: ignore[attr-defined]

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self!r} cannot be pickled: its programs belong to this process. Pickle the "
            "original, its __wrapped__, and compile it where it is loaded."
        )


class _CompiledModule(_Seen):
    """Mixed into a module's own class for the twin that `module` makes."""

    __slots__ = ()

    _original: torch.nn.Module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._straightline(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _the_original, (self._original,)


def _the_original(original: torch.nn.Module) -> torch.nn.Module:
    """What a pickled or copied twin is restored as."""
    return original


_twin_classes: dict[type[torch.nn.Module], type[Any]] = {}


def _twin_class(cls: type[torch.nn.Module]) -> type[Any]:
    if cls not in _twin_classes:
        body = {"__slots__": ("_straightline", "_original"), "__module__": cls.__module__}
        _twin_classes.setdefault(cls, type(cls.__name__, (_CompiledModule, cls), body))
    return _twin_classes[cls]


def module(
    original: torch.nn.Module,
    compile_with_torch: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> torch.nn.Module:
    """An object of a subclass of the module's class that shares its state and calls compiled code.

    Both have one `__dict__`, so that parameters, buffers, submodules, hooks and training mode are
    the same for both at any time. Copies and pickles of it are of the original.
    """
    twin: torch.nn.Module = object.__new__(_twin_class(type(original)))
    object.__setattr__(twin, "__dict__", original.__dict__)
    object.__setattr__(twin, "_original", original)
    object.__setattr__(twin, "_straightline", compile_with_torch(original))
    return twin
