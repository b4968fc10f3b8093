"""Second derivatives where a program has more to it than plain tensors: state, sizes, subclasses,
hooks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scenario import BACKEND, Compile, compiled, same
from torch import nn
from torch.autograd import grad
from torch.autograd.graph import saved_tensors_hooks
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def plain(t: torch.Tensor | None) -> torch.Tensor | None:
    """A gradient's values; strides are nobody's promise."""
    return None if t is None else torch.empty(t.shape, dtype=t.dtype).copy_(t.detach())


def twice(value: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """Gradients of `value`, and gradients of the sum of their squares."""
    first = grad(value, inputs, create_graph=True, allow_unused=True)
    total = sum((g.pow(2).sum() for g in first if g is not None), torch.zeros(()))
    second = grad(total, inputs, allow_unused=True)
    zeros = [torch.zeros_like(t) if g is None else g for t, g in zip(inputs, second, strict=True)]
    return [plain(g) for g in (*first, *zeros)]


@pytest.mark.parametrize("dynamic", [False, True])
def test_two_tensors(dynamic: bool) -> None:
    def scenario(compile: Compile) -> Any:
        call = compile(lambda x, w: (x @ w).tanh() * 2, dynamic=dynamic)
        told = []
        for n in (3, 5):
            x = TwoTensor(torch.randn(n, 4), torch.randn(n, 4)).requires_grad_()
            w = leaf(4, 2)
            out = call(x, w)
            (first,) = grad(out.sum(), w, create_graph=True)
            second = grad(first.pow(2).sum(), (x, w))
            told.append([t.detach() for t in (out, first, *second)])
        return told

    same(scenario, **CLOSE)


def test_parameters_that_are_subclasses() -> None:
    def scenario(compile: Compile) -> Any:
        w = nn.Parameter(TwoTensor(torch.randn(4, 2), torch.randn(4, 2)))
        x = torch.randn(3, 4)
        out = compile(lambda x, w: (x @ w).exp().sum())(x, w)
        (first,) = grad(out, w, create_graph=True)
        (second,) = grad(first.pow(2).sum(), w)
        return first.detach(), second

    same(scenario, **CLOSE)


def test_sizes_that_are_passed() -> None:
    def scenario(compile: Compile) -> Any:
        call = compile(lambda x, n, s: (x.narrow(0, 0, n) * s * n).exp().sum(), dynamic=True)
        told = []
        for n in (2, 3, 5):
            x = leaf(6)
            told.append(twice(call(x, n, 0.1 * n), [x]))
        return told

    same(scenario, **CLOSE)


def test_views_as_inputs() -> None:
    def scenario(compile: Compile) -> Any:
        base = leaf(3, 4)
        call = compile(lambda a, b: (a * b.sin()).sum())
        return twice(call(base[0], base[1:, :].t()[:, 0]), [base])

    same(scenario, **CLOSE)


def test_complex_numbers() -> None:
    def scenario(compile: Compile) -> Any:
        x = torch.randn(4, dtype=torch.complex64, requires_grad=True)
        out = compile(lambda x: (x * x.conj() * x.exp()).abs().sum())(x)
        (first,) = grad(out, x, create_graph=True)
        (second,) = grad(first.abs().pow(2).sum(), x)
        return first.detach().resolve_conj(), second.resolve_conj()

    same(scenario, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("reentrant", [False])
def test_checkpointed_part(reentrant: bool) -> None:
    def scenario(compile: Compile) -> Any:
        def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            part = lambda h: (h @ w).tanh().exp()  # noqa: E731
            return checkpoint(part, x.sin(), use_reentrant=reentrant).sum()

        x, w = leaf(3, 4), leaf(4, 4)
        return twice(compile(f)(x, w), [x, w])

    same(scenario, **CLOSE)


def test_users_hooks_see_what_first_order_saves() -> None:
    """Offloading packs and unpacks values; places in the graph are none of the hooks' business."""
    packed: list[torch.Tensor] = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        packed.append(t)
        return t.clone()

    call = compiled(lambda x, b: (x * 2 + b).exp().sum())
    x, b = leaf(4), leaf(4)
    with saved_tensors_hooks(pack, lambda t: t):
        out = call(x * 1, b * 1)
    assert len(packed) <= 3  # two products outside and what backward needs, no inputs
    ours = twice(out, [x, b])
    theirs = twice((x * 2 + b).exp().sum(), [x, b])
    for got, want in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, want)


