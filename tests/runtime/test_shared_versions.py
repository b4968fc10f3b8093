"""A write to an output after the call is noticed wherever backward keeps the output's memory.

The graph makes such an output as a view, autograd must not see it as one, and what backward keeps
is another view of the same memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from scenario import compiled
from torch import Tensor

PROGRAMS: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "view": lambda x: (x.exp().view(2, 6),),
    "transposed": lambda x: (x.exp().t(),),
    "part": lambda x: (x.exp()[1:, ::2],),
    "saved_as_it_is": lambda x: ((y := x.exp().view(2, 6)), (y**3).sum()),
    "another_view_is_saved": lambda x: ((y := (x * 2).view(2, 6)), (y.t() ** 3).sum()),
    "flattened": lambda x: ((y := torch.sigmoid(x)).flatten(), (y * 2).sum()),
    "in_place": lambda x: ((y := (x * 2).unsqueeze_(0)), (y**3).sum()),
    "real_of_complex": lambda x: (
        torch.view_as_real(torch.view_as_complex(x.view(2, 3, 2)).exp()),
    ),
    "conjugated": lambda x: (torch.view_as_complex(x.view(2, 3, 2)).exp().conj(),),
    "complex_of_real": lambda x: (torch.view_as_complex(x.exp().view(2, 3, 2)),),
}


def gradient(
    function: Callable[[Tensor], tuple[Tensor, ...]], change: Callable[[Tensor], Any] | None
) -> Tensor:
    """The gradient of everything returned, with the first output changed in between."""
    x = torch.linspace(0.1, 0.9, 12).view(3, 4).requires_grad_()
    outs = function(x)
    if change is not None:
        with torch.no_grad():
            change(outs[0])
    sum(
        torch.view_as_real(o.resolve_conj()).sum() if o.is_complex() else o.sum() for o in outs
    ).backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_write_to_an_output_is_noticed(program: str, dynamic: bool) -> None:
    function = PROGRAMS[program]
    ours = compiled(function, dynamic=dynamic)
    torch.testing.assert_close(gradient(ours, None), gradient(function, None))
    for run in (function, ours):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            gradient(run, lambda out: out.add_(1))


def test_a_write_to_a_layers_output_is_noticed() -> None:
    layer = torch.nn.Linear(4, 5)

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = layer(x)
        return y, y.sigmoid().sum() + (y**3).sum()

    for run in (function, compiled(function)):
        y, total = run(torch.ones(2, 3, 4))
        with torch.no_grad():
            y.mul_(100)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            total.backward()


def test_the_second_derivative_still_follows() -> None:
    def run(function: Callable[[Tensor], Tensor]) -> Tensor:
        x = torch.linspace(0.1, 0.9, 12).view(3, 4).requires_grad_()
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        return torch.autograd.grad((first**2).sum(), x)[0]

    def function(x: Tensor) -> Tensor:
        return (x.exp() ** 2).view(2, 6).sin().t()

    torch.testing.assert_close(run(compiled(function)), run(function))
