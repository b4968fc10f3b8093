"""Data-parallel training on one rank: Dynamo's DDP pass splits the graph at gradient buckets."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from scenario import BACKEND, Compile, same
from torch import distributed, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves


@pytest.fixture(autouse=True)
def one_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # The first bucket is 1 MiB otherwise, which would hold these small models whole.
    monkeypatch.setattr(distributed, "_DEFAULT_FIRST_BUCKET_BYTES", 1024)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    torch._dynamo.reset()
    distributed.destroy_process_group()


class Chain(nn.Module):
    """A module of our own: Dynamo compiles nothing below DDP whose frames are all torch's."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def net() -> Chain:
    return Chain(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.Tanh())))


def split() -> dict[str, Any]:
    """Buckets of one layer each, so that the pass has something to split."""
    return {"bucket_cap_mb": 64 * 64 * 4 / 2**20}


def train(module: nn.Module, call: Any, sizes: tuple[int, ...], width: int = 64) -> Any:
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    losses = []
    for n in sizes:
        loss = call(torch.randn(n, width)).pow(2).mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.detach())
    return losses, [p.detach() for p in module.parameters()]


@pytest.mark.parametrize(
    "mode", ["ddp_optimizer", "no_optimization", "python_reducer_without_compiled_forward"]
)
def test_training(mode: str) -> None:
    def scenario(compile: Compile) -> Any:
        module = DistributedDataParallel(net(), **split())
        return train(module, compile(module, fullgraph=False), (4, 4, 4))

    with torch._dynamo.config.patch(optimize_ddp=mode):
        same(scenario)


def test_the_graph_is_split() -> None:
    """Several programs, one per bucket; the first call of each sees fake tensors."""
    graphs: list[torch.fx.GraphModule] = []
    compile_graph = torch._dynamo.lookup_backend(BACKEND)
    calls: list[tuple[int, bool, Any]] = []

    def counting(graph: torch.fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
        number = len(graphs)
        graphs.append(graph)
        program = compile_graph(graph, inputs, **kwargs)

        @functools.wraps(program)
        def watched(*arguments: Any) -> Any:
            given = tree_leaves(arguments)
            fake = any(isinstance(value, FakeTensor) for value in given)
            outs = program(*arguments)
            told = [(type(out) is FakeTensor, out.shape, out.stride()) for out in outs]
            calls.append((number, fake, told))
            return outs

        return watched

    module = DistributedDataParallel(net(), **split())
    call = torch.compile(module, backend=counting)
    out = call(torch.randn(4, 64))
    assert type(out) is torch.Tensor
    out.sum().backward()
    assert len(graphs) > 1
    first = {number: told for number, fake, told in calls if fake}
    real = {number: told for number, fake, told in calls if not fake}
    assert sorted(first) == sorted(real) == list(range(len(graphs)))
    for number, told in first.items():
        assert all(is_fake for is_fake, _, _ in told)
        assert [rest for _, *rest in told] == [rest for _, *rest in real[number]]
    assert all(p.grad is not None for p in module.parameters())


def test_changing_sizes() -> None:
    def scenario(compile: Compile) -> Any:
        module = DistributedDataParallel(net(), **split())
        return train(module, compile(module, fullgraph=False, dynamic=False), (4, 6, 4))

    same(scenario)


def test_channels_last_between_splits() -> None:
    """The layout of a split's result is what the next one was compiled for."""

    def scenario(compile: Compile) -> Any:
        inner = Chain(
            *(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3)), nn.Flatten(), nn.Linear(128, 2)
        )
        inner.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # not in the stubs
        module = DistributedDataParallel(inner, bucket_cap_mb=8 * 8 * 9 * 4 / 2**20)
        call = compile(module, fullgraph=False)
        told = []
        for _ in range(2):
            x = torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last)
            out = call(x.requires_grad_())
            out.pow(2).sum().backward()
            told += [out.detach(), x.grad]
        return told, [p.grad.contiguous() for p in module.parameters()]

    same(scenario, rtol=1e-4, atol=1e-4)


def test_buffers_and_batch_norm() -> None:
    def scenario(compile: Compile) -> Any:
        inner = Chain(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 64), nn.ReLU())
        module = DistributedDataParallel(inner, **split())
        told = train(module, compile(module, fullgraph=False), (8, 8))
        return told, list(module.buffers())

    same(scenario, rtol=1e-4, atol=1e-4)


def test_a_compiled_module_wrapped_afterwards() -> None:
    def scenario(compile: Compile) -> Any:
        module = DistributedDataParallel(compile(net()))
        return train(module, module, (4, 4))

    same(scenario)


def test_no_sync() -> None:
    def scenario(compile: Compile) -> Any:
        module = DistributedDataParallel(net(), **split())
        call = compile(module, fullgraph=False)
        with module.no_sync():
            call(torch.randn(4, 64)).sum().backward()
        call(torch.randn(4, 64)).sum().backward()
        return [p.grad for p in module.parameters()]

    same(scenario)
