"""Memory for what kernels write."""

from __future__ import annotations

from torch._C._dynamo.guards import _empty_strided_cpu  # type: ignore[attr-defined] # no stub

empty_strided = _empty_strided_cpu
"""`empty_strided(size, stride, dtype)` of numbers, on the CPU: half of what `torch`'s own costs."""
