"""Kernels as Python builtins.

    k0_add_relu(x, w, out, s0, s1)

A builtin takes the tensors of the kernel's buffers in their order, then integers: the kernel's
sizes, then further facts of its `Description`. It checks every tensor, runs the machine code, large
work by several threads (see pool.ll), and returns None; or it raises what `failed` makes of the
status. All of this is one piece of native code, which reads the tensors through DLPack.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol

import torch

from straightline.ir.nodes import Kernel
from straightline.launch import dlpack
from straightline.launch.arguments import settle
from straightline.launch.descriptor import Description, Work, describe, words
from straightline.launch.machine_code import (
    Bound,
    Code,
    Method,
    address_of,
    assemble,
    builtin,
    method,
    text_of,
)

_PYTHON = (
    "PyBytes_AsString",
    "PyLong_AsLongLong",
    "PyLong_FromLongLong",
    "PyErr_Occurred",
    "PyErr_Clear",
    "Py_IncRef",
    "Py_DecRef",
    "PyObject_Vectorcall",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
)
_LIBC = (
    "pthread_create",
    "pthread_detach",
    "pthread_sigmask",
    "clock_gettime",
    "sched_yield",
    "syscall",
)

FREE = Work()

Launch = Callable[..., None]


class MachineCode(Protocol):
    """Compiled kernels, which live as long as this object."""

    def address(self, name: str, /) -> int: ...


class _Kernel(Bound):
    """What the builtins of a kernel are bound to."""

    code: MachineCode
    description: Description
    failed: Callable[[int], BaseException]
    by_tensors: Method
    by_addresses: Method


def tier() -> Literal["dlpack", "public"]:
    """How tensors are read: natively, or by torch's public methods."""
    return "public" if dlpack.reader() is None else "dlpack"


def kernel_builtin(
    name: str,
    kernel: Kernel,
    code: MachineCode,
    failed: Callable[[int], BaseException],
    work: Work = FREE,
) -> Launch:
    """The builtin of a kernel under this name; it keeps `code` alive, which has the machine code by
    the kernel's own.

    `describe(name, kernel, work).facts` are the integers that it is called with.
    """
    description = describe(name, kernel, work)
    bound = _Kernel(words(description, code.address(kernel.name)))
    bound.code, bound.description, bound.failed = code, description, failed
    native = _native()
    bound.by_tensors = method(name, native.address("launch"))
    bound.by_addresses = method(name, native.address("launch_addresses"))
    if tier() == "public":
        return functools.partial(_settle_and_launch, bound)
    launch: Launch = builtin(bound.by_tensors, bound)
    return launch


def _settle_and_launch(bound: _Kernel, *args: object) -> None:
    """Where native code cannot: when arguments are not as expected, or cannot be read there."""
    tensors, integers = settle(bound.description, args)
    launch = builtin(bound.by_addresses, bound)
    launch(*(tensor.data_ptr() for tensor in tensors), *integers)


def _raise_failure(bound: _Kernel, status: int) -> NoReturn:
    raise bound.failed(status)


_compiled: Code | None = None
_compiling = threading.Lock()


def _native() -> Code:
    """The launcher and its pool, once per process."""
    global _compiled
    with _compiling:
        if _compiled is None:
            _compiled = _compile()
    return _compiled


def _compile() -> Code:
    outside = {name: address_of(getattr(ctypes.pythonapi, name)) for name in _PYTHON}
    libc = ctypes.CDLL(None)
    outside |= {name: address_of(getattr(libc, name)) for name in _LIBC}
    get_num_threads = _thread_count()
    outside["threads"] = address_of(get_num_threads)
    outside["dltensor_from_py_object"] = dlpack.reader() or 0
    code = assemble(text_of("launcher", "pool", platform.machine()), outside)
    objects = (None, _settle_and_launch, _raise_failure)
    table = (ctypes.c_void_p * len(objects)).from_address(code.address("objects"))
    table[:] = [id(each) for each in objects]
    forget = ctypes.CFUNCTYPE(None)(code.address("forget"))
    os.register_at_fork(after_in_child=forget)
    # Helpers may be asleep in it for as long as the process lives.
    for immortal in (code, get_num_threads, *objects):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(immortal))
    return code


def _thread_count() -> Any:
    """`int threads()`: at::get_num_threads, or Python's name for it."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        return ctypes.CDLL(str(library))["_ZN2at15get_num_threadsEv"]
    except (OSError, AttributeError):
        return ctypes.CFUNCTYPE(ctypes.c_int)(torch.get_num_threads)
