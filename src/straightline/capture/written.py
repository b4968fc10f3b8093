"""What a program writes to after its graph ran, and where things are in its graphs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Written:
    """Graph inputs written to after the graph ran, and places of things in the graphs.

    `first_saved`: where the saved values begin among the forward's outputs; `checked`: how many
    checked tensors lead them; `numbers`: how many numbers stand ahead of them among the backward's
    inputs; `tokens`: how many placeholders come ahead of the forward's input 0.
    """

    inputs: frozenset[int]
    first_saved: int
    checked: int
    numbers: int
    tokens: int
