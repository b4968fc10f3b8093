"""Kernels written by hand: the loop IR as the launcher sees it, and machine code for it."""

from __future__ import annotations

from collections.abc import Mapping

from straightline.ir.dtypes import DType, f32, i64
from straightline.ir.index import ONE, Axis, Index, Indexlike, Size, index, mul
from straightline.ir.nodes import Buffer, How, Kernel, Loop, Statement
from straightline.launch.descriptor import Work
from straightline.launch.launcher import Launch, kernel_builtin
from straightline.launch.machine_code import Code, assemble


def packed(shape):
    """The strides of a tensor of this shape without gaps."""
    strides: list[Index] = []
    step = ONE
    for size in reversed(shape):
        strides.insert(0, step)
        step = mul(step, size)
    return tuple(strides)


def buffer(name: str, shape, strides=None, dtype: DType = f32) -> Buffer:
    shape = tuple(index(size) for size in shape)
    strides = packed(shape) if strides is None else tuple(index(stride) for stride in strides)
    return Buffer(name, dtype, shape, strides)


def kernel(
    buffers: list[Buffer],
    sizes: tuple[Size, ...] = (),
    count: Indexlike | None = None,
    how: How = How.PARALLEL,
    outputs: frozenset[str] = frozenset({"out"}),
) -> Kernel:
    """A kernel of these buffers; ranged, if there is a count. What it does, machine code says."""
    body: tuple[Statement, ...] = ()
    if count is not None:
        body = (Loop(Axis("i", index(count)), how, ()),)
    return Kernel("k", tuple(buffers), outputs, sizes, body)


_LOOP = """
define i64 @k(ptr %data, ptr %sizes, i64 %low, i64 %high) {{
entry:
{loads}
  br label %head
head:
  %i = phi i64 [ %low, %entry ], [ %next, %kept ]
  %more = icmp slt i64 %i, %high
  br i1 %more, label %body, label %end
body:
{body}
  br label %kept
kept:
  %next = add i64 %i, 1
  br label %head
end:
  ret i64 0
}}
"""


def loop(buffers: int, body: str, head: str = "", outside: Mapping[str, int] | None = None) -> Code:
    """A kernel whose positions run `body`, which has `%i`, `%sizes` and `%p0`, `%p1`, ..."""
    loads = "\n".join(
        f"  %at{n} = getelementptr ptr, ptr %data, i64 {n}\n  %p{n} = load ptr, ptr %at{n}"
        for n in range(buffers)
    )
    return assemble(head + _LOOP.format(loads=loads, body=body), outside)


ADD = """
  %a = getelementptr float, ptr %p0, i64 %i
  %x = load float, ptr %a
  %b = getelementptr float, ptr %p1, i64 %i
  %y = load float, ptr %b
  %sum = fadd float %x, %y
  %o = getelementptr float, ptr %p2, i64 %i
  store float %sum, ptr %o
"""

# out[i] += 1, and status 1000 + i instead where i is `sizes[1]` or above.
COUNT = """
  %limit_at = getelementptr i64, ptr %sizes, i64 1
  %limit = load i64, ptr %limit_at
  %bad = icmp sge i64 %i, %limit
  br i1 %bad, label %stop, label %go
stop:
  %code = add i64 %i, 1000
  ret i64 %code
go:
  %o = getelementptr i64, ptr %p0, i64 %i
  %old = load i64, ptr %o
  %new = add i64 %old, 1
  store i64 %new, ptr %o
"""


def add_builtin(shape=(8,), strides=None, work: Work | None = None) -> Launch:
    """a + b into out, all of this shape; those of `strides` are a's."""
    buffers = [buffer("a", shape, strides), buffer("b", shape), buffer("out", shape)]
    made = kernel(buffers, count=buffers[2].shape[0] if len(shape) == 1 else None)
    return kernel_builtin("k0_add", made, loop(3, ADD), RuntimeError, work or Work())


def count_builtin(work: Work, how: How = How.PARALLEL, failed=IndexError) -> Launch:
    """`count(out, n, limit)`: see COUNT."""
    n, limit = Size("n"), Size("limit")
    made = kernel([buffer("out", (n,), dtype=i64)], (n, limit), n, how)
    return kernel_builtin("k1_count", made, loop(1, COUNT), failed, work)
