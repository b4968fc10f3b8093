"""The public entry points: the backend that torch.compile finds by name, and our own `compile`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, overload

import torch
from torch import fx

from straightline import config as options
from straightline.errors import OptionError, StraightlineError

F = TypeVar("F", bound=Callable[..., Any])


def backend(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, object] | None = None,
    mode: str | None = None,
    **unknown: object,
) -> Callable[..., Any]:
    """What `torch.compile(f, backend="straightline")` calls for each graph."""
    from straightline import config as settings

    settings.resolve_mode(mode)
    resolved = settings.resolve({**unknown, **(options or {})})
    from straightline.torch_private import gate

    report = gate.check()
    if not report.ok:
        from straightline.fallback import fall_back

        return fall_back(gm, example_inputs, resolved, report.summary())
    from straightline import pipeline
    from straightline.torch_private import dynamo

    if any(isinstance(value, list | tuple | dict) for value in example_inputs):
        return dynamo.flatten_inputs(
            gm, example_inputs, functools.partial(pipeline.compile_graph, config=resolved)
        )
    return pipeline.compile_graph(gm, example_inputs, resolved)
