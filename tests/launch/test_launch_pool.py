"""Large kernels run on several threads: every position once, with one result, whoever runs it."""

import ctypes
import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_kernels import buffer, count_builtin, kernel, loop
from meeting import HEAVY, Meeting

from straightline.ir.dtypes import i64
from straightline.ir.index import Size, index
from straightline.ir.nodes import How
from straightline.launch.descriptor import Work
from straightline.launch.launcher import kernel_builtin
from straightline.launch.machine_code import address_of
from straightline.launch.pool import compile_pool, pool


@pytest.fixture(autouse=True)
def threads():
    """Restores the number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@given(
    count=st.integers(0, 5000),
    grain=st.sampled_from([1, 2, 7, 64, 500, 10_000]),
    threads=st.integers(1, 6),
    how=st.sampled_from([How.PARALLEL, How.VECTOR]),
)
@settings(max_examples=300, deadline=None)
def test_every_position_runs_once(count, grain, threads, how):
    launch = COUNTS[how, grain]
    torch.set_num_threads(threads)
    out = torch.zeros(count, dtype=torch.int64)
    launch(out, count, count)
    assert out.eq(1).all()


COUNTS = {
    (how, grain): count_builtin(Work(HEAVY, grain=grain), how)
    for how in (How.PARALLEL, How.VECTOR)
    for grain in (1, 2, 7, 64, 500, 10_000)
}

LOWS = """
  %o = getelementptr i64, ptr %p0, i64 %i
  store i64 %low, ptr %o
