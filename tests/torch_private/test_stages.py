"""What torch's stages leave behind goes when compilation ends."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

from straightline import pipeline
from straightline.torch_private.stages import Stages


def product(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


def written(a: Tensor, b: Tensor) -> Tensor:
    return a.mul_(2) + b


@pytest.mark.parametrize(
    ("program", "make"),
    [
        pytest.param(product, lambda: torch.randn(3, 3), id="plain"),
        pytest.param(
            product, lambda: TwoTensor(torch.randn(3, 3), torch.randn(3, 3)), id="subclass"
        ),
        pytest.param(written, lambda: torch.randn(3, 3), id="written"),
    ],
)
def test_stages_die(
    program: Callable[..., Tensor], make: Callable[[], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[weakref.ref[Stages]] = []
    trace = pipeline.stages.trace

    @contextlib.contextmanager
    def watched(*args: Any, **kwargs: Any) -> Iterator[Stages]:
        with trace(*args, **kwargs) as traced:
            seen.append(weakref.ref(traced))
            yield traced

    monkeypatch.setattr(pipeline.stages, "trace", watched)
    x, w = make(), torch.randn(3, 3, requires_grad=True)
    out = torch.compile(program, backend="straightline")(x, w)
    gc.collect()
    assert [ref() for ref in seen] == [None]
    out.sum().backward()
    assert w.grad is not None
