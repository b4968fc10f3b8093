"""DLPack's C exchange API: how native code reads a tensor, by a table of functions that torch
publishes.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch


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


def reader() -> int | None:
    """The address of `int dltensor_from_py_object_no_sync(void *object, DLTensor *out)`.

    None where torch publishes none of a version known here.
    """
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
