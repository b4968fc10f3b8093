"""Compiling and calling from several threads, and calling from a forked process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from oracle import BACKEND
from torch import Tensor

THREADS = 8


def run_in_threads(work: Callable[[int], Any]) -> list[Any]:
    """Start all threads at one moment; the first error of any of them is raised."""
    barrier = threading.Barrier(THREADS)

    def start(index: int) -> Any:
        barrier.wait(timeout=60)
        return work(index)

    with ThreadPoolExecutor(THREADS) as pool:
        return [
            future.result(timeout=120) for future in [pool.submit(start, i) for i in range(THREADS)]
        ]


def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = (x @ w).sin()
    return y * x, y.t()


def grads_of(side: Callable[..., Any], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 3, generator=generator).requires_grad_()
    w = torch.randn(3, 3, generator=generator).requires_grad_()
    a, b = side(x, w)
    (a.sum() + b.cos().sum()).backward()
    assert x.grad is not None
    assert w.grad is not None
    return [a.detach(), b.detach(), x.grad, w.grad]


def assert_close(left: list[Tensor], right: list[Tensor]) -> None:
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b)


def test_one_function_compiled_by_many_threads() -> None:
    compiled = torch.compile(fn, backend=BACKEND, fullgraph=True)
    results = run_in_threads(lambda i: [grads_of(compiled, 10 * i + k) for k in range(5)])
    for i, runs in enumerate(results):
        for k, run in enumerate(runs):
            assert_close(run, grads_of(fn, 10 * i + k))


def test_many_functions_compiled_at_once() -> None:
    def work(index: int) -> list[Tensor]:
        def own(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
            y = (x @ w) * (index + 1)
            return y.sin(), (y + index).t()

        compiled = torch.compile(own, backend=BACKEND, fullgraph=True)
        results = grads_of(compiled, index)
        assert_close(results, grads_of(own, index))
        return results

    assert len(run_in_threads(work)) == THREADS


def test_backwards_of_one_program_compiled_lazily_by_many_threads() -> None:
    """All forwards run first, so that every thread finds the backward not compiled yet."""
    compiled = torch.compile(fn, backend=BACKEND, fullgraph=True)
    inputs = [
        (torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True))
        for _ in range(THREADS)
    ]
    outs = [compiled(*pair) for pair in inputs]
    run_in_threads(lambda i: outs[i][0].sum().backward())
    for x, w in inputs:
        x2, w2 = x.detach().requires_grad_(), w.detach().requires_grad_()
        fn(x2, w2)[0].sum().backward()
        torch.testing.assert_close(x.grad, x2.grad)
        torch.testing.assert_close(w.grad, w2.grad)


def test_forward_in_one_thread_backward_in_another() -> None:
    compiled = torch.compile(fn, backend=BACKEND, fullgraph=True)
    x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    with ThreadPoolExecutor(1) as pool:
        a, b = pool.submit(compiled, x, w).result(timeout=60)
    with ThreadPoolExecutor(1) as pool:
        pool.submit((a.sum() + b.sum()).backward).result(timeout=60)
    x2, w2 = x.detach().requires_grad_(), w.detach().requires_grad_()
    a2, b2 = fn(x2, w2)
    (a2.sum() + b2.sum()).backward()
    torch.testing.assert_close(x.grad, x2.grad)
    torch.testing.assert_close(w.grad, w2.grad)


def test_grad_mode_is_each_threads_own() -> None:
    def switches(x: Tensor) -> Tensor:
        y = x * 2
        with torch.no_grad():
            z = y.sin()
        return y * z

    compiled = torch.compile(switches, backend=BACKEND, fullgraph=True)

    def work(index: int) -> bool:
        enabled = index % 2 == 0
        with torch.set_grad_enabled(enabled):
            for _ in range(20):
                out = compiled(torch.ones(3, requires_grad=True))
                assert out.requires_grad is enabled
                assert torch.is_grad_enabled() is enabled
        return True

    assert all(run_in_threads(work))


def test_many_sizes_from_many_threads() -> None:
    compiled = torch.compile(lambda x: (x * 2).sin().sum(0), backend=BACKEND)

    def work(index: int) -> bool:
        for size in range(2, 6):
            x = torch.randn(size + index, 3)
            torch.testing.assert_close(compiled(x), (x * 2).sin().sum(0))
        return True

    assert all(run_in_threads(work))


def test_mutations_of_different_inputs_do_not_mix() -> None:
    def step(state: Tensor, x: Tensor) -> Tensor:
        state.add_(x)
        return state.view(-1)

    compiled = torch.compile(step, backend=BACKEND, fullgraph=True)

    def work(index: int) -> Tensor:
        state = torch.zeros(3)
        for _ in range(50):
            out = compiled(state, torch.full((3,), float(index)))
            assert out._base is state
        return state

    for index, state in enumerate(run_in_threads(work)):
        assert torch.equal(state, torch.full((3,), 50.0 * index))


def test_random_masks_under_threads() -> None:
    """Each backward must use the mask of its own forward."""
    compiled = torch.compile(
        lambda x: torch.nn.functional.dropout(x, 0.5), backend=BACKEND, fullgraph=True
    )

    def work(index: int) -> bool:
        for _ in range(10):
            x = torch.ones(32, requires_grad=True)
            out = compiled(x)
            (gradient,) = torch.autograd.grad(out.sum(), x)
            assert torch.equal(gradient, out.detach())
        return True

    assert all(run_in_threads(work))


def in_child(work: Callable[[], None]) -> int:
    """Run in a forked process; its exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fork_after_compile() -> None:
    """The child calls what is compiled and compiles anew; the parent goes on undisturbed."""
    compiled = torch.compile(fn, backend=BACKEND)
    x, w = torch.randn(3, 3), torch.randn(3, 3)
    expected = fn(x, w)
    compiled(x, w)

    def work() -> None:
        torch.testing.assert_close(compiled(x, w), expected)
        other = torch.randn(5, 3)
        fresh = torch.compile(lambda t: t.sin() + 1, backend=BACKEND)
        torch.testing.assert_close(fresh(other), other.sin() + 1)

    assert in_child(work) == 0
    torch.testing.assert_close(compiled(x, w), expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_backward_in_child_after_fork() -> None:
    """Autograd engines do not survive a fork when they had run, so the forward comes first."""
    compiled = torch.compile(fn, backend=BACKEND)
    x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    a, _ = compiled(x, w)

    def work() -> None:
        a.sum().backward()
        assert x.grad is not None

    assert in_child(work) == 0
