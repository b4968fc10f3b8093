"""What a call leaves behind: nothing. What a builtin keeps alive: its code, and no longer."""

import ctypes
import gc
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

import pytest
import torch
from ir_kernels import ADD, add_builtin, buffer, count_builtin, kernel, loop
from meeting import HEAVY

from straightline.ir.dtypes import i64
from straightline.ir.index import Size
from straightline.launch.descriptor import Work
from straightline.launch.launcher import Launch, kernel_builtin
from straightline.launch.machine_code import address_of, method


def blocks_after(call, times):
    """How many more blocks of Python's memory there are after so many calls."""
    for _ in range(20):
        call()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(times):
        call()
    gc.collect()
    return sys.getallocatedblocks() - before


def failing(call, *args):
    def run():
        try:
            call(*args)
        except (IndexError, RuntimeError, TypeError):
            return
        raise AssertionError

    return run


@pytest.mark.parametrize("way", ["runs", "copied", "refused", "failed", "count", "no integer"])
def test_calls_leave_nothing_behind(way):
    add, count = add_builtin(), count_builtin(Work())
    a, b, out = torch.randn(8), torch.randn(8), torch.zeros(8)
    counted = torch.zeros(300, dtype=torch.int64)
    strided = torch.randn(16)[::2]
    meta = torch.zeros(8, device="meta")
    calls = {
        "runs": (lambda: add(a, b, out), 10_000),
        "copied": (lambda: add(strided, b, out), 2_000),
        "refused": (failing(add, meta, b, out), 300),
        "failed": (failing(count, counted, 300, 299), 10_000),
        "count": (failing(add, a), 10_000),
        "no integer": (failing(count, counted, 300, None), 2_000),
    }
    call, times = calls[way]
    call()
    gc.collect()
    watched = (a, b, out, counted, strided, meta, None, add, count, 300, 299, 1299)
    before = [sys.getrefcount(each) for each in watched]
    assert blocks_after(call, times) < times / 2
    for each, counts in zip(watched, before, strict=True):
        assert abs(sys.getrefcount(each) - counts) < times / 2


def test_the_code_goes_with_the_builtin():
    made = kernel([buffer("a", (8,)), buffer("b", (8,)), buffer("out", (8,))], count=8)
    code = loop(3, ADD)
    alive = weakref.ref(code)
    first = kernel_builtin("k0", made, code, RuntimeError)
    second = kernel_builtin("k0", made, code, RuntimeError)
    gc.disable()
    try:
        a, b, out = torch.randn(8), torch.randn(8), torch.zeros(8)
        first(a, b, out)
        first(torch.randn(16)[::2], b, out)
        with pytest.raises(TypeError):
            second(None, b, out)
        del code, first
        assert alive() is not None
        second(a, b, out)
        assert torch.equal(out, a + b)
        del second
        assert alive() is None
    finally:
        gc.enable()


def test_a_builtin_that_deletes_itself():
    """Its own name is the last thing that holds it, and goes while it runs."""
    names: dict[str, Launch] = {}

    def failed(status):
        names.clear()
        return IndexError(status)

    names["launch"] = count_builtin(Work(), failed=failed)
    out = torch.zeros(10, dtype=torch.int64)
    with pytest.raises(IndexError, match="1003"):
        names["launch"](out, 10, 3)
    assert names == {}


class Unhappy(Exception):
    pass


def test_what_failed_raises_passes_through():
    def failed(status):
        raise Unhappy(status)

    launch = count_builtin(Work(), failed=failed)
    out = torch.zeros(10, dtype=torch.int64)
    for _ in range(3):
        with pytest.raises(Unhappy, match="1003"):
            launch(out, 10, 3)
        launch(out, 10, 10)


INTERRUPTED = """
  %o = getelementptr i64, ptr %p0, i64 %i
  store i64 1, ptr %o
  %is_ten = icmp eq i64 %i, 10
  br i1 %is_ten, label %ten, label %kept
ten:
  %pid = call i32 @getpid()
  %sent = call i32 @kill(i32 %pid, i32 2)
"""


@pytest.mark.parametrize("work", [0.0, HEAVY])
@pytest.mark.parametrize("threads", [1, 2])
def test_an_interrupt_in_the_midst_of_a_kernel(threads, work):
    """The kernel ends first; then Python raises; then all goes on."""
    n = Size("n")
    libc = ctypes.CDLL(None)
    outside = {name: address_of(libc[name]) for name in ("getpid", "kill")}
    code = loop(1, INTERRUPTED, "declare i32 @getpid()\ndeclare i32 @kill(i32, i32)\n", outside)
    made = kernel([buffer("out", (n,), dtype=i64)], (n,), n)
    launch = kernel_builtin("k", made, code, RuntimeError, Work(work))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for _ in range(20):
            out = torch.zeros(200, dtype=torch.int64)
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the signal comes when it does
                launch(out, 200)
                time.sleep(1)
            assert out.eq(1).all()
            few = torch.zeros(10, dtype=torch.int64)
            launch(few, 10)
            assert few.eq(1).all()
    finally:
        torch.set_num_threads(before)


ENDING = """
import sys, threading, time, torch
sys.path[:0] = {path!r}
from meeting import Meeting
torch.set_num_threads(2)
meet = Meeting()
assert len(meet(2)) == 2
def work():
    while True:
        meet(1)
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
print("ends")
"""


# torch's own functions end a daemon thread so that comes back to an interpreter that is gone.
TORCH_AT_THE_END = (-signal.SIGABRT, "ends\n", "terminate called without an active exception\n")


def test_a_process_ends_in_the_midst_of_jobs():
    program = ENDING.format(path=[str(Path(__file__).parent)])
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
        )
        end = (done.returncode, done.stdout, done.stderr)
        assert end in ((0, "ends\n", ""), TORCH_AT_THE_END)


def test_a_method_outlives_the_builtins_that_look_at_it():
    """The collector empties what a builtin in a cycle is bound to before the builtin goes."""
    first = method("again", 64)
    assert method("again", 64) is first
    before = ctypes.addressof(first)
    del first
    gc.collect()
    assert ctypes.addressof(method("again", 64)) == before