def test_hooks_on_inputs_run_in_each_order() -> None:
    def scenario(compile: Compile) -> Any:
        x = leaf(4)
        h = x * 1
        seen: list[torch.Tensor] = []
        h.register_hook(lambda g: seen.append(g.detach().clone()))
        out = compile(lambda h: h.pow(3).sum())(h)
        return twice(out, [x]), seen

    same(scenario, **CLOSE)


def test_retained_gradients() -> None:
    def scenario(compile: Compile) -> Any:
        x = leaf(4)
        h = x * 1
        h.retain_grad()
        (first,) = grad(compile(lambda h: h.pow(3).sum())(h), x, create_graph=True)
        first.sum().backward()
        return plain(h.grad), plain(x.grad)

    same(scenario, **CLOSE)


def test_second_order_made_once_across_threads() -> None:
    call = compiled(lambda x, w: (x @ w).tanh().sum())
    x, w = leaf(3, 4), leaf(4, 4)
    call(x, w).backward()
    want = twice((x @ w).tanh().sum(), [x, w])
    failures: list[BaseException] = []
    start = threading.Barrier(6)

    def work() -> None:
        try:
            start.wait()
            for _ in range(3):
                for got, wanted in zip(twice(call(x, w), [x, w]), want, strict=True):
                    torch.testing.assert_close(got, wanted)
        except BaseException as error:  # noqa: BLE001 - reported by the test
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_deterministic_mode_is_read_when_it_runs() -> None:
    call = compiled(lambda x: x.pow(3).sum())
    x = leaf(3)
    out = call(x)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="use_deterministic_algorithms"):
            grad(out, x, create_graph=True)
    finally:
        torch.use_deterministic_algorithms(False)


def test_without_retain_graph_it_runs_once() -> None:
    call = compiled(lambda x: x.pow(3).sum())
    x = leaf(3)
    out = call(x)
    (first,) = grad(out, x, create_graph=True, retain_graph=False)
    grad(first.sum(), x)
    with pytest.raises(RuntimeError, match="second time"):
        grad(out, x, create_graph=True)


# Values that first order does not keep


@torch.library.custom_op("straightline_tests::swing", mutates_args=())
def swing(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.sin(), x.cos()


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0], output[1])


def _formula(ctx: Any, by_sine: torch.Tensor, by_slope: torch.Tensor) -> torch.Tensor:
    x, slope = ctx.saved_tensors
    return by_sine * slope - by_slope * x.sin()


swing.register_fake(lambda x: (torch.empty_like(x), torch.empty_like(x)))
swing.register_autograd(_formula, setup_context=_keep)


def test_a_leaf_that_has_changed_since_is_not_used() -> None:
    """First order kept the slope; second order needs the angle, which is not what it was."""
    call = compiled(lambda angle: (torch.sin(angle) * 1).sum())
    x = leaf(3)
    out = call(x)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="inplace operation"):
        grad(grad(out, x, create_graph=True)[0].sum(), x)


@pytest.mark.parametrize("order", [2, 3])
def test_saved_inputs_serve_every_order(order: int) -> None:
    def scenario(compile: Compile) -> Any:
        call = compile(lambda h, s: (h * s).exp() * h, options={"double_backward": "save"})
        x, s = leaf(4), leaf(4)
        value = call(x * 1, s.sin()).sum()
        told = []
        for step in range(order):
            grads = grad(value, (x, s), create_graph=step < order - 1)
            told += [plain(g) for g in grads]
            value = sum((g.pow(2).sum() for g in grads), torch.zeros(()))
        return told

    same(scenario, rtol=1e-3, atol=1e-4)


