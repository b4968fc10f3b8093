"""LLVM text to machine code in this process, and Python builtins made of it."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

_FASTCALL = 0x80  # METH_FASTCALL of CPython's methodobject.h


class Code:
    """Machine code, which lives as long as this object. Its `address`es are those of functions
    and variables by name.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def address(self, name: str) -> int:
        found: int = self._engine.get_function_address(name)
        found = found or self._engine.get_global_value_address(name)
        if not found:
            raise KeyError(name)
        return found


@functools.cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def assemble(text: str, outside: Mapping[str, int] | None = None) -> Code:
    """Compiles LLVM text for this machine. `outside` are addresses of what it declares."""
    _initialize()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=2,
        jit=True,
    )
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    module.verify()
    # Only what is marked to be inlined is: an optimised launcher is not faster, and takes as long
    # again to compile.
    options = llvm.create_pipeline_tuning_options(speed_level=0)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, machine)
    for name, address in (outside or {}).items():
        engine.add_global_mapping(module.get_function(name), address)
    engine.finalize_object()
    return Code(engine)


def text_of(*names: str) -> str:
    """The LLVM text of files beside this one."""
    return "\n".join(Path(__file__).with_name(f"{name}.ll").read_text() for name in names)


def address_of(function: Any) -> int:
    """The address of a function that ctypes has found, or of a callback it has made."""
    found = ctypes.cast(function, ctypes.c_void_p).value
    if found is None:
        raise LookupError(function)
    return found


def make_immortal(thing: object) -> None:
    """Keeps an object for as long as the process lives, past the end of the interpreter."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


class Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


@functools.cache
def method(name: str, address: int) -> Method:
    """The method at this address: `PyObject *(PyObject *self, PyObject **args, Py_ssize_t)`.

    It is never freed: a builtin looks at it when it goes, and in a cycle the collector may have
    emptied by then whatever else could keep it.
    """
    made = Method(name.encode(), address, _FASTCALL, None)
    make_immortal(made)
    return made


class Bound(bytes):
    """What a builtin is bound to: words that its code reads. Its attributes live as long."""


def builtin(method: Method, bound: Bound) -> Any:
    """The method as a Python builtin whose `self` is `bound`."""
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return make(ctypes.addressof(method), bound, None)
