"""Kernels called from Python on bare addresses: for tests and for looking at one kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

from straightline.codegen.llvm.jit import Program

_PROTOTYPE = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
)


def function(program: Program, name: str) -> Callable[..., int]:
    """The kernel as a function of addresses and sizes, and of the positions to run."""
    entry = _PROTOTYPE(program.address(name))

    def call(addresses: Sequence[int], sizes: Sequence[int] = (), lo: int = 0, hi: int = 0) -> int:
        buffers = (ctypes.c_void_p * len(addresses))(*addresses)
        numbers = (ctypes.c_int64 * len(sizes))(*sizes)
        status: int = entry(ctypes.addressof(buffers), ctypes.addressof(numbers), lo, hi)
        return status

    call.program = program  # type: ignore[attr-defined] # keeps the machine code
    return call
