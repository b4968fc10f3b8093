"""A kernel that tells who runs it: its positions wait for one another until enough threads have
come, so that it does not depend on luck whether they do.
"""

from __future__ import annotations

import ctypes

import torch
from ir_kernels import buffer, kernel, loop

from straightline.ir.dtypes import f32, i64
from straightline.ir.index import Size
from straightline.launch.descriptor import Work
from straightline.launch.launcher import kernel_builtin
from straightline.launch.machine_code import address_of

# Each position is estimated at so much that any two are worth two threads.
HEAVY = 1e6

_HEAD = """
declare i32 @usleep(i32)
declare i64 @pthread_self()
@come = global i64 0
@expected = global i64 0
"""

# Nobody is waited for longer than two seconds. Half of an input is taken, in case it is denormal.
_BODY = """
  %came = atomicrmw add ptr @come, i64 1 seq_cst
  br label %wait
wait:
  %turn = phi i64 [ 0, %body ], [ %later, %again ]
  %there = load atomic i64, ptr @come acquire, align 8
  %expected = load atomic i64, ptr @expected acquire, align 8
  %all = icmp sge i64 %there, %expected
  br i1 %all, label %go, label %look
look:
  %late = icmp sgt i64 %turn, 10000
  br i1 %late, label %give_up, label %again
again:
  %waited = call i32 @usleep(i32 200)
  %later = add i64 %turn, 1
  br label %wait
give_up:
  store atomic i64 0, ptr @expected release, align 8
  br label %go
go:
  %slept = call i32 @usleep(i32 100)
  %me = call i64 @pthread_self()
  %o = getelementptr i64, ptr %p0, i64 %i
  store i64 %me, ptr %o
  %a = getelementptr float, ptr %p1, i64 %i
  %x = load float, ptr %a
  %half = fmul float %x, 0.5
  store float %half, ptr %a
"""


class Meeting:
    """Call it to learn which threads ran the kernel, which waits for `threads` of them."""

    def __init__(self, work: Work | None = None) -> None:
        n = Size("n")
        buffers = [buffer("out", (n,), dtype=i64), buffer("x", (n,), dtype=f32)]
        made = kernel(buffers, (n,), n, outputs=frozenset({"out", "x"}))
        libc = ctypes.CDLL(None)
        outside = {name: address_of(libc[name]) for name in ("usleep", "pthread_self")}
        code = loop(2, _BODY, _HEAD, outside)
        self.come = ctypes.c_int64.from_address(code.address("come"))
        self.expected = ctypes.c_int64.from_address(code.address("expected"))
        self.launch = kernel_builtin("meet", made, code, RuntimeError, work or Work(HEAVY))

    def __call__(self, threads: int, x: torch.Tensor | None = None, count: int = 32) -> set[int]:
        self.come.value, self.expected.value = 0, threads
        out = torch.zeros(count, dtype=torch.int64)
        self.launch(out, torch.zeros(count) if x is None else x, count)
        return set(out.tolist())
