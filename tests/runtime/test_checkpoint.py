"""Activation checkpointing inside compiled functions and around them, selective too."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scenario import Compile, compiled, same
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)


class Block(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.up = nn.Linear(6, 12)
        self.down = nn.Linear(12, 6)
        self.dropout = dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.dropout(F.gelu(self.up(x)), self.dropout, self.training)
        return x + torch.tanh(self.down(h))


class Net(nn.Module):
    def __init__(self, how: Any, dropout: float = 0.0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(3))
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = self.how(block, x)
        return x


def plain(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return block(x)  # type: ignore[no-any-return]


def checkpointed(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(block, x, use_reentrant=False)  # type: ignore[no-any-return]


def save_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    if op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def selective(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    context = functools.partial(create_selective_checkpoint_contexts, save_products)
    return checkpoint(block, x, use_reentrant=False, context_fn=context)  # type: ignore[no-any-return]


def recompute_all(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    context = functools.partial(
        create_selective_checkpoint_contexts,
        lambda *a, **k: CheckpointPolicy.MUST_RECOMPUTE,
    )
    return checkpoint(block, x, use_reentrant=False, context_fn=context)  # type: ignore[no-any-return]


def save_listed(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    context = functools.partial(
        create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default]
    )
    return checkpoint(block, x, use_reentrant=False, context_fn=context)  # type: ignore[no-any-return]


HOWS = [plain, checkpointed, selective, recompute_all, save_listed]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("how", HOWS, ids=lambda h: h.__name__)
def test_inside(how: Any, dynamic: bool) -> None:
    def scenario(compile: Compile) -> Any:
        net = Net(how)
        call = compile(net, dynamic=dynamic)
        told = []
        for n in (2, 5):
            x = torch.randn(n, 6, requires_grad=True)
            out = call(x)
            out.pow(2).sum().backward()
            told += [out.detach(), x.grad]
        return told, [p.grad for p in net.parameters()]

    same(scenario, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", HOWS[1:], ids=lambda h: h.__name__)
def test_around(how: Any) -> None:
    """The checkpointed function is the compiled one; its forward runs again in backward."""

    def scenario(compile: Compile) -> Any:
        block = Block()
        call = compile(block)
        told = []
        for _ in range(2):
            x = torch.randn(4, 6, requires_grad=True)
            out = how(call, how(call, x))
            out.pow(2).sum().backward()
            told += [out.detach(), x.grad]
        return told, [p.grad for p in block.parameters()]

    same(scenario, rtol=1e-4, atol=1e-5)


def test_reentrant_around() -> None:
    def scenario(compile: Compile) -> Any:
        block = Block()
        call = compile(block)
        x = torch.randn(4, 6, requires_grad=True)
        out = checkpoint(call, x * 1, use_reentrant=True)
        out.sum().backward()
        return out.detach(), x.grad, [p.grad for p in block.parameters()]

    same(scenario, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", [checkpointed, selective], ids=lambda h: h.__name__)
def test_dropout_draws_the_same_mask_again(how: Any) -> None:
    """A dropout in a recomputed region: gradients are those of the mask that the output shows."""
    net = Net(how, dropout=0.5).train()
    call = compiled(net)
    weight = torch.ones(6)

    def region(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.dropout(x * w, 0.5, True) * 3

    whole = compiled(lambda x, w: checkpoint(region, x, w, use_reentrant=False))
    for _ in range(3):
        x = torch.ones(64, 6, requires_grad=True)
        out = whole(x, weight)
        out.sum().backward()
        torch.testing.assert_close(x.grad, out.detach())
        assert 0 < (out == 0).float().mean() < 1
    y = torch.randn(4, 6, requires_grad=True)
    call(y).sum().backward()
    assert y.grad is not None


def test_dropout_recomputed_around() -> None:
    region = compiled(lambda x: F.dropout(x * 2, 0.5, True) * x)
    for _ in range(3):
        x = torch.ones(64, requires_grad=True)
        out = checkpoint(region, x, use_reentrant=False)
        out.sum().backward()
        torch.testing.assert_close(x.grad, out.detach() * 2)


class CountProducts(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            self.count += 1
        return func(*args, **(kwargs or {}))


def test_policy_says_what_runs_again() -> None:
    """A chain of products: all again under checkpointing, none when products are saved."""

    def chain(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return ((x @ a).sin() @ b).sin()

    counts = {}
    for name, how in {
        "plain": None,
        "again": {},
        "saved": {
            "context_fn": functools.partial(create_selective_checkpoint_contexts, save_products)
        },
    }.items():

        def run(x: Any, a: Any, b: Any, how: Any = how) -> torch.Tensor:
            if how is None:
                return chain(x, a, b)
            return checkpoint(chain, x, a, b, use_reentrant=False, **how)  # type: ignore[no-any-return]

        torch._dynamo.reset()
        f = compiled(run)
        args = [torch.randn(4, 4, requires_grad=True) for _ in range(3)]
        f(*args).sum().backward()
        out = f(*args).sum()
        with CountProducts() as mode:
            out.backward()
        counts[name] = mode.count
    assert counts["plain"] == 4
    assert counts["again"] > counts["saved"]
    assert counts["saved"] == counts["plain"]


def test_nested_checkpoints() -> None:
    def scenario(compile: Compile) -> Any:
        def inner(x: torch.Tensor) -> torch.Tensor:
            return checkpoint(lambda t: t.sin().exp(), x, use_reentrant=False) * x  # type: ignore[no-any-return]

        def outer(x: torch.Tensor) -> torch.Tensor:
            return checkpoint(inner, x.cos(), use_reentrant=False).tanh()  # type: ignore[no-any-return]

        x = torch.randn(5, requires_grad=True)
        out = compile(outer)(x)
        out.sum().backward()
        return out.detach(), x.grad

    same(scenario)


def test_checkpoint_and_graph_kept() -> None:
    def scenario(compile: Compile) -> Any:
        block = Block()
        call = compile(lambda x: checkpointed(block, x))
        x = torch.randn(4, 6, requires_grad=True)
        out = call(x).sum()
        return [torch.autograd.grad(out, x, retain_graph=True) for _ in range(2)]

    same(scenario, rtol=1e-4, atol=1e-5)


def test_early_stop_and_partial_gradients() -> None:
    def scenario(compile: Compile) -> Any:
        call = compile(lambda x, y: (x.sin() * y, y.exp()))
        x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        first, _ = checkpoint(call, x, y, use_reentrant=False)
        return torch.autograd.grad(first.sum(), x)

    same(scenario)


def test_two_results_of_a_checkpoint() -> None:
    def scenario(compile: Compile) -> Any:
        f = compile(lambda x: checkpoint(lambda t: (t.sin(), t.cos() * t), x, use_reentrant=False))
        x = torch.randn(3, requires_grad=True)
        a, b = f(x)
        (a * b).sum().backward()
        return a.detach(), b.detach(), x.grad

    same(scenario)
