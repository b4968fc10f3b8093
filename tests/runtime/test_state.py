"""Global state that the function reads or changes: random numbers, autocast, modes, buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracle import BACKEND, Case, Cases, leaf, nonleaf, plain
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# --- random numbers ---------------------------------------------------------------------------

random = Cases()


@random(lambda n: leaf(n, 3))
def dropout(x: Tensor) -> Tensor:
    return F.dropout(x, 0.5)


@random(lambda n: leaf(n, 3))
def two_dropouts(x: Tensor) -> Tensor:
    return F.dropout(F.dropout(x * 2, 0.3).sin(), 0.5) * x


@random(lambda n: plain(n, 3), grad_mode=(True, False))
def dropout_of_plain_input(x: Tensor) -> Tensor:
    return F.dropout(x, 0.5) + 1


@random(lambda n: plain(n, 3))
def uniform_and_normal(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.rand_like(x) + x, torch.randn(3), torch.randint(0, 10, (4,))


@random(lambda n: plain(n, 3))
def random_in_place(x: Tensor) -> Tensor:
    x.uniform_()
    return x * 2


@random(lambda n: plain(n, 3).abs())
def bernoulli_and_multinomial(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.bernoulli(x.clamp(0, 1)), torch.multinomial(x + 0.1, 2)


@random(lambda n: leaf(n, 3))
def permutation(x: Tensor) -> Tensor:
    return x[torch.randperm(x.shape[0])] * 2


@random(lambda n: leaf(n, 3))
def random_mask_used_in_backward(x: Tensor) -> Tensor:
    return (x * (torch.rand_like(x) > 0.5)).exp()


@random(lambda n: leaf(n, 3), fullgraph=False)
def seeded_inside(x: Tensor) -> Tensor:
    torch.manual_seed(5)
    return x * torch.rand(3)


@random(lambda n: (leaf(n, 3), leaf(3, 3)))
def dropout_under_checkpoint(x: Tensor, w: Tensor) -> Tensor:
    def body(t: Tensor) -> Tensor:
        return F.dropout((t @ w).sin(), 0.5)

    return torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False)


def test_same_seed_same_mask() -> None:
    compiled = torch.compile(lambda x: F.dropout(x, 0.5), backend=BACKEND, fullgraph=True)
    x = torch.ones(64, requires_grad=True)
    masks = []
    for _ in range(2):
        torch.manual_seed(7)
        masks.append(compiled(x).detach())
    other = compiled(x).detach()
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], other)
    torch.manual_seed(7)
    assert torch.equal(F.dropout(x, 0.5).detach(), masks[0])


def test_mask_of_backward_is_that_of_forward() -> None:
    compiled = torch.compile(lambda x: F.dropout(x, 0.5), backend=BACKEND, fullgraph=True)
    inputs = [torch.ones(64, requires_grad=True) for _ in range(3)]
    outs = [compiled(x) for x in inputs]
    for x, out in [*zip(inputs, outs, strict=True)][::-1]:
        (gradient,) = torch.autograd.grad(out.sum(), x)
        assert torch.equal(gradient, out.detach())


# --- autocast ---------------------------------------------------------------------------------

casting = Cases()


def autocast() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def autocast_off() -> torch.autocast:
    return torch.autocast("cpu", enabled=False)


@casting(lambda n: (leaf(n, 3), leaf(3, 3)), contexts=(autocast, autocast_off))
def product_under_callers_autocast(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).sin()


@casting(lambda n: (leaf(n, 3), leaf(3, 3)))
def product_under_own_autocast(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
    return y, x @ w


@casting(lambda n: (leaf(n, 3), leaf(3, 3)), contexts=(autocast,))
def part_without_autocast(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    with torch.autocast("cpu", enabled=False):
        y = x @ w
    return y, x @ w


@casting(lambda n: (torch.nn.Linear(3, 2), plain(n, 3)), contexts=(autocast,))
def linear_under_autocast(module: torch.nn.Module, x: Tensor) -> Tensor:
    return module(x).float().softmax(-1)


@casting(lambda n: (leaf(n, 3), leaf(3, 3)), contexts=(autocast,), backward_context=autocast)
def backward_under_autocast_too(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w) @ w


@casting(lambda n: (leaf(n, 3), leaf(3, 3)), contexts=(autocast,))
def weight_used_twice_under_autocast(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w) @ w


@casting(lambda n: (leaf(n, 3), leaf(3, 3)), backward_context=autocast)
def backward_alone_under_autocast(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).sin() @ w


def product_in_full(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return (x @ w).sin() @ w.t()


@casting(lambda n: (leaf(n, 3), leaf(3, 3)), contexts=(autocast,), backward_context=autocast)
def computed_again_without_autocast(x: Tensor, w: Tensor) -> Tensor:
    return checkpoint(product_in_full, x, w, use_reentrant=False) * 2


@casting(lambda n: (leaf(n, 3), leaf(3, 3)), contexts=(autocast,))
def computed_again_under_autocast(x: Tensor, w: Tensor) -> Tensor:
    return checkpoint(lambda x, w: ((x @ w).sin() @ w).float(), x, w, use_reentrant=False) * 2


@casting(lambda n: (plain(n, 3), leaf(3, 3)), contexts=(autocast,))
def mutation_under_autocast(x: Tensor, w: Tensor) -> Tensor:
    x.add_(1)
    return x @ w


# --- modes ------------------------------------------------------------------------------------

modes = Cases()


@modes(lambda n: plain(n, 3), contexts=(torch.inference_mode,), scenarios=("full",))
def in_inference_mode(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y, y.t()


@modes(lambda n: leaf(n, 3), contexts=(torch.inference_mode,), scenarios=("full",))
def leaf_in_inference_mode(x: Tensor) -> Tensor:
    return x.sin()


@modes(lambda n: leaf(n, 3), contexts=(torch.inference_mode,), scenarios=("full",))
def gradients_enabled_in_inference_mode(x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        y = x * x
    return y, y.view(-1)


@modes(
    lambda n: (torch.nn.Linear(3, 2), plain(n, 3)),
    contexts=(torch.inference_mode,),
    scenarios=("full",),
)
def module_in_inference_mode(module: torch.nn.Module, x: Tensor) -> Tensor:
    return module(x)


class Deterministic:
    def __enter__(self) -> None:
        torch.use_deterministic_algorithms(True)

    def __exit__(self, *_: object) -> None:
        torch.use_deterministic_algorithms(False)


@modes(lambda n: (leaf(n, 3), plain(n, dtype=torch.int64).clamp(max=2)), contexts=(Deterministic,))
def in_deterministic_mode(x: Tensor, index: Tensor) -> Tensor:
    return torch.zeros(3, 3).index_add(0, index, x)


class FloatIsDouble:
    def __enter__(self) -> None:
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *_: object) -> None:
        torch.set_default_dtype(torch.float32)


@modes(lambda n: plain(n, 3), contexts=(FloatIsDouble,))
def with_other_default_dtype(x: Tensor) -> Tensor:
    return x + torch.ones(3)


@modes(lambda n: leaf(n, 3), contexts=(lambda: torch.autograd.set_detect_anomaly(True),))
def in_anomaly_mode(x: Tensor) -> Tensor:
    return x.sin() * 2


# --- buffers ----------------------------------------------------------------------------------

buffers = Cases()


class Counter(torch.nn.Module):
    count: Tensor
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.mean = self.mean * 0.9 + x.detach().mean(0) * 0.1
        return (x - self.mean) * self.weight


@buffers(lambda n: (torch.nn.BatchNorm1d(3), leaf(n, 3)))
def batch_norm_in_training(module: torch.nn.Module, x: Tensor) -> Tensor:
    return module(x).relu()


@buffers(lambda n: (torch.nn.BatchNorm1d(3).eval(), leaf(n, 3)))
def batch_norm_in_evaluation(module: torch.nn.Module, x: Tensor) -> Tensor:
    return module(x).relu()


# Dynamo breaks the graph where the module reads its count of batches as a number.
@buffers(lambda n: (torch.nn.BatchNorm1d(3, momentum=None), plain(n, 3)), fullgraph=False)
def batch_norm_with_cumulative_mean(module: torch.nn.Module, x: Tensor) -> Tensor:
    return module(module(x))


@buffers(lambda n: (Counter(), leaf(n, 3)))
def buffers_written_and_replaced(module: torch.nn.Module, x: Tensor) -> Tensor:
    return module(x)


@buffers(lambda n: (torch.nn.Embedding(5, 3), plain(n, dtype=torch.int64)))
def embedding(module: torch.nn.Module, index: Tensor) -> Tensor:
    return module(index).sum(0)


@buffers(lambda n: (torch.nn.GRU(3, 2), plain(n, 1, 3)), fullgraph=False, calls=(3,))
def recurrent_module(module: torch.nn.Module, x: Tensor) -> Any:
    return module(x)


@buffers(
    lambda n: (torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(3, 3)), plain(n, 3))
)
def spectral_norm(module: torch.nn.Module, x: Tensor) -> Tensor:
    return module(x)


ALL = [*random, *casting, *modes, *buffers]


@pytest.mark.parametrize("case", ALL, ids=str)
def test_state(case: Case) -> None:
    case.run()


# --- steps of training ------------------------------------------------------------------------


def mlp() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8),
        torch.nn.BatchNorm1d(8),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(8, 2),
    )


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_training_steps(optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    """Parameters, buffers and losses stay eager's over several steps, through train and eval."""
    histories = []
    for compiling in (False, True):
        torch.manual_seed(0)
        model = mlp().double()  # AdamW makes a step of a gradient's sign, however small it is
        step = torch.compile(model, backend=BACKEND) if compiling else model
        opt = optimizer(model.parameters(), lr=0.05)
        history: list[Tensor] = []
        for index in range(6):
            model.train(index != 3)
            loss = step(torch.randn(5, 4).double()).pow(2).mean()
            loss.backward()
            opt.step()
            opt.zero_grad(set_to_none=index % 2 == 0)
            history.append(loss.detach())
        history += [value.detach().clone() for value in model.state_dict().values()]
        histories.append(history)
    for eager, compiled in zip(*histories, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)


