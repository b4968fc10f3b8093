"""Functions of tensors without elements give what eager gives."""

import pytest
import torch
import torch.nn.functional as F

FUNCTIONS = [
    (lambda x: x.roll(1, 0), (0, 5)),
    (lambda x: x.fliplr() * 2, (5, 0)),
    (lambda x: x.sum((0, 2)), (3, 4, 0)),
    (lambda x: x.amax(0) * 2 + x.sum(), (3, 0, 2)),
    (lambda x: torch.cat([x.reshape(-1, 3) * 2, torch.ones(2, 3)]), (4, 0)),
    (lambda x: (x * 2).reshape(3, -1).sum(1) + 1, (3, 0, 2)),
    (lambda x: torch.stack([x * x, x + 1]), (4, 0)),
    (lambda x: F.pad(x, (0, 1, 2, 1)), (2, 4, 0, 8)),
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("function", "shape"), FUNCTIONS)
def test_empty(function, shape, dynamic):
    def result(run):
        x = torch.randn(shape, requires_grad=True)
        out = run(x)
        return out, *torch.autograd.grad(out.sum(), x)

    compiled = torch.compile(function, backend="straightline", dynamic=dynamic)
    for got, want in zip(result(compiled), result(function), strict=True):
        torch.testing.assert_close(got, want)
