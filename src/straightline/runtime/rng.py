"""Random generators whose state travels through compiled programs (accelerators)."""

from __future__ import annotations

import threading
from typing import Any

import torch

from straightline.torch_private import generators

seed_and_offset = generators.seed_and_offset
set_offset = generators.set_offset


class GeneratorStates:
    """The generators of one program: for each thread some for forward and some for backward, as
    they move while a graph runs.

    Backward redraws what its forward drew: the state that forward started from goes with its node.
    So forwards may be pending in any number, and their backwards come in any order, in any thread
    and repeatedly.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self.count = count
        self.device = device
        self._own = threading.local()
        self._more: torch.Generator | None = None
        self._lock = threading.Lock()

    def for_forward(self, ctx: Any) -> list[torch.Generator]:
        """The generators for this forward, whose node is `ctx`."""
        own = self._of_thread("forward")
        ctx.rng_states = [generator.get_state() for generator in own]
        return own

    def for_backward(self, ctx: Any) -> list[torch.Generator]:
        """The generators for the backward of `ctx`, in the state its forward started from."""
        own = self._of_thread("backward")
        for generator, state in zip(own, ctx.rng_states, strict=True):
            generator.set_state(state)
        return own

    def _of_thread(self, direction: str) -> list[torch.Generator]:
        found: list[torch.Generator] | None = getattr(self._own, direction, None)
        if found is None:
            found = generators.seeded(self._seeds(direction), self.device)
            setattr(self._own, direction, found)
        return found

    def _seeds(self, direction: str) -> list[int]:
        """For the first thread those that torch would draw, for others those that follow from them;
        backward's never count.
        """
        if direction == "backward":
            return [0] * self.count
        with self._lock:
            seeds = generators.seeds(self.count, self._more)
            if self._more is None:
                self._more = torch.Generator().manual_seed(seeds[0])
            return seeds
