"""Compiling and calling from several threads, and calling from a forked process."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from oracle import BACKEND
from torch import Tensor

from straightline.runtime.rng import GeneratorStates
from straightline.torch_private import generators

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
    x = torch.randn(3, 3, generator=generator).double().requires_grad_()
    w = torch.randn(3, 3, generator=generator).double().requires_grad_()
    a, b = side(x, w)
    (a.sum() + b.cos().sum()).backward()
    assert x.grad is not None
    assert w.grad is not None
    return [a.detach(), b.detach(), x.grad, w.grad]


def assert_close(left: list[Tensor], right: list[Tensor]) -> None:
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b)


def assert_equal(left: list[Tensor], right: list[Tensor]) -> None:
    assert len(left) == len(right)
    assert all(map(torch.equal, left, right))


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


def twice(side: Callable[[Tensor, Tensor], Tensor], seed: int) -> Callable[[], list[Tensor]]:
    """Run `side` forward; what is left to do are its gradients and theirs, of two orders."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 3, generator=generator).double().requires_grad_()
    w = torch.randn(3, 3, generator=generator).double().requires_grad_()
    out = side(x, w)

    def differentiate() -> list[Tensor]:
        first = torch.autograd.grad(out, (x, w), create_graph=True)
        second = torch.autograd.grad(first[0].square().sum() + first[1].sum(), (x, w))
        return [g.detach() for g in (*first, *second)]

    return differentiate


def test_second_orders_traced_by_many_threads_at_once() -> None:
    def own(index: int) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda x, w: ((x @ w).sin() * (index + 1)).pow(2).sum()

    compiled = [torch.compile(own(i), backend=BACKEND, fullgraph=True) for i in range(THREADS)]
    waiting = [twice(side, i) for i, side in enumerate(compiled)]
    for i, results in enumerate(run_in_threads(lambda i: waiting[i]())):
        assert_close(results, twice(own(i), i)())


def test_second_order_of_one_program_traced_by_whichever_thread_comes_first() -> None:
    def one(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).sin().pow(2).sum()

    compiled = torch.compile(one, backend=BACKEND, fullgraph=True)
    waiting = [twice(compiled, i) for i in range(THREADS)]
    for i, results in enumerate(run_in_threads(lambda i: waiting[i]())):
        assert_close(results, twice(one, i)())


def test_second_orders_are_traced_beside_first_compilations() -> None:
    def own(index: int) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda x, w: ((x @ w).cos() + index).tanh().sum()

    compiled = [torch.compile(own(i), backend=BACKEND, fullgraph=True) for i in range(THREADS)]
    waiting = [twice(compiled[i], i) if i % 2 else None for i in range(THREADS)]

    def work(index: int) -> list[Tensor]:
        differentiate = waiting[index] or twice(compiled[index], index)
        return differentiate()

    for i, results in enumerate(run_in_threads(work)):
        assert_close(results, twice(own(i), i)())


def test_steady_calls_beside_a_second_order_trace() -> None:
    """What tracing switches for the whole process must not reach calls of other threads."""

    def deep(x: Tensor) -> Tensor:
        for _ in range(30):
            x = (x.sin() * 1.01).exp().tanh()
        return x.sum()

    steady = torch.compile(lambda x: (x * 2).sum(), backend=BACKEND, fullgraph=True)
    compiled = torch.compile(deep, backend=BACKEND, fullgraph=True)
    x = torch.linspace(0.1, 1, 4, requires_grad=True)
    (expected,) = torch.autograd.grad(steady(x), x)
    out = compiled(x)
    started, done = threading.Event(), threading.Event()

    def call() -> int:
        calls = 0
        while not done.is_set():
            (gradient,) = torch.autograd.grad(steady(x), x)
            assert torch.equal(gradient, expected)
            calls += 1
            started.set()
        return calls

    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(call)
        try:
            assert started.wait(timeout=60)
            (gradient,) = torch.autograd.grad(out, x, create_graph=True)
        finally:
            done.set()
        assert calling.result(timeout=60) > 1
    (second,) = torch.autograd.grad(gradient.sum(), x)
    (gradient,) = torch.autograd.grad(deep(x), x, create_graph=True)
    torch.testing.assert_close(second, torch.autograd.grad(gradient.sum(), x)[0])


# The generators of accelerators, here with the processor's in their place.


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> GeneratorStates:
    def seeded(values: Sequence[int], device: torch.device) -> list[torch.Generator]:
        return [torch.Generator(device).manual_seed(value) for value in values]

    monkeypatch.setattr(generators, "seeded", seeded)
    return GeneratorStates(2, torch.device("cpu"))


def drawn(own: list[torch.Generator]) -> list[Tensor]:
    return [torch.rand(3, generator=generator) for generator in own]


def test_generators_of_forwards_that_run_at_once(states: GeneratorStates) -> None:
    """No thread moves another's; each backward redraws what its forward drew."""

    def forward(index: int) -> list[tuple[SimpleNamespace, list[Tensor]]]:
        told = []
        for _ in range(3):
            node = SimpleNamespace()
            own = states.for_forward(node)
            together.wait(timeout=60)
            told.append((node, drawn(own)))
        return told

    together = threading.Barrier(THREADS)
    runs = [run for told in run_in_threads(forward) for run in told]
    assert len({tuple(t.tolist()) for _, numbers in runs for t in numbers}) == 2 * len(runs)

    def backward(index: int) -> None:
        for node, numbers in runs[index::THREADS] + runs:
            assert_equal(drawn(states.for_backward(node)), numbers)

    run_in_threads(backward)


def test_generators_seeded_alike_draw_alike(states: GeneratorStates) -> None:
    def run(states: GeneratorStates) -> list[Tensor]:
        torch.manual_seed(7)
        return [t for _ in range(3) for t in drawn(states.for_forward(SimpleNamespace()))]

    assert_equal(run(states), run(GeneratorStates(2, torch.device("cpu"))))


def test_states_of_a_generator_go_with_their_nodes(states: GeneratorStates) -> None:
    node = SimpleNamespace()
    states.for_forward(node)
    states.for_forward(SimpleNamespace())
    kept = [weakref.ref(state) for state in node.rng_states]
    del node
    assert not any(state() is not None for state in kept)


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
