"""A forked child starts a pool of its own, whatever the parent's was doing."""

import os
import signal
import threading
import time

import pytest
import torch
from ir_kernels import count_builtin
from meeting import HEAVY, Meeting

from straightline.launch.descriptor import Work


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def in_child(work) -> int:
    """The exit status of a child that runs `work`: 0, if it says True within ten seconds."""
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        status = 1
        try:
            status = 0 if work() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_child_has_helpers_of_its_own():
    meet = Meeting()

    def by_two():
        return len(meet(2)) == 2

    assert by_two()
    assert in_child(by_two) == 0
    assert in_child(lambda: in_child(by_two) == 0 and by_two()) == 0
    assert by_two()


def test_forks_in_the_midst_of_jobs():
    launch, meet = count_builtin(Work(HEAVY)), Meeting()
    stop = threading.Event()
    done = []

    def call():
        out = torch.zeros(20_000, dtype=torch.int64)
        calls = 0
        while not stop.is_set():
            launch(out, 20_000, 20_000)
            calls += 1
        done.append(bool(out.eq(calls).all()))

    def right():
        out = torch.zeros(20_000, dtype=torch.int64)
        for _ in range(20):
            launch(out, 20_000, 20_000)
        return bool(out.eq(20).all()) and len(meet(2)) == 2

    callers = [threading.Thread(target=call) for _ in range(2)]
    for caller in callers:
        caller.start()
    try:
        statuses = []
        for _ in range(20):
            statuses.append(in_child(right))
            time.sleep(0.001)
    finally:
        stop.set()
        for caller in callers:
            caller.join()
    assert statuses == [0] * 20
    assert done == [True, True]


class Counted(torch.utils.data.Dataset[torch.Tensor]):
    """Each item is made by a kernel, in a worker."""

    def __init__(self):
        self.launch = count_builtin(Work(HEAVY))

    def __len__(self):
        return 16

    def __getitem__(self, item):
        torch.set_num_threads(1 + item % 3)
        out = torch.zeros(1000, dtype=torch.int64)
        for _ in range(item):
            self.launch(out, 1000, 1000)
        return out


def test_workers_of_a_data_loader():
    items = Counted()
    assert items[5].eq(5).all()
    loader = torch.utils.data.DataLoader(
        items, batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    for number, out in enumerate(loader):
        assert out.eq(number).all()