def test_saved_inputs_that_are_mutated_count_at_their_old_value() -> None:
    def scenario(compile: Compile) -> Any:
        def f(h: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
            out = (h * state.clone()).exp()
            state.mul_(2)
            return out.sum()

        call = compile(f, options={"double_backward": "save"})
        x, state = leaf(4), torch.ones(4)
        told = [twice(call(x * 1, state), [x]) for _ in range(2)]
        return told, state

    same(scenario, **CLOSE)


def test_saved_inputs_are_held_to_their_version() -> None:
    call = compiled(lambda h: h.pow(3).sum(), options={"double_backward": "save"})
    x = leaf(3)
    h = x * 1
    out = call(h)
    with torch.no_grad():
        h.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        grad(out, x, create_graph=True)


# What requires grad


def requires(fn: Callable[..., torch.Tensor], *, tangent: bool) -> Any:
    def scenario(compile: Compile) -> Any:
        x, y = leaf(3), leaf(3)
        seed = torch.ones(3, requires_grad=tangent)
        grads = grad(compile(fn)(x, y), (x, y), seed, create_graph=True, allow_unused=True)
        return [None if g is None else g.requires_grad for g in grads]

    return same(scenario)


@pytest.mark.parametrize("tangent", [False, True])
@pytest.mark.parametrize(
    "fn",
    [
        pytest.param(lambda x, y: x * 2 + y, id="linear"),
        pytest.param(lambda x, y: x * y, id="product"),
        pytest.param(lambda x, y: x.exp() + y * 3, id="one of two"),
        pytest.param(lambda x, y: x.abs() + y, id="derivative of zero"),
        pytest.param(torch.copysign, id="derivative of zero, and of what has none"),
    ],
)
def test_gradients_require_grad_as_in_eager(fn: Any, tangent: bool) -> None:
    requires(fn, tangent=tangent)


@pytest.mark.parametrize(
    "fn",
    [
        pytest.param(lambda x, y: x.abs() * y, id="abs"),
        pytest.param(torch.copysign, id="copysign"),
        pytest.param(lambda x, y: F.max_pool1d(x[None], 2)[0] * y[0], id="max_pool1d"),
        pytest.param(lambda x, y: F.avg_pool1d(x[None], 2)[0] * y[0], id="avg_pool1d"),
    ],
)
def test_formulas_whose_derivative_is_zero(fn: Any) -> None:
    def scenario(compile: Compile) -> Any:
        x, y = leaf(4), leaf(4)
        return twice(compile(fn)(x, y).pow(2).sum(), [x, y])

    same(scenario, **CLOSE)


def test_embedding_and_indices() -> None:
    def scenario(compile: Compile) -> Any:
        table, ids = leaf(6, 3), torch.tensor([0, 2, 2, 5])
        call = compile(lambda t, i: F.embedding(i, t).pow(3).sum())
        return twice(call(table, ids), [table])

    same(scenario, **CLOSE)


def test_a_program_inside_an_effect() -> None:
    """An operation that is there for its effect runs once, by the forward."""

    def scenario(compile: Compile) -> Any:
        def f(x: torch.Tensor) -> torch.Tensor:
            torch._assert_async((x.abs() < 100).all(), "too large")
            return x.pow(3).sum()

        x = leaf(3)
        return twice(compile(f)(x), [x])

    same(scenario, **CLOSE)


LINEAR_ALGEBRA: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "solve": lambda a: torch.linalg.solve(a, a.sin()),
    "slogdet": lambda a: torch.linalg.slogdet(a)[1],
    "eigvals": lambda a: torch.linalg.eigvals(a).abs(),
}


@pytest.mark.parametrize("name", list(LINEAR_ALGEBRA))
def test_formulas_that_check_what_they_solve(name: str) -> None:
    def scenario(compile: Compile) -> Any:
        a = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
        value = compile(LINEAR_ALGEBRA[name])(a).pow(2).sum()
        for _ in range(2):
            (first,) = grad(value, a, create_graph=True)
            value = first.pow(2).sum()
        return plain(first), plain(*grad(value, a))

    same(scenario, rtol=1e-9, atol=1e-9)


def test_a_check_in_a_formula_fails_as_in_eager() -> None:
    def scenario(compile: Compile) -> Any:
        a = torch.ones(3, 3, dtype=torch.float64, requires_grad=True)
        out = compile(LINEAR_ALGEBRA["slogdet"])(a)
        with pytest.raises(torch.linalg.LinAlgError, match="singular") as raised:
            grad(out, a, create_graph=True)
        return str(raised.value)

    same(scenario)