"""


@pytest.mark.parametrize("grain", [1, 100])
@pytest.mark.parametrize(("how", "step"), [(How.PARALLEL, 1), (How.VECTOR, 64)])
def test_chunks(how, step, grain):
    n = Size("n")
    made = kernel([buffer("out", (n,), dtype=i64)], (n,), n, how)
    launch = kernel_builtin("k", made, loop(1, LOWS), RuntimeError, Work(HEAVY, grain=grain))
    for threads in (2, 3, 5):
        torch.set_num_threads(threads)
        for count in (1, 63, 64, 65, 129, 1000, 4096, 10_007):
            out = torch.empty(count, dtype=torch.int64)
            launch(out, count)
            lows = out.unique().tolist()
            assert all(low % step == 0 for low in lows)
            assert len(lows) <= 4 * threads
            ends = [*lows[1:], count]
            sizes = [end - low for low, end in zip(lows, ends, strict=True)]
            assert all(size >= grain for size in sizes[:-1])
            assert len(set(sizes[:-1])) <= 1
            if count > max(grain, step):
                assert len(lows) > 1


@pytest.fixture(scope="module")
def meet():
    return Meeting()


def test_it_follows_the_number_of_threads(meet):
    me = threading.get_ident()
    seen = {}
    for threads in (1, 2, 4, 2, 1, 3):
        torch.set_num_threads(threads)
        seen[threads] = meet(threads)
        assert me in seen[threads]
        assert len(seen[threads]) == threads
    assert seen[2] < seen[4]
    assert seen[3] < seen[4]


@pytest.fixture
def awake(meet):
    """Helpers that do not go to sleep."""
    patience = ctypes.c_int64.from_address(pool().address("patience"))
    usual, patience.value = patience.value, 10**9
    torch.set_num_threads(4)
    assert len(meet(4)) == 4
    yield
    patience.value = usual


@pytest.mark.parametrize(
    ("nanoseconds", "threads"), [(0, 1), (3_000, 1), (4_200, 2), (6_500, 3), (9_000, 4)]
)
def test_a_thread_gets_two_microseconds_at_least(awake, nanoseconds, threads):
    assert len(Meeting(Work(nanoseconds / 32))(threads)) == threads


def test_sleeping_helpers_are_woken_for_much_work_alone(meet):
    torch.set_num_threads(4)
    assert len(meet(4)) == 4
    ctypes.c_int64.from_address(pool().address("waking")).value = 5_000
    time.sleep(0.05)
    assert len(Meeting(Work(12_000 / 32))(1)) == 1
    assert len(Meeting(Work(90_000 / 32))(4)) == 4


def test_the_estimate_may_depend_on_sizes(awake):
    ask = Meeting(Work(100.0, index(Size("n"))))
    assert len(ask(1, count=5)) == 1
    assert len(ask(4, count=32)) == 4


@pytest.mark.parametrize("flush", [True, False])
def test_helpers_treat_denormals_as_the_caller_does(meet, flush):
    """And as they did before, when the next caller does otherwise."""
    halves = {}
    for now in (flush, not flush, flush):
        halves[now] = torch.full((32,), 1e-38)
        try:
            if not torch.set_flush_denormal(now):
                pytest.skip("not on this machine")
            torch.set_num_threads(3)
            assert len(meet(3, halves[now])) == 3
        finally:
            torch.set_flush_denormal(False)
    bits = {now: x.view(torch.int32).unique().tolist() for now, x in halves.items()}
    assert bits[True] == [0]
    assert len(bits[False]) == 1
    assert bits[False] != [0]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_status_is_that_of_the_lowest_position(threads):
    torch.set_num_threads(threads)
    launch = count_builtin(Work(HEAVY))
    out = torch.zeros(1000, dtype=torch.int64)
    for limit in (0, 1, 50, 499, 998, 999) * 20:
        out.zero_()
        with pytest.raises(IndexError, match=f"^{1000 + limit}$"):
            launch(out, 1000, limit)
        assert out[:limit].eq(1).all()
        assert out[limit:].eq(0).sum() >= 1
    out.zero_()
    launch(out, 1000, 1000)
    assert out.eq(1).all()


def test_results_are_the_same_bit_for_bit():
    from ir_kernels import add_builtin

    n = 100_003
    launch = add_builtin((n,), work=Work(HEAVY))
    a, b = torch.randn(n), torch.randn(n)
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        out = torch.empty(n)
        launch(a, b, out)
        assert torch.equal(out, a + b)


def test_several_callers_at_once():
    torch.set_num_threads(2)
    launch = count_builtin(Work(HEAVY))
    wrong = []

    def call():
        out = torch.zeros(500, dtype=torch.int64)
        for turn in range(300):
            limit = 500 if turn % 3 else 250
            out.zero_()
            try:
                launch(out, 500, limit)
                right = limit == 500 and bool(out.eq(1).all())
            except IndexError as error:
                right = limit == 250 and str(error) == "1250"
            if not right:
                wrong.append(turn)

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


def test_idle_helpers_sleep(meet):
    torch.set_num_threads(4)
    assert len(meet(4)) == 4
    time.sleep(0.02)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.05


def test_helpers_awake_or_asleep_take_part():
    """After pauses of every length: what is being looked for, what has just lain down, sleepers."""
    torch.set_num_threads(3)
    launch = count_builtin(Work(HEAVY))
    out = torch.zeros(64, dtype=torch.int64)
    pauses = [0.0, 1e-6, 5e-6, 8e-6, 1e-5, 1.2e-5, 2e-5, 1e-4]
    for turn in range(4000):
        until = time.perf_counter() + pauses[turn % len(pauses)]
        while time.perf_counter() < until:
            pass
        launch(out, 64, 64)
    assert out.eq(4000).all()


PARALLEL = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 5
)


@pytest.mark.parametrize("says", [0, 11], ids=["a helper that never comes", "no more threads"])
def test_a_helper_that_has_claimed_nothing_is_not_waited_for(says):
    create = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(lambda *_: says)
    detach = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda _: 0)
    other = compile_pool(pthread_create=address_of(create), pthread_detach=address_of(detach))
    code = loop(1, LOWS)
    out = torch.full((100,), -1)
    data = (ctypes.c_void_p * 1)(out.data_ptr())
    parallel = PARALLEL(other.address("parallel"))
    for _ in range(3):
        assert parallel(code.address("k"), ctypes.addressof(data), 0, 100, 10, 10, 4, 10**9) == 0
        assert out.unique().tolist() == list(range(0, 100, 10))
        out.fill_(-1)


def test_other_python_threads_run_beside_a_long_kernel():
    torch.set_num_threads(1)
    meet = Meeting()
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    ticker = threading.Thread(target=tick)
    ticker.start()
    try:
        start = time.perf_counter()
        meet(1, count=300)
        end = time.perf_counter()
    finally:
        stop.set()
        ticker.join()
    assert sum(start < each < end for each in ticks) >= 10
