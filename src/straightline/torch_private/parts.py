"""A graph of Dynamo's cut in two, each part a graph as Dynamo would hand it over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext
from torch.fx.passes.split_module import split_module


@dataclass(frozen=True)
class Parts:
    """`whole` calls `first`, then `second`, under these names."""

    whole: fx.GraphModule
    first: fx.GraphModule
    second: fx.GraphModule

    def given(self, number: int) -> list[fx.Node]:
        """What part `number` is called with, as nodes of the whole."""
        call = self.whole.graph.find_nodes(op="call_module")[number]
        return [argument for argument in call.args if isinstance(argument, fx.Node)]


def cut(gm: fx.GraphModule, start: fx.Node) -> Parts | None:
    """Let a second part begin with node `start`; None where that does not give two."""
    nodes = list(gm.graph.nodes)
    second = set(nodes[nodes.index(start) :])
    whole = split_module(
        gm,
        None,  # type: ignore[arg-type]
        lambda node: int(node in second),
        keep_original_order=True,
        tuple_return=True,
    )
    calls = whole.graph.find_nodes(op="call_module")
    if len(calls) != 2 or any(call.kwargs for call in calls):
        return None
    parts = []
    for call in calls:
        part = whole.get_submodule(str(call.target))
        assert isinstance(part, fx.GraphModule)
        _inherit(gm, part, call)
        parts.append(part)
    return Parts(whole, *parts)


def _inherit(gm: fx.GraphModule, part: fx.GraphModule, call: fx.Node) -> None:
    """A part is Dynamo's too: it knows where its inputs come from."""
    part.meta.update(gm.meta)
    part._param_name_to_source = getattr(gm, "_param_name_to_source", {})  # type: ignore[assignment]
    sources = {
        node.name: getattr(node, "_dynamo_source", None)
        for node in gm.graph.find_nodes(op="placeholder")
    }
    for node, argument in zip(part.graph.find_nodes(op="placeholder"), call.args, strict=True):
        assert isinstance(argument, fx.Node)
        passed = argument.op == "placeholder"
        node._dynamo_source = sources.get(argument.name) if passed else None


def examples(parts: Parts, inputs: Sequence[Any]) -> list[Any]:
    """What the first part is called with, by example."""
    return [_passed(parts, inputs)[node] for node in parts.given(0)]


def later_examples(parts: Parts, inputs: Sequence[Any]) -> list[Any]:
    """What the second part is called with, by example: what the first leaves of its inputs, which
    was compiled for them before, and what it returns, as fakes.
    """
    context = TracingContext.try_get()
    mode = context.fake_mode if context is not None else None
    assert mode is not None
    values = _passed(parts, inputs)
    given = parts.given(0)
    for node in given:
        if isinstance(values[node], torch.Tensor):
            values[node] = mode.from_tensor(values[node])
    with mode:
        results = parts.first(*(values[node] for node in given))
    (call, _) = parts.whole.graph.find_nodes(op="call_module")
    for user in call.users:
        values[user] = results[user.args[1]]
    return [values[node] for node in parts.given(1)]


def _passed(parts: Parts, inputs: Sequence[Any]) -> dict[fx.Node, Any]:
    return dict(zip(parts.whole.graph.find_nodes(op="placeholder"), inputs, strict=True))
