"""How native code reads a tensor: by DLPack's C exchange API, a table of functions that torch
publishes, and by one question that DLPack does not answer.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from straightline.launch.machine_code import address_of


@dataclass(frozen=True)
class Reader:
    """Addresses of `int dltensor_from_py_object_no_sync(void *object, DLTensor *out)` and of
    `bool is_neg(const at::Tensor &)`, and how far behind a Python tensor its at::Tensor lies.
    """

    dltensor_from_py_object: int
    is_negated: int
    handle: int


class _ExchangeHeader(ctypes.Structure):
    """DLPackExchangeAPIHeader of dlpack.h."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
    )


class _Exchange(ctypes.Structure):
    """DLPackExchangeAPI of dlpack.h, version 1."""

    _fields_ = (
        ("header", _ExchangeHeader),
        ("allocate", ctypes.c_void_p),
        ("from_py_object", ctypes.c_void_p),
        ("to_py_object", ctypes.c_void_p),
        ("dltensor_from_py_object", ctypes.c_void_p),
        ("current_work_stream", ctypes.c_void_p),
    )


@functools.cache
def reader() -> Reader | None:
    """None where torch publishes no table of a known version, or its tensors are made otherwise."""
    exchange, is_negated = _dltensor_from_py_object(), torch_function(_IS_NEG)
    if exchange is None or is_negated is None:
        return None
    handle = _handle_offset()
    if handle is None or not _tells_negated(is_negated, handle):
        return None
    return Reader(exchange, address_of(is_negated), handle)


def torch_function(name: str) -> Any:
    """A function of libtorch_cpu by its linker name, or None."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        return ctypes.CDLL(str(library))[name]
    except (OSError, AttributeError):
        return None


_IS_NEG = "_ZN2at6native6is_negERKNS_6TensorE"


def _dltensor_from_py_object() -> int | None:
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return None
    get_pointer: Any = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype = ctypes.c_void_p
    get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
    at: int | None = get_pointer(capsule, b"dlpack_exchange_api")
    while at is not None:
        header = _ExchangeHeader.from_address(at)
        if header.major == 1:
            found: int | None = _Exchange.from_address(at).dltensor_from_py_object
            return found
        at = header.previous
    return None


def _handle_offset() -> int | None:
    """Where in a Python tensor the address of its TensorImpl stands: that is an at::Tensor."""
    samples = [torch.empty(3), torch.nn.Parameter(torch.empty(2)), torch.empty(1).view(1, 1)]
    words = range(object.__basicsize__, torch.Tensor.__basicsize__, 8)
    found = [
        offset
        for offset in words
        if all(ctypes.c_size_t.from_address(id(t) + offset).value == t._cdata for t in samples)
    ]
    return found[0] if len(found) == 1 else None


def _tells_negated(is_negated: Any, handle: int) -> bool:
    is_negated.restype, is_negated.argtypes = ctypes.c_bool, (ctypes.c_void_p,)
    whole = torch.zeros(2, dtype=torch.complex64)
    told = [is_negated(id(t) + handle) for t in (whole.imag, whole, whole.conj().imag)]
    return told == [False, False, True]