def test_what_torch_cannot_trace_is_named() -> None:
    """The gradients of a product over data-dependent groups depend on where its zeros are."""
    call = compiled(
        lambda x, i, s: x.index_reduce(0, i, s, "prod", include_self=True).sum(), fullgraph=False
    )
    x, i, s = leaf(3), torch.tensor([0, 0, 2]), leaf(3)
    out = call(x, i, s)
    with pytest.raises(RuntimeError, match=r"double backward: torch's stages cannot trace"):
        grad(out, x, create_graph=True)


class Seen(TorchDispatchMode):
    """Counts the operations that it sees, and looks at the values of their results."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []
        self.tensors: set[type] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = function(*args, **(kwargs or {}))
        self.operations.append(str(function))
        self.tensors |= {type(t) for t in (*args, out) if isinstance(t, torch.Tensor)}
        assert not (isinstance(out, torch.Tensor) and out.isnan().any().item())
        return out


def test_tracing_is_not_seen_by_a_mode_of_the_users() -> None:
    def scenario(compile: Compile) -> Any:
        x = leaf(3)
        out = compile(lambda x: (x.sin() ** 2).sum())(x)
        told = []
        for _ in range(2):
            with Seen() as seen:
                (first,) = grad(out, x, create_graph=True)
                (second,) = grad(first.sum(), x, retain_graph=True)
            assert seen.operations
            assert seen.tensors == {torch.Tensor}
            told.append((plain(first), plain(second)))
        return told

    same(scenario, **CLOSE)


@pytest.mark.parametrize("late", [False, True], ids=["", "third_under_autocast"])
@pytest.mark.parametrize("where", ["forward", "gradient", "both"])
def test_create_graph_under_autocast(where: str, late: bool) -> None:
    """Autocast of its caller reaches a gradient, with or without a graph of it."""
    low = torch.bfloat16
    of_forward, of_gradient = where != "gradient", where != "forward"

    def run(side: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        x, w = leaf(4, 4), leaf(4, 4)
        with torch.autocast("cpu", low, enabled=of_forward):
            out = side(x, w)
        with torch.autocast("cpu", low, enabled=of_gradient):
            alone = grad(out, (x, w), retain_graph=True)
            first = grad(out, (x, w), create_graph=True)
        if where == "gradient":
            assert all(map(torch.equal, alone, first))
        with torch.autocast("cpu", low, enabled=late):
            second = grad(first[0].square().sum() + first[1].sum(), (x, w), create_graph=True)
        third = grad(second[0].sum() + second[1].sum(), (x, w))
        assert {t.dtype for t in (*first, *second, *third)} == {torch.float32}
        return [t.detach() for t in (*first, *second, *third)]

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ((x @ w).sin() @ w).float().sum()

    results = run(torch.compile(function, backend=BACKEND, fullgraph=True))
    for got, wanted in zip(results, run(function), strict=True):
        assert (got - wanted).norm() <= 0.02 * wanted.norm()


def test_a_gradients_autocast_is_that_of_each_call() -> None:
    """One program, differentiated with autocast on and off, in turns."""

    def run(side: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        x, w = leaf(4, 4), leaf(4, 4)
        told = []
        for enabled in (True, False, True, False):
            out = side(x, w)
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                first = grad(out, (x, w), create_graph=True)
            told += [t.detach() for t in first]
        return told

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ((x @ w).sin() @ w).sum()

    results = run(torch.compile(function, backend=BACKEND, fullgraph=True))
    torch.testing.assert_close(results, run(function), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(results[0], results[2], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("parts", [1, 2])
def test_checkpointed_dropout(parts: int) -> None:
    """Where the state of the generator was kept, masks are drawn from it at every order."""

    def part(x: torch.Tensor) -> torch.Tensor:
        return F.dropout((x.sin() * x).exp(), 0.5).square()

    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(parts):
            x = checkpoint(part, x, use_reentrant=False).tanh()
        return x.sum()

    def scenario(compile: Compile) -> Any:
        x = torch.linspace(0.1, 1, 8).requires_grad_()
        out = compile(function)(x)
        (first,) = grad(out, x, create_graph=True)
        (second,) = grad(first.pow(2).sum(), x, create_graph=True)
        (third,) = grad(second.pow(2).sum(), x)
        return [plain(t) for t in (out, first, second, third)]

    same(scenario, **CLOSE)
