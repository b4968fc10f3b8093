"""What `straightline.compile` returns."""

from __future__ import annotations

import copy
import functools
import sys
import threading
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from straightline.errors import OptionError
from straightline.torch_private import owners

if TYPE_CHECKING:
    from straightline.kernels.record import CompiledKernel

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


def _wrappers(target: object) -> list[tuple[Any, type | None]]:
    """What `torch.compile` returned for `target`, and the class it is a method of, if any."""
    if isinstance(target, CompiledFunction | _CompiledModule):
        return [(wrapper, None) for wrapper in target._compiled]
    if owners.is_wrapper(target):
        return [(target, None)]
    if isinstance(target, types.MethodType | staticmethod | classmethod):
        return _wrappers(target.__func__)
    if isinstance(target, type):
        members = [value for base in target.__mro__ for value in vars(base).values()]
        wrapped = [value for value in members if not isinstance(value, type)]
        return [(w, target) for value in wrapped if _is_method(value) for w, _ in _wrappers(value)]
    if isinstance(target, torch.nn.Module):
        in_place = owners.compiled_in_place(target)
        if in_place is not None:
            return [(in_place, None)]
    if hasattr(target, "__wrapped__"):
        return _wrappers(target.__wrapped__)
    return [] if isinstance(target, types.FunctionType) else _wrappers(type(target))


def _is_method(value: object) -> bool:
    return isinstance(value, types.FunctionType | staticmethod | classmethod | CompiledFunction)


def _programs(target: object) -> list[tuple[str, Any]]:
    """(guards, program) of each graph compiled so far that can still be called, oldest first."""
    found = {
        call: (guards, call.__straightline__)
        for wrapper, owner in _wrappers(target)
        for guards, call in owners.programs(wrapper, owner)
    }
    return list(found.values())


def source(target: object) -> str:
    """The generated text for `target`, each program headed by the guards that select it."""
    parts = []
    for guards, program in _compiled_programs(target, "source"):
        heading = "\n".join(f"# when {line}" for line in guards.splitlines())
        parts.append(f"{heading}\n{program.source}" if heading else program.source)
    return "\n\n".join(parts)


def kernels(target: object) -> tuple[CompiledKernel, ...]:
    """The kernels of `target` that were compiled so far."""
    found = _compiled_programs(target, "kernels_of")
    return tuple(kernel for _, program in found for kernel in program.lower.kernels)


def explain(target: object) -> str:
    """The kernels of `target`, and the operations that run as ATen, each with its reason."""
    from straightline.report.explain import explain

    found = _compiled_programs(target, "explain")
    kept = [each for _, program in found for each in program.lower.kept]
    return explain(kernels(target), kept)


def _compiled_programs(target: object, function: str) -> list[tuple[str, Any]]:
    """The programs of what `straightline.<function>` was given, if we may have compiled it."""
    found = _wrappers(target)
    if not found:
        raise OptionError(
            f"straightline.{function} takes something that was compiled, not {target!r}",
            todo="pass what torch.compile or straightline.compile returned",
        )
    programs = _programs(target)
    others = {owners.backend_name(w) for w, _ in found if not _is_ours(w)}
    if others and not programs and len(others) == len(found):
        names = ", ".join(map(repr, sorted(others)))
        raise OptionError(
            f"{target!r} was compiled with the backend {names}, not with straightline",
            todo='compile it with straightline.compile or with backend="straightline"',
        )
    return programs


def _is_ours(wrapper: Any) -> bool:
    function = owners.backend_function(wrapper)
    return getattr(function, "__module__", None) == "straightline.api"


class _Seen:
    """What people can read about something compiled."""

    __slots__ = ()

    @property
    def source(self) -> str:
        """The text of every function generated so far, each with the guards that select it."""
        return source(self)

    @property
    def graphs(self) -> tuple[fx.GraphModule, ...]:
        """The graphs that functions were generated from: forward, then backward, per program."""
        return tuple(g for _, p in _programs(self) for g in p.graphs)

    @property
    def kernels(self) -> tuple[CompiledKernel, ...]:
        """The kernels that were compiled so far, in the order of the programs in `source`."""
        return kernels(self)

    @property
    def num_kernels(self) -> int:
        """How many kernels were compiled so far; operations that run as ATen are none."""
        return len(self.kernels)


