"""A scenario runs twice, once with eager and once with the backend, and both must tell the same.

A scenario is a function of one argument: the `compile` to use. It builds its own inputs, calls,
differentiates, and returns whatever should be compared (any pytree of tensors and plain values).
In the eager run `compile` gives the function back untouched.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_flatten

BACKEND = os.environ.get("STRAIGHTLINE_TEST_BACKEND", "straightline")

Compile = Callable[..., Any]
Scenario = Callable[[Compile], Any]


def compiled(fn: Any, *, fullgraph: bool = True, **kwargs: Any) -> Any:
    """`torch.compile` through the backend under test; a graph break is a failure unless allowed."""
    return torch.compile(fn, backend=BACKEND, fullgraph=fullgraph, **kwargs)


def _eager(fn: Any, **_: Any) -> Any:
    return fn


def _graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def clear_fallbacks() -> None:
    if BACKEND == "straightline":
        from straightline.report import fallbacks

        fallbacks.clear()


def assert_no_fallbacks() -> None:
    """No graph fell back since the last `clear_fallbacks`."""
    if BACKEND == "straightline":
        from straightline.report import fallbacks

        assert not fallbacks.counts(), fallbacks.counts()


def same(scenario: Scenario, *, rtol: float = 1e-5, atol: float = 1e-6) -> Any:
    """Run `scenario` eagerly and compiled, assert that both agree; give the compiled result."""
    torch.manual_seed(0)
    want = scenario(_eager)
    torch._dynamo.reset()
    clear_fallbacks()
    graphs = _graphs()
    torch.manual_seed(0)
    got = scenario(compiled)
    assert _graphs() > graphs, "the scenario compiled nothing"
    assert_same(got, want, rtol=rtol, atol=atol)
    assert_no_fallbacks()
    return got


def assert_same(got: Any, want: Any, *, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    got_flat, got_spec = tree_flatten(got)
    want_flat, want_spec = tree_flatten(want)
    assert got_spec == want_spec, f"{got_spec} is not {want_spec}"
    for index, (ours, theirs) in enumerate(zip(got_flat, want_flat, strict=True)):
        _assert_same_leaf(ours, theirs, f"result {index}", rtol, atol)


def _assert_same_leaf(got: Any, want: Any, where: str, rtol: float, atol: float) -> None:
    assert type(got) is type(want), f"{where}: {type(got)} is not {type(want)}"
    if not isinstance(want, torch.Tensor):
        assert got == want, f"{where}: {got!r} is not {want!r}"
        return
    assert got.requires_grad == want.requires_grad, f"{where}: requires_grad"
    if is_traceable_wrapper_subclass(want):
        names, context = want.__tensor_flatten__()
        got_names, got_context = got.__tensor_flatten__()
        assert list(got_names) == list(names), where
        if not _holds_nested_int(want):
            assert got_context == context, f"{where}: {got_context} is not {context}"
            assert got.shape == want.shape, f"{where}: {got.shape} is not {want.shape}"
            assert got.stride() == want.stride(), f"{where}: {got.stride()} is not {want.stride()}"
        for name in names:
            _assert_same_leaf(
                getattr(got, name), getattr(want, name), f"{where}.{name}", rtol, atol
            )
        return
    assert got.stride() == want.stride(), f"{where}: {got.stride()} is not {want.stride()}"
    torch.testing.assert_close(
        got, want, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{where}: {m}"
    )


def _holds_nested_int(t: torch.Tensor) -> bool:
    """A jagged size is a symbol of its own in every tensor made, so only its values compare."""
    return t.is_nested
