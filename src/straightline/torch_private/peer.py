"""torch's own runtime layer, to compare with. Nothing that users compile passes through here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.eval_frame import innermost_fn
from torch._functorch.partitioners import min_cut_rematerialization_partition

Compiled = Callable[..., Any]
Compiler = Callable[[fx.GraphModule, Sequence[Any]], Compiled]


def layer(body: Compiler) -> Compiler:
    """torch's `aot_autograd` as a backend; `body` makes a function of each graph.

    Input mutations that torch can keep in the graph are kept there, as its own backends have it.
    """

    def boxed_body(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        compiled = body(gm, example_inputs)
        compiled._boxed_call = True  # type: ignore[attr-defined]
        return compiled

    backend: Compiler = aot_autograd(
        fw_compiler=boxed_body,
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    return backend


def without_disable(compiled: Compiled) -> Compiled:
    """What a backend returned, less the `disable` around it: Dynamo has one of its own."""
    inner: Compiled = innermost_fn(compiled)
    return inner
