"""torch's own runtime layer in place of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from straightline.capture import origins
from straightline.config import Config
from straightline.report import fallbacks


def run_as_captured(gm: fx.GraphModule, config: Config, reason: str) -> Callable[..., Any]:
    """Run the captured graph as it stands: what torch's tracing would get wrong as well."""
    _announce(gm, config, reason, "its operations run one by one, as without torch.compile")
    return gm.forward


def fall_back(
    gm: fx.GraphModule, example_inputs: Sequence[Any], config: Config, reason: str
) -> Callable[..., Any]:
    """Compile with torch's stock `aot_autograd`: counted, said once per reason, or refused."""
    from straightline.torch_private import stock

    _announce(gm, config, reason, None)
    return stock.compile_graph(gm, example_inputs)


def _announce(gm: fx.GraphModule, config: Config, reason: str, todo: str | None) -> None:
    origin = origins.first(gm)
    where = f"{origin.file}:{origin.line}" if origin is not None else None
    if config.fallback == "error":
        raise fallbacks.refuse(reason, where)
    fallbacks.record(reason, where, todo)
