"""Tensors saved for backward: hooks on them, how long they live, who may change them."""

from __future__ import annotations

import contextlib
import contextvars
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from scenario import BACKEND, Compile, compiled, same
from torch.autograd import grad
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor


def net(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return ((x @ w).sin() * x.sum(-1, keepdim=True)).exp()


def leaves() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(3, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)


# Ordinary hooks


def test_hooks_around_the_call() -> None:
    packed: list[tuple[int, ...]] = []
    unpacked: list[tuple[int, ...]] = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        packed.append(tuple(t.shape))
        return t * 2

    def unpack(t: torch.Tensor) -> torch.Tensor:
        unpacked.append(tuple(t.shape))
        return t / 2

    def scenario(compile: Compile) -> Any:
        f = compile(net)
        told = []
        for _ in range(2):
            x, w = leaves()
            with saved_tensors_hooks(pack, unpack):
                out = f(x, w)
            out.sum().backward()
            told.append((out.detach(), x.grad, w.grad))
        packed_here, unpacked_here = len(packed), len(unpacked)
        packed.clear()
        unpacked.clear()
        return told, packed_here > 0, packed_here == unpacked_here

    same(scenario)


def test_hooks_that_come_after_compiling() -> None:
    def scenario(compile: Compile) -> Any:
        f = compile(net)
        told = []
        for hooked in (False, True, False):
            x, w = leaves()
            hooks = saved_tensors_hooks(lambda t: t * 3, lambda t: t / 3)
            with hooks if hooked else contextlib.nullcontext():
                out = f(x, w)
            out.sum().backward()
            told.append((x.grad, w.grad))
        return told

    same(scenario)


def test_hooks_that_pack_into_something_else() -> None:
    """A packed value need not be a tensor, and unpacking may happen in another order."""
    shelf: dict[int, torch.Tensor] = {}

    def pack(t: torch.Tensor) -> int:
        shelf[len(shelf)] = t.detach().clone()
        return len(shelf) - 1

    def scenario(compile: Compile) -> Any:
        f = compile(net)
        x, w = leaves()
        with saved_tensors_hooks(pack, shelf.__getitem__):
            first, second = f(x, w), f(x * 2, w)
        return grad(second.sum(), (x, w)), grad(first.sum(), (x, w))

    same(scenario)


def test_hooks_that_quantise() -> None:
    """What is unpacked is what backward computes with."""

    def scenario(compile: Compile) -> Any:
        f = compile(lambda x: x * x)
        x = torch.randn(5, requires_grad=True)
        with saved_tensors_hooks(lambda t: t.round(), lambda t: t):
            out = f(x)
        return grad(out.sum(), x)

    same(scenario)


def test_save_on_cpu() -> None:
    def scenario(compile: Compile) -> Any:
        f = compile(net)
        x, w = leaves()
        with save_on_cpu():
            out = f(x, w)
        out.sum().backward()
        return out, x.grad, w.grad

    same(scenario)


def test_hooks_and_graph_kept() -> None:
    def scenario(compile: Compile) -> Any:
        x, w = leaves()
        with saved_tensors_hooks(lambda t: t + 1, lambda t: t - 1):
            out = compile(net)(x, w).sum()
        return [grad(out, (x, w), retain_graph=True) for _ in range(2)]

    same(scenario)


def test_error_in_a_hook_surfaces() -> None:
    class Refused(Exception):
        pass

    def refuse(_: torch.Tensor) -> torch.Tensor:
        raise Refused

    f = compiled(net)
    x, w = leaves()
    f(x, w).sum().backward()
    with pytest.raises(Refused), saved_tensors_hooks(refuse, lambda t: t):
        f(x, w)
    with saved_tensors_hooks(lambda t: t, refuse):
        out = f(x, w)
    with pytest.raises(Refused):
        out.sum().backward()
    x.grad = None
    f(x, w).sum().backward()
    assert torch.is_grad_enabled()
    want = grad(net(x, w).sum(), x)[0]
    torch.testing.assert_close(x.grad, want)


def test_disabled_hooks() -> None:
    def scenario(compile: Compile) -> Any:
        f = compile(net)
        x, w = leaves()
        with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
            out = f(x, w)
        return grad(out.sum(), (x, w))

    same(scenario)


# Inlineable hooks: graphs, which become part of the compiled ones


def inlineable(
    pack: Callable[[torch.Tensor], Any], unpack: Callable[..., torch.Tensor], like: torch.Tensor
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    pack_graph = make_fx(pack)(like)
    unpack_graph = make_fx(unpack)(pack_graph(like))
    for graph in (pack_graph, unpack_graph):
        graph.meta["inlineable"] = True
    return pack_graph, unpack_graph


def quantise(t: torch.Tensor) -> Any:
    scale = t.abs().amax() + 1e-6
    return (t / scale).to(torch.bfloat16), scale


def restore(packed: Any) -> torch.Tensor:
    value, scale = packed
    return value.to(torch.float32) * scale


@pytest.mark.parametrize("mode", ["donated", "no_static", "all"])
def test_inlined_hooks(mode: str) -> None:
    """Exact packing, so that which tensors are packed does not matter."""
    hooks = inlineable(lambda t: t * 2, lambda t: t / 2, torch.randn(2, 3))

    def scenario(compile: Compile) -> Any:
        f = compile(net)
        told = []
        for _ in range(2):
            x, w = leaves()
            with saved_tensors_hooks(*hooks):
                out = f(x, w)
            out.sum().backward()
            told.append((out.detach(), x.grad, w.grad))
        return told

    with torch._functorch.config.patch(saved_tensors_hooks_filtering_mode=mode):
        same(scenario)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_inlined_hooks_that_change_dtype(dynamic: bool) -> None:
    """Saved as bfloat16: gradients differ from exact ones and equal eager's with the same hooks."""
    hooks = inlineable(quantise, restore, torch.randn(2, 3))

    def scenario(compile: Compile) -> Any:
        f = compile(lambda x: x.sin().cos(), dynamic=dynamic)
        told = []
        for n in (3, 6):
            x = torch.randn(n, 4, requires_grad=True)
            with saved_tensors_hooks(*hooks):
                out = f(x)
            told.append(grad(out.sum(), x))
        return told

    with torch._functorch.config.patch(saved_tensors_hooks_filtering_mode="all"):
        same(scenario, rtol=2e-2, atol=2e-2)


def test_inlined_hooks_are_not_called_at_run_time() -> None:
    """They are part of the graphs, and switched off while the compiled function runs."""
    pack, unpack = inlineable(lambda t: t * 2, lambda t: t / 2, torch.randn(2, 3))
    calls: list[str] = []

    def noticed(graph: torch.fx.GraphModule, name: str) -> None:
        forward = graph.forward
        graph.forward = lambda *a: (calls.append(name), forward(*a))[1]  # type: ignore[method-assign]

    with torch._functorch.config.patch(saved_tensors_hooks_filtering_mode="all"):
        f = compiled(net)
        x, w = leaves()
        with saved_tensors_hooks(pack, unpack):
            f(x, w).sum().backward()
            noticed(pack, "pack")
            noticed(unpack, "unpack")
            out = f(x, w)
        grad(out, (x, w), torch.ones(3, 2))
    assert calls == []


def test_hooks_are_on_again_after_a_call_with_inlined_ones() -> None:
    hooks = inlineable(lambda t: t * 2, lambda t: t / 2, torch.randn(2, 3))
    f = compiled(net)
    x, w = leaves()
    with saved_tensors_hooks(*hooks):
        f(x, w)
        assert torch._C._autograd._saved_tensors_hooks_get_disabled_error_message() is None
    seen = []
    with saved_tensors_hooks(lambda t: seen.append(1) or t, lambda t: t):
        x.exp()
    assert seen == [1]


# How long they live


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "fn",
    [
        pytest.param(lambda x: x * x, id="input saved"),
        pytest.param(lambda x: x.exp(), id="output saved"),
        pytest.param(lambda x: x.exp().view(-1), id="view of saved"),
        pytest.param(lambda x: (x.sin().exp(), x.t()), id="alias of input"),
        pytest.param(lambda x: (lambda h: (h, h.view(-1), h * h))(x.sigmoid()), id="intermediate"),
        pytest.param(lambda x: x.t() @ x, id="views saved"),
    ],
)
def test_no_cycle_keeps_anything(fn: Callable[..., Any]) -> None:
    """With the collector off, all is gone when the last name is."""
    f = compiled(fn)
    f(torch.randn(4, 4, requires_grad=True))
    with no_collector():
        x = torch.randn(4, 4, requires_grad=True)
        h = x * 1
        out = f(h)
        outs = [out] if isinstance(out, torch.Tensor) else list(out)
        watched = [weakref.ref(t) for t in (x, h, *outs)]
        del x, h, out, outs
        assert [ref() for ref in watched] == [None] * len(watched)


def test_no_cycle_after_backward() -> None:
    f = compiled(lambda x: (x.exp(), x * x))
    with no_collector():
        x = torch.randn(4, requires_grad=True)
        a, b = f(x)
        (a + b).sum().backward()
        watched = [weakref.ref(t) for t in (x, a, b, x.grad)]
        del x, a, b
        assert [ref() for ref in watched] == [None] * 4


def test_no_cycle_of_subclasses() -> None:
    f = compiled(lambda x: (x.exp(), x * x))
    with no_collector():
        x = TwoTensor(torch.randn(4), torch.randn(4)).requires_grad_()
        outs = f(x)
        watched = [weakref.ref(t) for t in (x, x.a, *outs, outs[0].a, outs[1].b)]
        del x, outs
        assert [ref() for ref in watched] == [None] * len(watched)


def test_saved_tensors_are_freed_by_backward() -> None:
    """What only backward needed dies with it, though the output lives on."""
    f = compiled(lambda x, w: (x @ w).sin().sum())
    w = torch.randn(4, 3, requires_grad=True)
    with no_collector():
        x = torch.randn(5, 4)
        held = weakref.ref(x)
        out = f(x, w)
        del x
        out.backward()
        assert held() is None
        assert out.grad_fn is not None


def test_tangents_are_freed_during_backward() -> None:
    """Gradients come boxed, and nothing of ours holds a tangent after its last use."""
    f = compiled(lambda x: x * 2)
    x = torch.randn(4, requires_grad=True)
    with no_collector():
        out = f(x)
        tangent = torch.ones(4)
        held = weakref.ref(tangent)
        out.backward(tangent)
        del tangent
        assert held() is None


def test_saved_input_changed_afterwards_raises() -> None:
    """Eager's version error, for what is saved as it came in."""

    def scenario(compile: Compile) -> Any:
        x = torch.randn(3, requires_grad=True)
        h = x * 1
        out = compile(lambda h: h * h)(h)
        h.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()

    same(scenario)


def test_saved_output_changed_afterwards_raises() -> None:
    def scenario(compile: Compile) -> Any:
        x = torch.randn(3, requires_grad=True)
        out = compile(lambda x: x.exp())(x)
        out.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()

    same(scenario)


def test_unsaved_input_may_change() -> None:
    def scenario(compile: Compile) -> Any:
        x = torch.randn(3, requires_grad=True)
        h = x * 1
        out = compile(lambda h: h + 1)(h)
        h.add_(1)
        out.sum().backward()
        return x.grad

    same(scenario)


# Where backward runs


def test_backward_in_another_thread() -> None:
    def scenario(compile: Compile) -> Any:
        f = compile(net)
        x, w = leaves()
        out = f(x, w).sum()
        thread = threading.Thread(target=out.backward)
        thread.start()
        thread.join()
        return x.grad, w.grad

    same(scenario)


def test_backward_is_compiled_once_across_threads() -> None:
    """Many threads reach a backward that is not compiled yet; their gradients are right."""
    f = compiled(net)
    x, w = leaves()
    want = grad(net(x, w).sum(), (x, w))
    outs = [f(x, w).sum() for _ in range(8)]
    start = threading.Barrier(8)
    got: dict[int, Any] = {}

    def run(i: int) -> None:
        start.wait()
        got[i] = grad(outs[i], (x, w))

    before = torch._dynamo.utils.counters["aot_autograd"].copy()
    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(8))
    for grads in got.values():
        torch.testing.assert_close(grads, want)
    assert torch._dynamo.utils.counters["aot_autograd"] == before
    if BACKEND == "straightline":
        import straightline

        assert straightline.source(f).count("def net_backward(") == 1


