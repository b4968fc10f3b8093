"""What a compiled backward is given: missing, expanded, strided, wrapped and wrong tangents."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scenario import Compile, compiled, same
from subclasses import Coercing
from torch.autograd import grad
from torch.testing._internal.two_tensor import TwoTensor


def value(gradient: torch.Tensor | None, of: torch.Tensor) -> torch.Tensor:
    """A gradient as a value: packed, and none is zero.

    A compiled function is one node of the autograd graph, so a leaf that only its other outputs
    depend on may get zeros where eager leaves None.
    """
    return torch.zeros_like(of).detach() if gradient is None else gradient.contiguous()


in_shapes = pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])


def three(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (x * y).sin(), x.exp() + y, y * 3


# Missing ones


@in_shapes
@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 2), (0, 1, 2)], ids=str)
def test_only_some_outputs_are_differentiated(which: tuple[int, ...], dynamic: bool) -> None:
    def scenario(compile: Compile) -> Any:
        f = compile(three, dynamic=dynamic)
        told = []
        for n in (3, 5):
            x, y = torch.randn(n, requires_grad=True), torch.randn(n, requires_grad=True)
            outs = f(x, y)
            torch.autograd.backward([outs[i] for i in which], [torch.randn(n) for _ in which])
            told.append((outs, value(x.grad, x), value(y.grad, y)))
        return told

    same(scenario)


def test_each_output_differentiated_after_the_other() -> None:
    def scenario(compile: Compile) -> Any:
        x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        outs = compile(three)(x, y)
        return [value(grad(out.sum(), y, retain_graph=True)[0], y) for out in outs]

    same(scenario)


def test_outputs_that_are_dropped() -> None:
    def scenario(compile: Compile) -> Any:
        x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        compile(three)(x, y)[1].sum().backward()
        return x.grad, y.grad

    same(scenario)


@pytest.mark.parametrize("depth", [1, 2])
def test_missing_tangent_of_a_subclass(depth: int) -> None:
    """Eager's zero is no matter of type; torch's backends raise here."""

    def make() -> torch.Tensor:
        t = torch.randn(3)
        for _ in range(depth):
            t = TwoTensor(t, t + 1)
        return t.requires_grad_()

    def scenario(compile: Compile) -> Any:
        x, y = make(), make()
        outs = compile(three)(x, y)
        outs[1].backward(torch.ones_like(outs[1].detach()))
        return x.grad, y.grad

    same(scenario)


def test_missing_tangent_of_a_plain_output_beside_a_subclass() -> None:
    def scenario(compile: Compile) -> Any:
        x = TwoTensor(torch.randn(3), torch.randn(3)).requires_grad_()
        p = torch.randn(3, requires_grad=True)
        outs = compile(lambda x, p: (x * p, p.sin()))(x, p)
        outs[0].backward(torch.ones_like(outs[0].detach()))
        return x.grad, p.grad

    same(scenario)


def test_missing_tangent_of_a_mutated_input() -> None:
    def scenario(compile: Compile) -> Any:
        def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            x.add_(y)
            return y * 2

        y = torch.randn(3, requires_grad=True)
        x = torch.randn(3, requires_grad=True)
        out = compile(f)(x * 1, y)
        out.sum().backward()
        return value(x.grad, x), y.grad

    same(scenario)


def test_missing_tangent_of_an_aliased_intermediate() -> None:
    def scenario(compile: Compile) -> Any:
        def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            h = x.sin()
            return h.view(-1), h.t(), x * 2

        x = torch.randn(3, 2, requires_grad=True)
        flat, across, double = compile(f)(x)
        return [grad(out.sum(), x, retain_graph=True)[0] for out in (flat, across, double)]

    same(scenario)


def test_outputs_that_take_no_gradient() -> None:
    """Integer and detached outputs have no tangent at all; nothing is made up for them."""

    def scenario(compile: Compile) -> Any:
        def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x.argmax(), x.detach() * 2, x.sin(), (x > 0), x.round().long()

        x = torch.randn(5, requires_grad=True)
        outs = compile(f)(x)
        outs[2].sum().backward()
        return [out.requires_grad for out in outs], outs, x.grad

    same(scenario)


def test_no_zeros_are_made_for_outputs_that_take_no_gradient() -> None:
    """`_materialize_non_diff_grads` is off: a large integer output costs nothing in backward."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Sizes(TorchDispatchMode):
        largest = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                self.largest = max(self.largest, out.untyped_storage().nbytes())
            return out

    f = compiled(lambda x: (torch.arange(100_000) + x.long().sum(), x.sin()))
    x = torch.randn(5, requires_grad=True)
    f(x)[1].sum().backward()
    _, out = f(x)
    with Sizes() as sizes:
        out.sum().backward()
    assert sizes.largest <= 5 * 4


# Layout


TANGENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda out: torch.randn(out.shape),
    "channels_last": lambda out: torch.randn(out.shape).to(memory_format=torch.channels_last),
    "transposed": lambda out: torch.randn(out.shape).transpose(1, 3).contiguous().transpose(1, 3),
    "expanded": lambda out: torch.randn(1).expand(out.shape),
    "broadcast rows": lambda out: torch.randn(out.shape[-1]).expand(out.shape),
    "strided": lambda out: torch.randn(*out.shape[:-1], out.shape[-1] * 2)[..., ::2],
    "offset": lambda out: torch.randn(out.numel() + 3)[3:].view(out.shape),
    "zeros": lambda out: torch.zeros(1).expand(out.shape),
    "negative view": lambda out: torch._neg_view(torch.randn(out.shape)),
}


@in_shapes
@pytest.mark.parametrize("traced", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("kind", list(TANGENTS))
def test_layouts(kind: str, traced: torch.memory_format, dynamic: bool) -> None:
    """The backward is traced for the output's own layout; any other comes too."""

    def scenario(compile: Compile) -> Any:
        def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.conv2d(x, w, padding=1).relu() * 2

        call = compile(f, dynamic=dynamic)
        told = []
        for n in (2, 3):
            x = torch.randn(n, 4, 6, 5).to(memory_format=traced).requires_grad_()
            w = torch.randn(3, 4, 3, 3, requires_grad=True)
            out = call(x, w)
            out.backward(TANGENTS[kind](out))
            told.append((out.detach(), x.grad, w.grad))
        return told

    same(scenario, rtol=1e-4, atol=1e-5)


def test_layouts_alternate_in_one_program() -> None:
    def scenario(compile: Compile) -> Any:
        f = compile(lambda x: x.sin() * 2)
        told = []
        for kind in [*TANGENTS, *TANGENTS]:
            x = torch.randn(2, 3, 4, 5, requires_grad=True)
            out = f(x)
            out.backward(TANGENTS[kind](out))
            told.append(x.grad)
        return told

    same(scenario)


def test_gradient_of_a_sum() -> None:
    def scenario(compile: Compile) -> Any:
        x = torch.randn(3, 4, requires_grad=True)
        compile(lambda x: (x.t() @ x).tanh())(x).sum().backward()
        return x.grad

    same(scenario)


def test_view_that_needs_a_contiguous_tangent() -> None:
    """Traced code calls `view` on the tangent where the traced one allowed it."""

    def scenario(compile: Compile) -> Any:
        f = compile(lambda x: (x.reshape(4, 6) * 2).view(2, 2, 6))
        x = torch.randn(24, requires_grad=True)
        out = f(x)
        out.backward(torch.randn(6, 2, 2).permute(1, 2, 0))
        return x.grad

    same(scenario)


def test_a_tangent_is_not_written_to() -> None:
    f = compiled(lambda x: (x * 2).relu())
    x = torch.randn(4, requires_grad=True)
    tangent = torch.ones(4)
    version = tangent._version
    f(x).backward(tangent)
    assert torch.equal(tangent, torch.ones(4))
    assert tangent._version == version
    assert x.grad is not tangent


# Types


def test_subclass_tangent_for_a_plain_output_is_coerced() -> None:
    def scenario(compile: Compile) -> Any:
        x = torch.randn(3, requires_grad=True)
        out = compile(lambda x: x * 2)(x)
        tangent = Coercing({"value": torch.ones(3)})
        (got,) = grad(out, x, tangent)
        return got.value if isinstance(got, Coercing) else got

    same(scenario)


def test_subclass_tangent_that_cannot_be_coerced() -> None:
    """A plain output with a TwoTensor tangent: the backward was traced for a plain one."""
    x = torch.randn(3, requires_grad=True)
    out = compiled(lambda x: x * 2)(x)
    with pytest.raises(RuntimeError, match="TwoTensor"):
        out.backward(TwoTensor(torch.ones(3), torch.ones(3)))


def pair() -> torch.Tensor:
    return TwoTensor(torch.randn(3), torch.randn(3)).requires_grad_()


def test_plain_tangent_for_a_subclass_output() -> None:
    """Eager's gradient or a clear error, which says which output, and where it was made."""
    x, y = pair(), pair()

    def product_and_sum(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * y, x + y

    outs = compiled(product_and_sum)(x, y)
    with pytest.raises(RuntimeError) as caught:
        torch.autograd.backward(outs, [TwoTensor(torch.ones(3), torch.ones(3)), torch.ones(3)])
    said = str(caught.value)
    assert "TwoTensor" in said
    assert re.search(r"output (at index )?1\b", said), said
    assert "test_tangents.py" in said
    assert "return x * y, x + y" in said


def test_after_a_tangent_error_the_program_still_works() -> None:
    f = compiled(lambda x: x * 2)
    x = pair()
    with contextlib.suppress(RuntimeError):
        f(x).backward(torch.ones(3))
    x.grad = None
    f(x).backward(TwoTensor(torch.ones(3), torch.full((3,), 2.0)))
    assert x.grad is not None
    assert torch.equal(x.grad.a, torch.full((3,), 2.0))
    assert torch.equal(x.grad.b, torch.full((3,), 4.0))


def test_wrong_shape_of_a_tangent() -> None:
    """As in eager, the autograd engine refuses it."""

    def scenario(compile: Compile) -> Any:
        x = torch.randn(3, requires_grad=True)
        out = compile(lambda x: x * 2)(x)
        with pytest.raises(RuntimeError) as caught:
            out.backward(torch.ones(4))
        return str(caught.value)

    same(scenario)


def test_tangent_of_another_dtype() -> None:
    """The engine casts it before the backward sees it."""

    def scenario(compile: Compile) -> Any:
        x = torch.randn(3, requires_grad=True)
        compile(lambda x: x * 2)(x).sum(dtype=torch.float64).backward()
        return x.grad

    same(scenario)


# Partial gradients, and graphs kept


@in_shapes
def test_partial_gradients(dynamic: bool) -> None:
    def scenario(compile: Compile) -> Any:
        f = compile(three, dynamic=dynamic)
        told: list[torch.Tensor | None] = []
        for n in (3, 5):
            x, y = torch.randn(n, requires_grad=True), torch.randn(n, requires_grad=True)
            outs = f(x, y)
            told += grad(outs[0].sum(), x, retain_graph=True)
            told += grad(outs[0].sum() + outs[1].sum(), y, retain_graph=True)
            (unused,) = grad(outs[2].sum(), x, allow_unused=True, retain_graph=True)
            told.append(value(unused, x))
            outs[1].sum().backward(inputs=[y])
            told += [x.grad, y.grad]
        return told

    same(scenario)


def test_gradient_of_an_unused_input() -> None:
    def scenario(compile: Compile) -> Any:
        x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        out = compile(lambda x, y: (x * 2, y.detach() + 1))(x, y)[0]
        return grad(out.sum(), (x, y), allow_unused=True)

    same(scenario)


def test_input_that_takes_no_gradient() -> None:
    def scenario(compile: Compile) -> Any:
        x, y = torch.randn(3, requires_grad=True), torch.randn(3)
        out = compile(lambda x, y: (x * y).exp())(x, y)
        out.sum().backward()
        return x.grad, y.grad

    same(scenario)


def test_leaf_used_twice() -> None:
    def scenario(compile: Compile) -> Any:
        x = torch.randn(3, requires_grad=True)
        f = compile(lambda a, b: a * b + b)
        f(x, x).sum().backward()
        f(x, x.detach()).sum().backward()
        return x.grad

    same(scenario)


def test_graph_kept_for_a_second_backward() -> None:
    """Twice with `retain_graph`, and again once it is freed, which raises as eager does."""

    def scenario(compile: Compile) -> Any:
        x = torch.randn(3, 4, requires_grad=True)
        out = compile(lambda x: (x.sin() @ x.cos().t()).exp())(x).sum()
        out.backward(retain_graph=True)
        first = x.grad.clone()
        out.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time") as e:
            out.backward()
        return first, x.grad, type(e.value)

    same(scenario)


@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
def test_graph_that_saved_nothing_is_freed_too(shape: tuple[int, ...]) -> None:
    def scenario(compile: Compile) -> Any:
        x = torch.randn(3, requires_grad=True)
        out = compile(lambda x: (x * 2).sum() if shape == () else x * 2)(x)
        out.backward(torch.ones(shape), retain_graph=True)
        out.backward(torch.ones(shape))
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            out.backward(torch.ones(shape))
        return x.grad

    same(scenario)


def test_graph_freed_first_then_kept() -> None:
    """Whether to reuse saved buffers is decided per call, not by the first backward seen."""

    def scenario(compile: Compile) -> Any:
        f = compile(lambda x: ((x * 2).relu() + x.exp()).softmax(-1) @ x.t())
        told = []
        for keep in (False, True, False, True):
            x = torch.randn(3, 4, requires_grad=True)
            loss = f(x).pow(2).sum()
            for again in range(2 if keep else 1):
                loss.backward(retain_graph=keep and not again)
            told.append(x.grad)
        return told

    same(scenario)


def test_no_error_about_donated_buffers() -> None:
    """torch's own error under `retain_graph` does not exist here."""
    with torch._functorch.config.patch(donated_buffer=True):

        def scenario(compile: Compile) -> Any:
            f = compile(lambda x, w: (x @ w).relu().exp().sum())
            x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)
            told = []
            for _ in range(2):
                loss = f(x, w)
                told += [grad(loss, (x, w), retain_graph=True) for _ in range(3)]
            return told

        same(scenario)


def test_gradients_of_two_calls_do_not_mix() -> None:
    def scenario(compile: Compile) -> Any:
        f = compile(lambda x: (x * x.sin()).sum())
        xs = [torch.randn(4, requires_grad=True) for _ in range(3)]
        losses = [f(x) for x in xs]
        for i in (2, 0, 1):
            losses[i].backward()
        return [x.grad for x in xs]

    same(scenario)


def test_hooks_of_the_user_see_the_gradients() -> None:
    def scenario(compile: Compile) -> Any:
        x = torch.randn(3, requires_grad=True)
        h = x * 2
        seen: list[torch.Tensor] = []
        h.register_hook(lambda g: seen.append(g) or g * 3)
        out = compile(lambda h: h.sin())(h)
        out.register_hook(lambda g: g + 1)
        out.sum().backward()
        return seen, x.grad

    same(scenario)


def test_hook_gives_another_layout() -> None:
    def scenario(compile: Compile) -> Any:
        x = torch.randn(3, 4, requires_grad=True)
        out = compile(lambda x: x.sin())(x)
        out.register_hook(lambda g: torch.ones(4, 3).t() * g)
        out.sum().backward()
        return x.grad

    same(scenario)


# What does without a gradient


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("subclass", [False, True])
def test_what_no_used_output_depends_on_has_no_gradient(used: Any, subclass: bool) -> None:
    """None, not zeros, as in eager: an optimiser leaves such a parameter alone."""

    def make() -> torch.Tensor:
        t = torch.randn(3)
        return (TwoTensor(t, t + 1) if subclass else t).requires_grad_()

    def scenario(compile: Compile) -> Any:
        x, y, z = make(), make(), make()
        outs = compile(lambda x, y, z: (x.sin() * 2, y.exp() + x, z * 3))(x, y, z)
        sum(outs[i].sum() for i in used).backward()
        return [t.grad is None for t in (x, y, z)], [t.grad for t in (x, y, z)]

    same(scenario)


class Stop(torch.autograd.Function):
    """Gives no gradient at all to what is below it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> None:
        return None


@pytest.mark.parametrize("again", [False, True], ids=["once", "create_graph"])
@pytest.mark.parametrize("subclass", [False, True], ids=["plain", "subclass"])
@pytest.mark.parametrize("outputs", [1, 2])
def test_no_gradient_arrives_at_all(outputs: int, subclass: bool, again: bool) -> None:
    """As in eager nothing is left in the leaves: zeros would make an optimiser move them."""

    def make() -> torch.Tensor:
        t = torch.randn(3)
        return (TwoTensor(t, t + 1) if subclass else t).requires_grad_()

    def scenario(compile: Compile) -> Any:
        x, y = make(), make()
        outs = compile(lambda x, y: ((x * y).sin(), y.exp() + x)[:outputs])(x, y)
        sum(Stop.apply(out).sum() for out in outs).backward(create_graph=again)
        return x.grad, y.grad

    same(scenario)


def test_no_gradient_arrives_at_a_formula_that_needs_none() -> None:
    """A custom function is called all the same, with zeros."""

    class Ones(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            return torch.ones(3)

    def scenario(compile: Compile) -> Any:
        x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        outs = compile(lambda x, y: (Ones.apply(x), y.sin()))(x, y)
        sum(Stop.apply(out).sum() for out in outs).backward()
        return x.grad, y.grad

    same(scenario)


def test_one_test_is_all_that_a_gradient_which_is_not_missing_costs() -> None:
    call = compiled(lambda x, y: (x * y).sin())
    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    call(x, y).sum().backward()
    import straightline

    text = straightline.source(call).split("| backward |")[1].split("grads.clear()")[1]
    assert text.count(" is None") == 1
    assert "zeros" not in text


def test_sparse_gradient() -> None:
    def scenario(compile: Compile) -> Any:
        told = []
        for values in (torch.randn(5, 3), torch.randn(3, 5).t()):
            x = values.requires_grad_()
            out = compile(lambda x: x * 2)(x)
            rows = torch.nn.functional.embedding(torch.tensor([1, 2, 2]), out, sparse=True)
            rows.pow(2).sum().backward()
            told.append(x.grad.to_dense().contiguous())  # eager's is sparse
        return told

    same(scenario)


def test_leaf_made_in_inference_mode() -> None:
    """It has no version to remember."""

    def scenario(compile: Compile) -> Any:
        with torch.inference_mode():
            x = torch.ones(3, requires_grad=True)
        p = torch.randn(3, requires_grad=True)
        out = compile(lambda x, p: x * 2 + p)(x, p)
        out.sum().backward()
        return out, x.grad, p.grad

    same(scenario)
