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
import threading
from collections.abc import Callable
from typing import Literal, NoReturn, Protocol

import torch

from straightline.ir.nodes import Kernel
from straightline.launch.arguments import settle
from straightline.launch.descriptor import Description, Work, describe, words
from straightline.launch.machine_code import (
    Bound,
    Code,
    Method,
    address_of,
    assemble,
    builtin,
    make_immortal,
    method,
    text_of,
)
from straightline.launch.pool import pool
from straightline.launch.reading import Reader, reader, torch_function
from straightline.torch_private.allocation import is_fake

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
    return "public" if reader() is None else "dlpack"


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
    """Where native code cannot: when arguments are not as expected, or cannot be read there.

    Where all tensors are fake there is nothing to compute.
    """
    count = len(bound.description.tensors)
    if len(args) >= count and all(map(is_fake, args[:count])):
        return
    tensors, integers = settle(bound.description, args)
    launch = builtin(bound.by_addresses, bound)
    launch(*(tensor.data_ptr() for tensor in tensors), *integers)


def _raise_failure(bound: _Kernel, status: int) -> NoReturn:
    raise bound.failed(status)


_compiled: Code | None = None
_compiling = threading.Lock()


def _native() -> Code:
    """The launcher, once per process."""
    global _compiled
    with _compiling:
        if _compiled is None:
            _compiled = _compile()
    return _compiled


def _compile() -> Code:
    outside = {name: address_of(getattr(ctypes.pythonapi, name)) for name in _PYTHON}
    get_num_threads = torch_function("_ZN2at15get_num_threadsEv")
    if get_num_threads is None:
        get_num_threads = ctypes.CFUNCTYPE(ctypes.c_int)(torch.get_num_threads)
    outside["threads"] = address_of(get_num_threads)
    read = reader() or Reader(0, 0, 0)
    outside["dltensor_from_py_object"] = read.dltensor_from_py_object
    outside["is_negated"] = read.is_negated
    code = assemble(text_of("launcher"), outside)
    ctypes.c_size_t.from_address(code.address("handle")).value = read.handle
    objects = (None, _settle_and_launch, _raise_failure, _make_pool)
    table = (ctypes.c_void_p * len(objects)).from_address(code.address("objects"))
    table[:] = [id(each) for each in objects]
    for each in (get_num_threads, *objects):
        make_immortal(each)
    return code


def _make_pool() -> None:
    """What the launcher calls when work is to be shared for the first time."""
    at = _native().address("pool")
    ctypes.c_size_t.from_address(at).value = pool().address("parallel")