def test_context_variables_reach_backward() -> None:
    """The engine stashes the caller's context; backward runs within it, in any thread."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    seen: list[str] = []

    @torch.library.custom_op("straightline_tests::look_around", mutates_args=())
    def look_around(x: torch.Tensor) -> torch.Tensor:
        seen.append(variable.get())
        return x.clone()

    look_around.register_fake(torch.empty_like)
    look_around.register_autograd(lambda ctx, g: look_around(g))

    def scenario(compile: Compile) -> Any:
        x = torch.randn(3, requires_grad=True)
        f = compile(lambda x: look_around(x) * 2)
        f(x).sum().backward()
        seen.clear()
        out = f(x).sum()
        token = variable.set("in backward")
        try:
            out.backward()
        finally:
            variable.reset(token)
        return seen[-1], variable.get()

    same(scenario)


def test_grad_mode_is_restored_after_backward() -> None:
    f = compiled(net)
    for mode in (True, False):
        x, w = leaves()
        out = f(x, w).sum()
        with torch.set_grad_enabled(mode):
            out.backward()
            assert torch.is_grad_enabled() is mode
    assert torch.is_grad_enabled()


def test_forward_called_inside_of_backward() -> None:
    """A hook that calls the compiled function again: it is re-entrant."""

    def scenario(compile: Compile) -> Any:
        f = compile(net)
        x, w = leaves()
        inner: list[torch.Tensor] = []

        def hook(_: torch.Tensor) -> None:
            with torch.enable_grad():
                a, b = x.detach().requires_grad_(), w.detach().requires_grad_()
                inner.extend(grad(f(a, b).sum(), (a, b)))

        w.register_hook(hook)
        f(x, w).sum().backward()
        return x.grad, w.grad, inner

    same(scenario)
