"""torch's stock runtime layer, called through its public door."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx


def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """torch's own runtime around the graph's operations, run one by one.

    Asks for nothing but the public backend of that name: this is what runs when torch's private
    side is not the one that was tested.
    """
    compiler: Callable[..., Callable[..., Any]] = torch._dynamo.lookup_backend("aot_eager")
    return compiler(gm, example_inputs)
