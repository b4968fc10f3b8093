"""Generators of accelerators, read and made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._functorch._aot_autograd.utils import get_default_generator
from torch._prims_common import CUDARngStateHelper
from torch.utils._python_dispatch import _disable_current_modes


def seed_and_offset() -> tuple[Any, Any]:
    """The default generator's seed and offset, as tensors."""
    seed, offset = CUDARngStateHelper.get_torch_state_as_tuple()
    return seed, offset


def set_offset(offset: torch.Tensor) -> None:
    """Advance the default generator to `offset`."""
    CUDARngStateHelper.set_new_offset(offset)


def seeds(count: int, source: torch.Generator | None) -> list[int]:
    """`count` seeds, drawn from `source` or from the current generator."""
    with _disable_current_modes():
        top = torch.iinfo(torch.int64).max
        drawn: list[int] = torch.randint(0, top, (count,), device="cpu", generator=source).tolist()
    return drawn


def seeded(values: Sequence[int], device: torch.device) -> list[torch.Generator]:
    """A generator of its own for each seed."""
    default = get_default_generator(device)
    return [default.clone_state().manual_seed(seed) for seed in values]
