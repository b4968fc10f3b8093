"""Memory for what kernels write."""

from __future__ import annotations

from torch._C._dynamo.guards import _empty_strided_cpu  # type: ignore[attr-defined] # no stub
from torch._guards import TracingContext
from torch._subclasses import FakeTensor

empty_strided = _empty_strided_cpu
"""`empty_strided(size, stride, dtype)` of numbers, on the CPU: half of what `torch`'s own costs."""


def is_called_fake() -> bool:
    """Whether what is being compiled is called with fake tensors first, for its strides."""
    context = TracingContext.try_get()
    return context is not None and context.fakify_first_call


def is_fake(value: object) -> bool:
    return isinstance(value, FakeTensor)
