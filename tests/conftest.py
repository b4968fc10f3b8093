"""What holds for every test: a clean Dynamo, known global state, and no silent fall-back."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from types import ModuleType

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
import torch._dynamo


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-goldens", action="store_true", help="write tests/runtime/goldens/*.txt anew"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "fallback: the test expects a fall-back to torch's stock aot_autograd"
    )


def _fallbacks() -> ModuleType | None:
    """The fall-back counters, or None where the package is not built that far yet."""
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.import_module("straightline.report.fallbacks")
    return None


def _global_state() -> dict[str, object]:
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "default dtype": torch.get_default_dtype(),
    }


@pytest.fixture(autouse=True)
def clean_torch() -> Iterator[None]:
    """Reset Dynamo and seed before each test; a test that leaves torch's state changed fails."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    before = _global_state()
    yield
    after = _global_state()
    torch.set_grad_enabled(bool(before["grad mode"]))
    torch.use_deterministic_algorithms(bool(before["deterministic"]))
    torch._dynamo.reset()
    assert after == before, "the test left torch's global state changed"


@pytest.fixture(autouse=True)
def no_fallback(request: pytest.FixtureRequest) -> Iterator[None]:
    """Falling back for a listed duty is a failure, so every test asserts that none happened."""
    fallbacks = _fallbacks()
    if fallbacks is not None:
        fallbacks.clear()
    yield
    if fallbacks is not None and request.node.get_closest_marker("fallback") is None:
        assert fallbacks.counts() == {}