class CompiledFunction(_Seen):
    """A compiled function, bound method or other callable."""

    def __init__(self, original: Callable[..., Any], compile_with_torch: Compile) -> None:
        functools.update_wrapper(self, original)
        self._original = original
        self._compile_with_torch = compile_with_torch
        self._straightline = compile_with_torch(original)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._straightline(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<straightline compiled {self._original!r}>"

    @property
    def _compiled(self) -> tuple[Any, ...]:
        return (self._straightline,)

    def __copy__(self) -> CompiledFunction:
        return self._copied(copy.copy(self._original))

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledFunction:
        return self._copied(copy.deepcopy(self._original, memo))

    def _copied(self, original: Callable[..., Any]) -> CompiledFunction:
        """A function is its own copy, and so is what was compiled of it."""
        if original is self._original:
            return self
        return CompiledFunction(original, self._compile_with_torch)

    def __reduce__(self) -> str:
        """As any function: by its name, where that leads to this object."""
        name = getattr(self, "__qualname__", "")
        found: Any = sys.modules.get(getattr(self, "__module__", None) or "")
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is not self:
            raise TypeError(
                f"{self!r} cannot be pickled: its programs belong to this process. Pickle the "
                "original, its __wrapped__, and compile it where it is loaded."
            )
        return str(name)


class _CompiledModule(_Seen):
    """Mixed into a module's own class for the twin that `module` makes."""

    __slots__ = ()

    _original: torch.nn.Module
    _compile_with_torch: Compile
    _straightline: Any
    _compiled_forward: tuple[Callable[..., Any], Callable[..., Any]] | None

    def __init_subclass__(cls, **keywords: Any) -> None:
        """A twin's class is none that the module's class should hear of."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Not the wrapper itself: it is a module too, and would run hooks for all modules once more.
        return self._straightline.forward(*args, **kwargs)

    @property
    def _compiled(self) -> tuple[Any, ...]:
        direct = self._compiled_forward
        return (self._straightline,) if direct is None else (self._straightline, direct[1])

    def __copy__(self) -> torch.nn.Module:
        return module(copy.copy(self._original), self._compile_with_torch)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.nn.Module:
        return module(copy.deepcopy(self._original, memo), self._compile_with_torch)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _the_original, (self._original,)


def _the_original(original: torch.nn.Module) -> torch.nn.Module:
    """What a pickled twin is restored as."""
    return original


class _Forward:
    """A twin's `forward`: the original's, compiled. Like any `forward` it runs no hooks."""

    def __init__(self, cls: type[torch.nn.Module]) -> None:
        self._cls: Any = cls

    def __get__(self, twin: Any, owner: type | None = None) -> Any:
        if twin is None:
            return self._cls.forward
        forward, known = twin._original.forward, twin._compiled_forward
        if known is None or known[0] != forward:
            known = forward, twin._compile_with_torch(forward)
            object.__setattr__(twin, "_compiled_forward", known)
        return known[1]

    def __set__(self, twin: Any, value: object) -> None:
        twin._original.forward = value

    def __delete__(self, twin: Any) -> None:
        del twin._original.forward


class _Slot:
    """What a class keeps outside its objects' dictionaries, read and written on the original."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, twin: Any, owner: type | None = None) -> Any:
        return self if twin is None else getattr(twin._original, self._name)

    def __set__(self, twin: Any, value: object) -> None:
        object.__setattr__(twin._original, self._name, value)

    def __delete__(self, twin: Any) -> None:
        object.__delattr__(twin._original, self._name)


_OWN_SLOTS = ("_original", "_compile_with_torch", "_straightline", "_compiled_forward")
_making = threading.Lock()


def _twin_class(cls: type[torch.nn.Module]) -> type[Any]:
    """The class of all twins of modules of `cls`; it lives as long as one of them does."""
    with _making:
        for known in type.__subclasses__(cls):
            if known.__bases__ == (_CompiledModule, cls):
                return known
        slots = {
            name: _Slot(name)
            for base in cls.__mro__
            for name, member in vars(base).items()
            if isinstance(member, types.MemberDescriptorType)
        }
        body = {
            **slots,
            "__slots__": _OWN_SLOTS,
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__,
            "forward": _Forward(cls),
        }
        return type(cls.__name__, (_CompiledModule, cls), body)


def module(original: torch.nn.Module, compile_with_torch: Compile) -> torch.nn.Module:
    """An object of a subclass of the module's class that shares its state and calls compiled code.

    Both have one `__dict__`, so that parameters, buffers, submodules, hooks and training mode are
    the same for both at any time. A copy is compiled too; a pickle is of the original.
    """
    if isinstance(original, _CompiledModule):
        original = original._original
    twin: torch.nn.Module = object.__new__(_twin_class(type(original)))
    object.__setattr__(twin, "__dict__", original.__dict__)
    object.__setattr__(twin, "_original", original)
    object.__setattr__(twin, "_compile_with_torch", compile_with_torch)
    object.__setattr__(twin, "_straightline", compile_with_torch(original))
    object.__setattr__(twin, "_compiled_forward", None)
    return twin