def test_gradient_accumulation() -> None:
    grads = []
    for compiling in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        step = torch.compile(model, backend=BACKEND) if compiling else model
        for _ in range(3):
            step(torch.randn(4, 3)).sum().backward()
        grads.append([model.weight.grad, model.bias.grad])
    for eager, compiled in zip(*grads, strict=True):
        torch.testing.assert_close(compiled, eager)


def test_compiled_optimizer_step() -> None:
    results = []
    for compiling in (False, True):
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(3)) for _ in range(2)]
        opt = torch.optim.Adam(params, lr=0.1)
        step = torch.compile(opt.step, backend=BACKEND) if compiling else opt.step
        for _ in range(4):
            for param in params:
                param.grad = torch.randn(3)
            step()
        results.append([param.detach() for param in params])
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager)


# --- what the backward reads when it runs -----------------------------------------------------


def test_deterministic_mode_changed_before_backward() -> None:
    """A backward compiled without the mode may not run under it; torch's text says so."""
    compiled = torch.compile(lambda x: x.sin(), backend=BACKEND, fullgraph=True)
    compiled(leaf(3)).sum().backward()
    out = compiled(leaf(3))
    torch.use_deterministic_algorithms(True)
    with pytest.raises(RuntimeError, match="deterministic"):
        out.sum().backward()
    torch.use_deterministic_algorithms(False)


