"""Modules, optimisers, subclasses and gradients of gradients, as scenarios that run twice."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scenario import Compile, same
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.testing._internal.two_tensor import TwoTensor

Build = Callable[[], nn.Module]


def train(compile: Compile, build: Build, *inputs: Tensor, steps: int = 2) -> Any:
    """Some steps of gradient descent: outputs, gradients of all, final parameters and buffers."""
    torch.manual_seed(5)
    module = build()
    run = compile(module)
    seen: list[Any] = []
    for _ in range(steps):
        args = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
        out = run(*args)
        first = out
        while not isinstance(first, Tensor):
            first = first[0]
        (first * torch.linspace(0, 1, first.numel()).view(first.shape)).sum().backward()
        seen.append((first.detach(), [a.grad for a in args]))
        with torch.no_grad():
            for p in module.parameters():
                if p.grad is not None:
                    seen.append(p.grad.clone())
                    p.sub_(p.grad, alpha=0.1)
                    p.grad = None
    return seen, dict(module.state_dict())


def tied() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    net[2].weight = net[0].weight
    return net


class Buffered(nn.Module):
    count: Tensor
    mean: Tensor
    hidden: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("hidden", torch.ones(3), persistent=False)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        self.hidden = self.hidden * 2
        return (x - self.mean) * self.scale + self.hidden


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
        self.named = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()})
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(3)) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.named["b"](layer(x)) * self.weights[0]
        return x + self.weights[1]


def hooked(register: Callable[[Any], Any]) -> Build:
    def build() -> nn.Module:
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        register(net)
        return net

    return build


def wrapped(wrap: Callable[..., nn.Module], *args: Any, **kwargs: Any) -> Build:
    return lambda: wrap(nn.Linear(3, 2), *args, **kwargs)


def frozen() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    net[0].requires_grad_(False)
    return net


def pruned() -> nn.Module:
    layer = nn.Linear(3, 2)
    prune.l1_unstructured(layer, "weight", 0.5)
    return layer


R = lambda *shape: torch.randn(shape)  # noqa: E731
I = lambda high, *shape: torch.randint(0, high, shape)  # noqa: E731, E741

MODULES: dict[str, tuple[Build, tuple[Tensor, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), (R(4, 3),)),
    "tied weights": (tied, (R(4, 3),)),
    "buffers": (Buffered, (R(4, 3),)),
    "lists of modules": (Listed, (R(4, 3),)),
    "frozen layer": (frozen, (R(4, 3),)),
    "forward hook": (
        hooked(lambda m: m[0].register_forward_hook(lambda m, i, o: o * 2)),
        (R(4, 3),),
    ),
    "forward pre-hook": (
        hooked(lambda m: m[2].register_forward_pre_hook(lambda m, i: (i[0] + 1,))),
        (R(4, 3),),
    ),
    "hook with keywords": (
        hooked(lambda m: m.register_forward_hook(lambda m, i, k, o: o + 1, with_kwargs=True)),
        (R(4, 3),),
    ),
    "hook on a parameter": (
        hooked(lambda m: m[0].weight.register_hook(lambda g: g * 4)),
        (R(4, 3),),
    ),
    "weight norm": (wrapped(parametrizations.weight_norm), (R(4, 3),)),
    "spectral norm": (wrapped(parametrizations.spectral_norm), (R(4, 3),)),
    "orthogonal": (lambda: parametrizations.orthogonal(nn.Linear(3, 3)), (R(4, 3),)),
    "old weight norm": (wrapped(nn.utils.weight_norm), (R(4, 3),)),
    "pruned": (pruned, (R(4, 3),)),
    "batch norm 1d": (lambda: nn.BatchNorm1d(3), (R(4, 3),)),
    "batch norm 2d": (lambda: nn.BatchNorm2d(3), (R(2, 3, 4, 4),)),
    "batch norm in evaluation": (lambda: nn.BatchNorm1d(3).eval(), (R(4, 3),)),
    "instance norm with statistics": (
        lambda: nn.InstanceNorm1d(3, affine=True, track_running_stats=True),
        (R(2, 3, 5),),
    ),
    "sync of group and layer norm": (
        lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.LayerNorm(5)),
        (R(2, 4, 5),),
    ),
    "embedding": (lambda: nn.Embedding(5, 3, padding_idx=0), (I(5, 4, 2),)),
    "embedding by frequency": (
        lambda: nn.Embedding(5, 3, scale_grad_by_freq=True),
        (I(5, 4),),
    ),
    "embedding bag": (lambda: nn.EmbeddingBag(5, 3, mode="max"), (I(5, 4, 2),)),
    "conv net": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(True), nn.MaxPool2d(2), nn.Flatten()),
        (R(2, 2, 6, 6),),
    ),
    "conv transpose": (lambda: nn.ConvTranspose2d(2, 3, 3, stride=2), (R(1, 2, 4, 4),)),
    "conv channels last": (
        lambda: nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last),  # type: ignore[call-overload]
        (R(2, 2, 6, 6),),
    ),
    "lstm cell": (lambda: nn.LSTMCell(3, 4), (R(2, 3),)),
    "gru cell": (lambda: nn.GRUCell(3, 4), (R(2, 3),)),
    "lstm": (lambda: nn.LSTM(3, 4, 2, batch_first=True), (R(2, 5, 3),)),
    "gru both ways": (lambda: nn.GRU(3, 4, bidirectional=True), (R(5, 2, 3),)),
    "rnn": (lambda: nn.RNN(3, 4, nonlinearity="relu"), (R(5, 2, 3),)),
    "lstm with projection": (lambda: nn.LSTM(3, 4, proj_size=2), (R(5, 2, 3),)),
    "multi-head attention": (
        lambda: nn.MultiheadAttention(4, 2, batch_first=True),
        (R(2, 3, 4), R(2, 3, 4), R(2, 3, 4)),
    ),
    "transformer encoder": (
        lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True),
        (R(2, 3, 4),),
    ),
    "transformer decoder": (
        lambda: nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0, norm_first=True),
        (R(3, 2, 4), R(5, 2, 4)),
    ),
    "dropouts": (
        lambda: nn.Sequential(nn.Dropout(0.3), nn.Linear(3, 3), nn.Dropout1d(0.2)),
        (R(2, 4, 3),),
    ),
    "pixel shuffle and upsample": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 1), nn.PixelShuffle(2), nn.Upsample(scale_factor=2)),
        (R(1, 1, 3, 3),),
    ),
    "bilinear": (lambda: nn.Bilinear(3, 2, 4), (R(4, 3), R(4, 2))),
    "double": (lambda: nn.Linear(3, 2).double(), (R(4, 3).double(),)),
    "bfloat16": (lambda: nn.Linear(3, 2).bfloat16(), (R(4, 3).bfloat16(),)),
    "log softmax": (lambda: nn.Sequential(nn.Linear(3, 4), nn.LogSoftmax(1)), (R(4, 3),)),
}


@pytest.mark.parametrize("name", MODULES)
def test_module(name: str) -> None:
    build, inputs = MODULES[name]
    with torch._dynamo.config.patch(allow_rnn=True):
        same(lambda compile: train(compile, build, *inputs), rtol=1e-4, atol=1e-5)


# --- optimisers -------------------------------------------------------------------------------

OPTIMISERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.1),
    "SGD, momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.1),
    "Adam": lambda p: torch.optim.Adam(p, 0.1),
    "Adam, one by one": lambda p: torch.optim.Adam(p, 0.1, foreach=False),
    "AdamW, amsgrad": lambda p: torch.optim.AdamW(p, 0.1, amsgrad=True),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.1),
    "Adamax": lambda p: torch.optim.Adamax(p, 0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.1, centered=True, momentum=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "ASGD": lambda p: torch.optim.ASGD(p, 0.1),
    "Rprop": lambda p: torch.optim.Rprop(p, 0.1),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_optimiser(name: str) -> None:
    def steps(compile: Compile) -> Any:
        torch.manual_seed(2)
        params = [torch.randn(3, 2, requires_grad=True), torch.randn(4, requires_grad=True)]
        optimiser = OPTIMISERS[name](params)
        step = compile(lambda: optimiser.step(), fullgraph=False)
        for _ in range(3):
            for p in params:
                p.grad = torch.randn_like(p)
            step()
        return params, [list(s.values()) for s in optimiser.state.values()]

    same(steps)


# --- subclasses -------------------------------------------------------------------------------

SUBCLASS: dict[str, Callable[..., Any]] = {
    "pointwise": lambda x: x.sin() * 2,
    "views": lambda x: (x.t(), x * 2, x.view(-1)),
    "views of an intermediate": lambda x: (y := x * 2, y[0], y.t()),
    "reduction": lambda x: x.sum(0) + x.mean(),
    "product": lambda x: (x @ x.t()).relu(),
    "itself": lambda x: (x, x + 1),
    "detached": lambda x: (x.detach() * 2, x * 3),
    "with a plain one": lambda x: x + torch.ones(3),
}


@pytest.mark.parametrize("name", SUBCLASS)
def test_two_tensor(name: str) -> None:
    def run(compile: Compile) -> Any:
        x = TwoTensor(torch.randn(4, 3), torch.randn(4, 3)).requires_grad_()
        out = compile(SUBCLASS[name])(x)
        outs = out if isinstance(out, tuple) else (out,)
        sum(o.sum() for o in outs if o.grad_fn is not None).backward()  # type: ignore[union-attr]
        return outs, x.grad

    same(run)


def test_two_tensor_written() -> None:
    def run(compile: Compile) -> Any:
        x = TwoTensor(torch.randn(4, 3), torch.randn(4, 3))

        def fn(x: Tensor) -> Tensor:
            x.mul_(2)
            return x + 1

        return compile(fn)(x), x

    same(run)


def test_two_tensor_parameters() -> None:
    def run(compile: Compile) -> Any:
        layer = nn.Linear(3, 2)
        layer.weight = nn.Parameter(TwoTensor(layer.weight.detach(), layer.weight.detach() * 2))
        out = compile(layer)(torch.ones(4, 3))
        out.sum().backward()
        return out, layer.weight.grad, layer.bias.grad

    same(run)


def test_jagged() -> None:
    def run(compile: Compile) -> Any:
        rows = [torch.randn(n, 3, requires_grad=True) for n in (2, 4, 1)]
        x = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        out = compile(lambda t: F.relu(t) * 2 + t.sin())(x)
        out.values().sum().backward()
        return out.values(), [r.grad for r in rows]

    same(run)


# --- objects, recompilation, gradients of gradients -------------------------------------------


class Holder:
    def __init__(self) -> None:
        self.w = torch.randn(3, requires_grad=True)
        self.calls = 0
        self.last: Tensor | None = None

    def method(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = x * self.w
        return self.last.sum()

    @property
    def doubled(self) -> Tensor:
        return self.w * 2

    @classmethod
    def of_class(cls, x: Tensor) -> Tensor:
        return x * 3

    def __call__(self, x: Tensor) -> Tensor:
        return x + self.doubled


def test_method() -> None:
    def run(compile: Compile) -> Any:
        h = Holder()
        out = compile(h.method)(torch.ones(3))
        out.backward()
        return out, h.w.grad, h.calls, h.last

    same(run)


def test_callable_object() -> None:
    def run(compile: Compile) -> Any:
        h = Holder()
        out = compile(h.__call__)(torch.ones(3))
        out.sum().backward()
        return out, h.w.grad, compile(Holder.of_class)(torch.ones(2))

    same(run)


def test_recompiles_for_types_shapes_and_numbers() -> None:
    def run(compile: Compile) -> Any:
        f = compile(lambda x, n: x * n + x.shape[-1])
        made = [f(torch.ones(3), 2), f(torch.ones(4), 2), f(torch.ones(5, 2), 3.5)]
        made += [f(torch.ones(3, dtype=torch.float64), 2), f(torch.ones(3, requires_grad=True), 4)]
        return made, [f(torch.arange(k), k) for k in range(3, 7)]

    same(run)


def test_recompiles_for_modes() -> None:
    def run(compile: Compile) -> Any:
        net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
        f = compile(net)
        x = torch.randn(4, 3)
        made = [f(x)]
        net.eval()
        made.append(f(x))
        with torch.no_grad():
            made.append(f(x))
        net.train()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            made.append(f(x))
        return made, dict(net.state_dict())

    same(run, rtol=1e-3, atol=1e-4)


def test_module_changes_between_calls() -> None:
    def run(compile: Compile) -> Any:
        net: Any = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        f = compile(net)
        x = torch.randn(2, 3)
        made = [f(x)]
        net[0].weight.requires_grad_(False)
        made.append(f(x))
        net.double()
        made.append(f(x.double()))
        net.load_state_dict({k: v * 2 for k, v in net.state_dict().items()})
        made.append(f(x.double()))
        net[1] = nn.Tanh()
        made.append(f(x.double()))
        return made

    same(run)


def test_deep_copy_of_a_module() -> None:
    def run(compile: Compile) -> Any:
        net = nn.Linear(3, 2)
        twin = copy.deepcopy(net)
        f, g = compile(net), compile(twin)
        x = torch.randn(4, 3)
        f(x).sum().backward()
        return f(x), g(x), net.weight.grad, twin.weight.grad

    same(run)


def test_accumulated_gradients_and_retained_graph() -> None:
    def run(compile: Compile) -> Any:
        x = torch.randn(4, requires_grad=True)
        out = compile(lambda x: (x.exp(), x.sin()))(x)
        out[0].sum().backward(retain_graph=True)
        out[0].sum().backward(retain_graph=True)
        (out[0] * out[1]).sum().backward()
        return x.grad

    same(run)


def test_grad_of_one_of_two_inputs() -> None:
    def run(compile: Compile) -> Any:
        x, y = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
        out = compile(lambda x, y: (x * y, x + 1))(x, y)
        return torch.autograd.grad(out[0].sum(), (y,), allow_unused=True)

    same(run)


def test_checkpointed_module() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.utils.checkpoint.checkpoint(self.a, x, use_reentrant=False)
            return F.dropout(self.b(x.relu()), 0.3)

    same(lambda compile: train(compile, Net, torch.ones(4, 3)))


def test_saved_tensor_hooks() -> None:
    def run(compile: Compile) -> Any:
        x = torch.randn(4, requires_grad=True)
        with torch.autograd.graph.save_on_cpu():
            out = compile(lambda x: (x.sin() * x.exp()).sum())(x)
        out.backward()
        return x.grad

    same(run)


DOUBLE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "polynomial": lambda x, w: (x**3 * w[0]).sum(),
    "product": lambda x, w: (x @ w).tanh().sum(),
    "softmax": lambda x, w: (x @ w).softmax(-1).square().sum(),
    "layer norm": lambda x, w: F.layer_norm(x @ w, (3,)).exp().sum(),
    "views": lambda x, w: (x.t()[0] * w[0, 0] ** 2).sum() + (x.view(-1) ** 3).sum(),
    "silu": lambda x, w: F.silu(x @ w).sum(),
    "cross entropy": lambda x, w: F.cross_entropy(x @ w, torch.tensor([0, 1, 2, 0])),
    "in place": lambda x, w: (y := x * 2, y.mul_(w[0]), (y**3).sum())[2],
}


@pytest.mark.parametrize("name", DOUBLE)
def test_gradient_of_a_gradient(name: str) -> None:
    def run(compile: Compile) -> Any:
        x = torch.randn(4, 3, requires_grad=True)
        w = torch.randn(3, 3, requires_grad=True)
        out = compile(DOUBLE[name])(x, w)
        (g,) = torch.autograd.grad(out, x, create_graph=True)
        (g.square().sum() + out).backward()
        return out, g, x.grad, w.grad

    same(run, rtol=1e-4, atol=1e-5)


def test_gradient_penalty_of_a_network() -> None:
    def run(compile: Compile) -> Any:
        net = nn.Sequential(nn.Linear(3, 5), nn.SiLU(), nn.Linear(5, 1))
        f = compile(net)
        for _ in range(2):
            x = torch.randn(4, 3, requires_grad=True)
            (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
            ((g.norm(dim=1) - 1) ** 2).mean().backward()
        return [p.grad for p in net.parameters()]

    same(run, rtol=1e-4, atol=1e-5)


def test_many_calls_before_their_backwards() -> None:
    def run(compile: Compile) -> Any:
        w = torch.randn(3, requires_grad=True)
        f = compile(lambda x: (F.dropout(x * w, 0.5)).sum())
        outs = [f(torch.full((3,), float(i))) for i in range(4)]
        for out in reversed(outs):
            out.backward()
        return outs, w.grad

    same(run)
