"""Random generators whose state travels through compiled programs (accelerators)."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import torch

from straightline.torch_private import generators, switches

seed_and_offset = generators.seed_and_offset
set_offset = generators.set_offset


class GeneratorStates:
    """The generators of one program: one set for forward, one for backward, seeded alike.

    Backward redraws what its forward drew. Forwards are numbered; the backward generators stand at
    one number, and a forward whose backward does not come next has its state kept until it does.
    Forwards may be pending in any number and their backwards come in any order, repeatedly under
    `retain_graph`.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self.count = count
        self.device = device
        self._forward: list[torch.Generator] = []
        self._backward: list[torch.Generator] = []
        self._numbers = itertools.count()
        self._position = 0
        self._pending: set[int] = set()
        self._kept: dict[int, list[torch.Tensor]] = {}
        self._lock = threading.Lock()

    def for_forward(self, ctx: Any) -> list[torch.Generator]:
        """The generators for this forward, whose node is `ctx`."""
        with self._lock:
            if not self._forward:
                self._forward, self._backward = generators.seeded_pair(self.count, self.device)
            number = next(self._numbers)
            ctx.rng_number = number
            if number != self._position:
                self._kept[number] = [g.get_state() for g in self._forward]
            self._pending.add(number)
            return self._forward

    def for_backward(self, ctx: Any) -> list[torch.Generator]:
        """The generators for the backward of `ctx`, in the state its forward started from."""
        number = ctx.rng_number
        again = switches.graph_is_kept()
        with self._lock:
            here = self._position
            returns_here = here != number or again
            if here in self._pending and here not in self._kept and returns_here:
                self._kept[here] = [g.get_state() for g in self._backward]
            if number in self._kept:
                if here != number:
                    for generator, state in zip(self._backward, self._kept[number], strict=True):
                        generator.set_state(state)
                if not again:
                    del self._kept[number]
            self._position = number + 1
            if not again:
                self._pending.discard(number)
            return self._backward
