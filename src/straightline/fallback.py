"""What runs in place of a program of ours: the captured graph, or torch's own runtime layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from straightline.capture import origins
from straightline.config import Config
from straightline.report import fallbacks
from straightline.torch_private import dynamo


def run_as_captured(
    gm: fx.GraphModule, config: Config, reason: str, detail: str = ""
) -> Callable[..., Any]:
    """Run the captured graph as it stands: what torch's tracing cannot do, or gets wrong.

    `reason` is one text for all graphs that it holds for, `detail` says more of this one.
    """
    _announce(gm, config, reason, fallbacks.AS_CAPTURED, detail)
    if dynamo.takes_boxed_arguments(gm):
        return lambda arguments: gm.forward(*arguments)
    return gm.forward


def fall_back(
    gm: fx.GraphModule, example_inputs: Sequence[Any], config: Config, reason: str
) -> Callable[..., Any]:
    """Compile with torch's stock `aot_autograd`: counted, said once per reason, or refused."""
    from straightline.torch_private import stock

    _announce(gm, config, reason, fallbacks.STOCK)
    return stock.compile_graph(gm, example_inputs)


def _announce(gm: fx.GraphModule, config: Config, reason: str, to: str, detail: str = "") -> None:
    origin = origins.first(gm)
    where = f"{origin.file}:{origin.line}" if origin is not None else None
    if config.fallback == "error":
        raise fallbacks.refuse(reason, where, to=to, detail=detail)
    fallbacks.record(reason, where, to=to, detail=detail)
