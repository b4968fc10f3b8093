"""Kernels as machine code in this process.

A `Program` is what is compiled at once. Equal kernels for equal targets are one program; it is
freed with its last user.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import llvmlite.binding as llvm

from straightline.codegen.llvm.emit import emit
from straightline.codegen.llvm.host import initialize
from straightline.codegen.target import Target
from straightline.ir.nodes import Kernel

# LLVM's effort in choosing instructions. 0 aborts the process on our vectors; what 3 adds to 2 does
# not show.
_EFFORT = 2

_lock = threading.Lock()
_programs: weakref.WeakValueDictionary[tuple[str, Target], Program] = weakref.WeakValueDictionary()


@dataclass(eq=False)
class Program:
    """The kernels of one module. `llvm` is their LLVM IR."""

    llvm: str
    target: Target
    _engine: Any = field(repr=False)

    def __post_init__(self) -> None:
        # Left to the garbage collector the context could go before the engine that needs it.
        weakref.finalize(self, self._engine.close).atexit = False

    def address(self, name: str) -> int:
        """Where the machine code of a kernel begins. It is there as long as the program."""
        address: int = self._engine.get_function_address(name)
        if not address:
            raise KeyError(name)
        return address

    def assembly(self) -> str:
        return assembly(self.llvm, self.target)

    def object(self) -> bytes:
        return object_code(self.llvm, self.target)


def compile_kernels(kernels: Sequence[Kernel], target: Target) -> Program:
    """Machine code of kernels for the machine we run on."""
    return compile_text(emit(kernels, target), target)


def compile_text(text: str, target: Target) -> Program:
    """Machine code of a module of LLVM IR."""
    with _lock:
        found = _programs.get((text, target))
    if found is not None:
        return found
    program = Program(text, target, _engine(text, target))
    with _lock:
        return _programs.setdefault((text, target), program)


def _engine(text: str, target: Target) -> Any:
    module = _module(text)
    engine = llvm.create_mcjit_compiler(module, _machine(target, jit=True))
    engine.finalize_object()
    return engine


def assembly(text: str, target: Target) -> str:
    """Assembly of a module, for any target."""
    result: str = _machine(target).emit_assembly(_module(text))
    return result


def object_code(text: str, target: Target) -> bytes:
    """The object file of a module, for any target."""
    result: bytes = _machine(target).emit_object(_module(text))
    return result


def _module(text: str) -> Any:
    initialize()
    return llvm.parse_assembly(text, llvm.create_context())


def _machine(target: Target, jit: bool = False) -> Any:
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu,
        features=target.features,
        opt=_EFFORT,
        reloc="pic",
        codemodel="small",
        jit=jit,
    )
