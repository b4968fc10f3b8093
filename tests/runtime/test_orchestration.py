"""What happens around the body: modes and their restoration, errors, tangents, hooks, arguments."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracle import BACKEND, Case, Cases, leaf, nonleaf, plain
from torch import Tensor

# --- grad mode --------------------------------------------------------------------------------

modes = Cases()


@modes(lambda n: leaf(n, 3), grad_mode=(True, False))
def leaves_grad_off(x: Tensor) -> Tensor:
    y = x * 2
    torch.set_grad_enabled(False)
    return y


@modes(lambda n: leaf(n, 3), grad_mode=(True, False))
def leaves_grad_on(x: Tensor) -> Tensor:
    y = x * 2
    torch.set_grad_enabled(True)
    return y


@modes(lambda n: leaf(n, 3), grad_mode=(True, False))
def part_without_grad(x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        y = x * 2
    return y, x * y


@modes(lambda n: leaf(n, 3), grad_mode=(True, False))
def part_with_grad(x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        y = x * 2
    return y, y + 1


@modes(lambda n: leaf(n, 3), grad_mode=(True, False))
def all_with_grad_enabled(x: Tensor) -> Tensor:
    with torch.enable_grad():
        return x * 2


@modes(lambda n: leaf(n, 3), grad_mode=(True, False))
def all_without_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x.sin() * x


@modes(lambda n: (leaf(n, 3), plain(n, 3)), grad_mode=(True, False))
def nested_modes(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        a = x * y
        with torch.enable_grad():
            b = x * a
    return a, b


@modes(lambda n: leaf(n, 3))
def decorated(x: Tensor) -> Tensor:
    @torch.no_grad()
    def mask(t: Tensor) -> Tensor:
        return (t > 0).float()

    return x * mask(x)


@modes(lambda n: (nonleaf(n, 3), leaf(n, 3)), grad_mode=(True, False))
def mutated_with_mode_left_off(y: Tensor, x: Tensor) -> Tensor:
    y.add_(x)
    torch.set_grad_enabled(False)
    return y + 1


# --- inputs that never need gradients, and other shapes of argument lists -----------------------

arguments = Cases()


@arguments(lambda n: (leaf(n, 3), leaf(n, 3)))
def leaf_detached_first(x: Tensor, y: Tensor) -> Tensor:
    return x.detach() * y


@arguments(lambda n: (leaf(n, 3), leaf(n, 3)))
def leaf_unused(x: Tensor, y: Tensor) -> Tensor:
    return y * 2


@arguments(lambda n: (leaf(n, 3), nonleaf(n, 3)))
def only_integers_returned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.argmax(), (y > x).sum()


@arguments(lambda n: (leaf(n, 3), plain(n, 3, dtype=torch.int64)))
def integer_input_beside_leaf(x: Tensor, i: Tensor) -> Tensor:
    return x * i


@arguments(lambda n: tuple(leaf(n) if i % 2 else plain(n) for i in range(20)))
def twenty_arguments(*tensors: Tensor) -> tuple[Tensor, Tensor]:
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor.sin()
    return total, tensors[7] * tensors[8]


@arguments(lambda n: tuple(plain(n) for _ in range(20)), grad_mode=(False,))
def twenty_arguments_in_inference(*tensors: Tensor) -> Tensor:
    return torch.stack(tensors).sum(0)


@arguments(lambda n: ({"b": leaf(n), "a": plain(n)}, [leaf(n), (plain(n), None)], 2.0))
def structured_arguments(tree: dict[str, Tensor], items: list[Any], k: float) -> dict[str, Any]:
    return {"s": tree["a"] * tree["b"], "t": items[0] * k + items[1][0]}


@arguments(lambda n: (leaf(n, 3), leaf(n, 3)))
def keyword_like_defaults(x: Tensor, y: Tensor, scale: float = 2.0) -> Tensor:
    return x * y * scale


@arguments(lambda n: (torch.nn.Linear(3, 2), plain(n, 3)))
def module_argument(module: torch.nn.Module, x: Tensor) -> Tensor:
    return module(x).relu()


@arguments(lambda n: (torch.nn.BatchNorm1d(3), leaf(n, 3)))
def module_with_buffers(module: torch.nn.Module, x: Tensor) -> Tensor:
    return module(x)


@arguments(lambda n: (tied(), plain(n, 3)))
def module_with_tied_weights(module: torch.nn.Module, x: Tensor) -> Tensor:
    return module(x)


def tied() -> torch.nn.Module:
    first, second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    second.weight = first.weight
    return torch.nn.Sequential(first, torch.nn.Tanh(), second)


@arguments(lambda n: (leaf(n, 3), torch.float64))
def dtype_argument(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) * 2


@arguments(lambda n: plain(n, 3, dtype=torch.float64))
def double_precision(x: Tensor) -> Tensor:
    return x.exp().log() * 2


@arguments(lambda n: (leaf(n, 3), leaf(n, 3)), fullgraph=False)
def graph_break_between(x: Tensor, y: Tensor) -> Tensor:
    z = x * y
    torch._dynamo.graph_break()
    return z.sin() * x


@arguments(lambda n: (plain(n, 3), plain(n, 3)), fullgraph=False)
def graph_break_between_mutations(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    v = x.view(-1)
    torch._dynamo.graph_break()
    v.mul_(2)
    return x + y


@pytest.mark.parametrize("case", [*modes, *arguments], ids=str)
def test_orchestration(case: Case) -> None:
    case.run()


# --- symbolic sizes ---------------------------------------------------------------------------

dynamic = Cases()
SIZES = {"calls": (4, 6, 2, 1, 9), "dynamic": (None, True)}


@dynamic(lambda n: leaf(n, 3), **SIZES)
def saved_with_symbolic_size(x: Tensor) -> Tensor:
    return (x.sin() * x).view(-1)


@dynamic(lambda n: (leaf(n, 3), leaf(3, n)), **SIZES)
def product_of_symbolic_sizes(x: Tensor, y: Tensor) -> Tensor:
    return x @ y / x.shape[0]


@dynamic(lambda n: (plain(n, 3), plain(2 * n, 3)), **SIZES)
def related_sizes(x: Tensor, y: Tensor) -> tuple[Tensor, int]:
    y[: x.shape[0]].add_(x)
    return y[x.shape[0] :], x.shape[0] + y.shape[0]


@dynamic(lambda n: (leaf(n, 3), n), **SIZES)
def symbolic_integer(x: Tensor, k: int) -> tuple[Tensor, int]:
    return x.repeat(k, 1) * k, k * 2


@dynamic(lambda n: nonleaf(n, n + 1), **SIZES)
def views_of_symbolic_size(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return x.t(), y[1:].t()


@dynamic(lambda n: plain(2 * n, 3)[n:], **SIZES)
def symbolic_storage_offset(x: Tensor) -> tuple[Tensor, Tensor]:
    x.mul_(2)
    return x[1:], x + 1


@dynamic(lambda n: plain(n, 3), **SIZES)
def sizes_in_the_body(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.arange(x.shape[0]), torch.zeros(x.shape[0] * 2, x.shape[1] + 1)


def marked(n: int) -> Tensor:
    x = leaf(n + 2, 3)
    torch._dynamo.mark_dynamic(x, 0)
    return x


@dynamic(marked, calls=(4, 6, 5))
def dimension_marked_dynamic(x: Tensor) -> Tensor:
    return (x * 2).relu()


def unbacked(n: int) -> Tensor:
    x = leaf(n, 3)
    torch._dynamo.decorators.mark_unbacked(x, 0)
    return x


@dynamic(unbacked, calls=(4, 6, 5))
def dimension_marked_unbacked(x: Tensor) -> Tensor:
    return (x * 2).relu()


@dynamic(lambda n: (leaf(3), n / 2), **SIZES)
def symbolic_float(x: Tensor, k: float) -> Tensor:
    return x * k + k


@pytest.mark.parametrize("case", dynamic, ids=str)
def test_dynamic_shapes(case: Case) -> None:
    case.run()


def test_outputs_carry_dynamic_dimensions() -> None:
    """A graph that follows a break learns from the output that a dimension varies."""

    def fn(x: Tensor) -> Tensor:
        return x * 2

    compiled = torch.compile(fn, backend=BACKEND)
    x = torch.randn(4, 3)
    torch._dynamo.mark_dynamic(x, 0)
    out = compiled(x)
    eager = torch.compile(fn, backend="aot_eager")
    torch._dynamo.reset()
    expected = eager(x)
    name = "_dynamo_propagated_dynamic_indices"
    assert getattr(out, name, None) == getattr(expected, name, None)
    assert getattr(out, name, None) == {0}


# --- errors -----------------------------------------------------------------------------------


class ForwardFails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


@torch.library.custom_op("straightline_tests::fails_on_negative", mutates_args=())
def fails_on_negative(x: Tensor) -> Tensor:
    if (x < 0).any():
        raise ArithmeticError("a negative element")
    return x.clone()


@fails_on_negative.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("straightline_tests::gradient_fails_on_negative", mutates_args=())
def gradient_fails_on_negative(x: Tensor) -> Tensor:
    return x.clone()


@gradient_fails_on_negative.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


gradient_fails_on_negative.register_autograd(lambda ctx, grad: fails_on_negative(grad))


@pytest.mark.parametrize("enabled", [True, False])
def test_error_in_forward_restores_grad_mode(enabled: bool) -> None:
    def fn(x: Tensor) -> Tensor:
        y = fails_on_negative(x.detach()) * x
        torch.set_grad_enabled(not enabled)
        return y

    compiled = torch.compile(fn, backend=BACKEND, fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    for value in (1.0, -1.0, 1.0, -1.0):
        with torch.set_grad_enabled(enabled):
            x.data.fill_(value)
            if value > 0:
                compiled(x)
                assert torch.is_grad_enabled() is not enabled
            else:
                with pytest.raises(ArithmeticError, match="a negative element"):
                    compiled(x)
                assert torch.is_grad_enabled() is enabled


def test_error_in_backward_restores_grad_mode() -> None:
    def fn(x: Tensor) -> Tensor:
        return gradient_fails_on_negative(x) * 2

    compiled = torch.compile(fn, backend=BACKEND, fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    compiled(x).backward(torch.ones(3))
    with pytest.raises(ArithmeticError, match="a negative element"):
        compiled(x).backward(-torch.ones(3))
    assert torch.is_grad_enabled()
    (gradient,) = torch.autograd.grad(compiled(x), x, torch.ones(3))
    assert torch.equal(gradient, torch.full((3,), 2.0))


def test_error_in_the_first_call() -> None:
    """A call that fails while the program is checked for the first time leaves it usable."""

    def fn(x: Tensor) -> Tensor:
        return fails_on_negative(x) + 1

    compiled = torch.compile(fn, backend=BACKEND, fullgraph=True)
    with pytest.raises(ArithmeticError, match="a negative element"):
        compiled(-torch.ones(3))
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))


def test_inputs_of_wrong_shape_recompile() -> None:
    compiled = torch.compile(lambda x: x.sum(-1), backend=BACKEND)
    for shape in [(3,), (2, 3), (1, 2, 3), (0, 3)]:
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), x.sum(-1))


# --- tangents ---------------------------------------------------------------------------------


def pair(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x * y, (x + y).t()


def both(fn: Callable[..., Any]) -> list[Callable[..., Any]]:
    return [fn, torch.compile(fn, backend=BACKEND, fullgraph=True)]


TANGENTS: dict[str, Callable[[], tuple[Tensor | None, Tensor | None]]] = {
    "contiguous": lambda: (plain(4, 3), plain(3, 4)),
    "transposed": lambda: (plain(3, 4).t(), plain(4, 3).t()),
    "expanded": lambda: (torch.ones(()).expand(4, 3), torch.ones(3, 1).expand(3, 4)),
    "expanded zeros": lambda: (torch.zeros(()).expand(4, 3), plain(3, 4)),
    "with gaps": lambda: (plain(4, 6)[:, ::2], plain(6, 4)[::2]),
    "first missing": lambda: (None, plain(3, 4)),
    "second missing": lambda: (plain(4, 3), None),
}


@pytest.mark.parametrize("kind", TANGENTS)
def test_tangents(kind: str) -> None:
    results = []
    for fn in both(pair):
        grads: list[Tensor] = []
        # The contiguous tangents of the first backward decide what is compiled.
        for make in (TANGENTS["contiguous"], TANGENTS[kind], TANGENTS["contiguous"]):
            torch.manual_seed(3)
            x, y = leaf(4, 3), leaf(4, 3)
            outs, tangents = fn(x, y), make()
            chosen = [
                (out, tangent)
                for out, tangent in zip(outs, tangents, strict=True)
                if tangent is not None
            ]
            torch.autograd.backward([out for out, _ in chosen], [t for _, t in chosen])
            assert x.grad is not None
            assert y.grad is not None
            grads += [x.grad, y.grad]
        results.append(grads)
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager)
        assert compiled.stride() == eager.stride()


@pytest.mark.parametrize("kind", TANGENTS)
def test_odd_tangents_come_first(kind: str) -> None:
    """The backward is compiled with what comes first, and must still serve the usual tangents."""
    results = []
    for fn in both(pair):
        grads: list[Tensor] = []
        for make in (TANGENTS[kind], TANGENTS["contiguous"]):
            torch.manual_seed(3)
            x, y = leaf(4, 3), leaf(4, 3)
            chosen = [(o, t) for o, t in zip(fn(x, y), make(), strict=True) if t is not None]
            torch.autograd.backward([out for out, _ in chosen], [t for _, t in chosen])
            assert x.grad is not None
            grads.append(x.grad)
        results.append(grads)
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager)


def test_channels_last_tangent() -> None:
    def fn(x: Tensor) -> Tensor:
        return (x * 2).relu()

    for side in both(fn):
        x = torch.randn(2, 3, 4, 4, requires_grad=True)
        tangent = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
        side(x).backward(tangent)
        torch.testing.assert_close(x.grad, torch.where(x > 0, 2 * tangent, 0))


def test_retain_graph() -> None:
    def fn(x: Tensor) -> Tensor:
        return (x.sin() * x).exp()

    results = []
    for side in both(fn):
        torch.manual_seed(0)
        x = leaf(4, 3)
        out = side(x).sum()
        out.backward(retain_graph=True)
        out.backward(retain_graph=True)
        out.backward()
        results.append(x.grad)
        with pytest.raises(RuntimeError, match="a second time"):
            out.backward()
    torch.testing.assert_close(results[1], results[0])


def test_partial_gradients_with_autograd_grad() -> None:
    def fn(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        return (x * y).sum(), (y * z).sin().sum()

    def grads(side: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(0)
        args = [leaf(3), leaf(3), leaf(3)]
        a, b = side(*args)
        return [
            *torch.autograd.grad(a, [args[0]], retain_graph=True),
            *torch.autograd.grad(b, [args[2], args[1]], retain_graph=True),
            *torch.autograd.grad(a + b, args),
        ]

    eager, compiled = (grads(side) for side in both(fn))
    for left, right in zip(eager, compiled, strict=True):
        torch.testing.assert_close(right, left)


def test_tangent_of_wrong_shape() -> None:
    for side in both(lambda x: x * 2):
        out = side(leaf(4, 3))
        with pytest.raises(RuntimeError, match=r"[Ss]hape|mismatch"):
            out.backward(torch.ones(3, 4))


def test_two_forwards_then_backwards_out_of_order() -> None:
    results = []
    for side in both(lambda x: (x.sin() * x).exp()):
        torch.manual_seed(0)
        x, y, z = leaf(3), leaf(3), leaf(3)
        a, b, c = side(x), side(y), side(z)
        b.sum().backward()
        c.mul(2).sum().backward()
        a.sum().backward()
        results.append([x.grad, y.grad, z.grad])
    for left, right in zip(*results, strict=True):
        torch.testing.assert_close(right, left)


def test_compiled_called_in_a_chain() -> None:
    results = []
    for side in both(lambda x: (x * 1.1).sin()):
        torch.manual_seed(0)
        x = leaf(3)
        y = x
        for _ in range(5):
            y = side(y)
        y.sum().backward()
        results.append(x.grad)
    torch.testing.assert_close(results[1], results[0])


# --- hooks ------------------------------------------------------------------------------------


def test_hooks_on_inputs_and_outputs() -> None:
    seen: list[list[str]] = []
    grads = []
    for side in both(lambda x, y: ((x * y).sin(), x + 1)):
        torch.manual_seed(0)
        order: list[str] = []
        base = leaf(3)
        x, y = base * 2, leaf(3)
        base.register_post_accumulate_grad_hook(lambda t: order.append("accumulated"))
        x.register_hook(lambda g: (order.append("input"), g * 2)[1])
        y.register_hook(lambda g: (order.append("leaf"), g + 1)[1])
        a, b = side(x, y)
        a.register_hook(lambda g: (order.append("output"), g * 3)[1])
        a.retain_grad()
        (a.sum() + b.sum()).backward()
        seen.append(sorted(order))
        grads.append([base.grad, y.grad, a.grad])
    assert seen[0] == seen[1] == ["accumulated", "input", "leaf", "output"]
    for left, right in zip(*grads, strict=True):
        torch.testing.assert_close(right, left)


def scales_gradient(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda g: g * 10)
    return y.sin()


def scales_gradient_of_input(x: Tensor) -> Tensor:
    x.register_hook(lambda g: g * 10)
    return x.sin()


@pytest.mark.parametrize("fn", [scales_gradient, scales_gradient_of_input])
def test_hook_registered_inside(fn: Callable[[Tensor], Tensor]) -> None:
    """On an intermediate the hook's function is traced into the backward by compiled autograd."""
    grads = []
    for side in [fn, torch.compile(fn, backend=BACKEND)]:
        torch.manual_seed(0)
        base = leaf(3)
        side(base * 1).sum().backward()
        grads.append(base.grad)
    torch.testing.assert_close(grads[1], grads[0])


