"""Generators of accelerators, read and made."""

from __future__ import annotations

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


def seeded_pair(
    count: int, device: torch.device
) -> tuple[list[torch.Generator], list[torch.Generator]]:
    """Two lists of `count` generators, pairwise in the same state, drawn from the current one."""
    with _disable_current_modes():
        seeds = torch.randint(0, torch.iinfo(torch.int64).max, (count,), device="cpu").tolist()
        default = get_default_generator(device)
        first = [default.clone_state().manual_seed(seed) for seed in seeds]
        second = [default.clone_state().manual_seed(seed) for seed in seeds]
    return first, second
