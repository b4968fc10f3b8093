"""Programs that between them have every duty a CPU can have; prints what is generated for them.

`test_seen` runs it in processes of its own, to look at traces and logs and to compare what is
printed.
"""

from __future__ import annotations

from typing import Any

import torch
import torch._functorch.config
from torch.testing._internal.two_tensor import TwoTensor

import straightline


def training(x: torch.Tensor, w: torch.Tensor, running: torch.Tensor) -> tuple[torch.Tensor, ...]:
    running.mul_(0.5).add_(x.mean(0))
    h = x @ w
    return h.relu(), x.t()


def merged(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.mul_(2)
    return a + b


def product(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return a * w


def asserted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ w


def second(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.GELU(), torch.nn.Linear(8, 2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).softmax(-1)


def run() -> list[str]:
    """Call everything; what was generated, without the guards, which name objects by address."""
    torch.manual_seed(0)
    x, w = torch.randn(3, 3), torch.randn(3, 3, requires_grad=True)
    functions: tuple[Any, ...] = (training, merged, product, asserted, second)
    compiled = {f: straightline.compile(f) for f in functions}
    compiled[training](x, w, torch.zeros(3) * w.sum())[0].sum().backward()
    base = torch.zeros(6)
    compiled[merged](base[:4], base[2:])
    compiled[merged](x, x)
    two = TwoTensor(torch.randn(3), torch.randn(3)).requires_grad_()
    compiled[product](two, two.detach()).sum().backward()
    with torch._functorch.config.patch(debug_assert=True):
        compiled[asserted](x, w)
    y = torch.randn(3, requires_grad=True)
    (gradient,) = torch.autograd.grad(compiled[second](y).sum(), y, create_graph=True)
    gradient.sum().backward()
    net = straightline.compile(Net())
    for rows in (3, 5):
        net(torch.randn(rows, 4)).sum().backward()
    sources = [straightline.source(f) for f in (*compiled.values(), net)]
    return [line for text in sources for line in text.splitlines() if "# when " not in line[:7]]


if __name__ == "__main__":
    print("\n".join(run()))