def test_saved_tensor_hooks_run() -> None:
    counts = []
    grads = []
    for side in both(lambda x: (x.sin() * x).exp()):
        packed: list[int] = []

        def pack(tensor: Tensor, packed: list[int] = packed) -> Tensor:
            packed.append(tensor.numel())
            return tensor * 2

        torch.manual_seed(0)
        x = leaf(3)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor / 2):
            out = side(x)
        out.sum().backward()
        counts.append(len(packed))
        grads.append(x.grad)
    torch.testing.assert_close(grads[1], grads[0])
    assert counts[1] > 0


def test_save_on_cpu() -> None:
    grads = []
    for side in both(lambda x: (x.sin() * x).exp()):
        torch.manual_seed(0)
        x = leaf(3)
        with torch.autograd.graph.save_on_cpu():
            out = side(x)
        out.sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(grads[1], grads[0])


# --- lifetime ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x * 2).sin(),
        lambda x: (x.view(-1), x * 2)[1],
        lambda x: (x * 2).t(),
        lambda x: x.exp().view(-1) * 2,
    ],
)
def test_nothing_outlives_the_call(fn: Callable[[Tensor], Tensor]) -> None:
    """No reference cycle keeps an input or an output alive."""
    compiled = torch.compile(fn, backend=BACKEND, fullgraph=True)
    compiled(leaf(4, 3)).sum().backward()
    gc.collect()
    gc.disable()
    try:
        x = leaf(4, 3)
        out = compiled(x)
        references = [weakref.ref(x), weakref.ref(out)]
        out.sum().backward()
        del x, out
        assert [reference() for reference in references] == [None, None]
    finally:
        gc.enable()


def test_backward_of_what_was_dropped_frees_saved_values() -> None:
    compiled = torch.compile(lambda x: x.exp().sin(), backend=BACKEND, fullgraph=True)
    compiled(leaf(4, 3)).sum().backward()
    gc.collect()
    gc.disable()
    try:
        x = leaf(4, 3)
        reference = weakref.ref(x)
        out = compiled(x)
        del x, out
        assert reference() is None
    finally:
        gc.enable()