def test_backward_under_autocast_of_forward_without() -> None:
    grads = []
    for compiling in (False, True):
        torch.manual_seed(0)
        x, w = leaf(4, 3), leaf(3, 3)
        fn: Callable[..., Tensor] = lambda x, w: (x @ w).sin()  # noqa: E731
        side = torch.compile(fn, backend=BACKEND) if compiling else fn
        out = side(x, w)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out.sum().backward()
        assert x.grad is not None
        grads.append(x.grad)
    assert grads[1].dtype == grads[0].dtype
    # Eager's backward runs its products in bfloat16 here, the compiled one those that it traced.
    torch.testing.assert_close(grads[1], grads[0], rtol=2e-2, atol=2e-2)


def test_backward_under_no_grad_and_grad() -> None:
    for fn in (lambda x: x.sin(), torch.compile(lambda x: x.sin(), backend=BACKEND)):
        x = leaf(3)
        with torch.no_grad():
            torch.autograd.backward(fn_out := attach(fn, x), torch.ones(3))
        assert fn_out.requires_grad
        torch.testing.assert_close(x.grad, x.cos().detach())


def attach(fn: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with torch.enable_grad():
        return fn(x)


# --- transforms around a compiled function ----------------------------------------------------


def test_called_under_vmap() -> None:
    compiled = torch.compile(lambda x: x.sin() * 2, backend=BACKEND)
    x = torch.randn(5, 3)
    torch.testing.assert_close(torch.func.vmap(compiled)(x), x.sin() * 2)
    torch.testing.assert_close(compiled(x), x.sin() * 2)
    torch.testing.assert_close(torch.func.vmap(compiled)(x), x.sin() * 2)


def test_called_under_grad() -> None:
    compiled = torch.compile(lambda x: (x.sin() * 2).sum(), backend=BACKEND)
    x = torch.randn(5)
    torch.testing.assert_close(torch.func.grad(compiled)(x), x.cos() * 2)
    torch.testing.assert_close(compiled(x), (x.sin() * 2).sum())


def test_called_with_dual_numbers() -> None:
    """A dual input is guarded: the tangent may not be dropped silently."""
    compiled = torch.compile(lambda x: x.sin() * 2, backend=BACKEND)
    x, direction = torch.randn(3), torch.randn(3)
    compiled(x)
    tangent = torch.func.jvp(compiled, (x,), (direction,))[1]
    torch.testing.assert_close(tangent, x.cos() * 2 * direction)


def test_called_under_a_dispatch_mode() -> None:
    """A user's mode sees at least as much as with torch's own backends: the result is right."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counts(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.calls += 1
            return func(*args, **(kwargs or {}))

    compiled = torch.compile(lambda x: x.sin() * 2, backend=BACKEND)
    x = torch.randn(3)
    compiled(x)
    with Counts():
        torch.testing.assert_close(compiled(x), x.sin() * 2)


def test_input_with_post_accumulate_hook_that_steps() -> None:
    results = []
    for compiling in (False, True):
        torch.manual_seed(0)
        w = leaf(3)
        fn: Callable[..., Tensor] = lambda w, x: (w * x).sum()  # noqa: E731
        side = torch.compile(fn, backend=BACKEND) if compiling else fn

        def step(param: Tensor) -> None:
            with torch.no_grad():
                assert param.grad is not None
                param.sub_(param.grad, alpha=0.1)
            param.grad = None

        w.register_post_accumulate_grad_hook(step)
        for _ in range(3):
            side(w, torch.randn(3)).backward()
        results.append(w.detach())
    torch.testing.assert_close(results[1], results[0])


def test_nonleaf_input_of_other_graph() -> None:
    compiled = torch.compile(lambda x: x.sin(), backend=BACKEND)
    x = leaf(3)
    y = nonleaf(3)
    (compiled(x * 2) + compiled(y)).sum().backward()
    torch.testing.assert_close(x.grad, (2 * torch.cos(2 * x)).detach())
