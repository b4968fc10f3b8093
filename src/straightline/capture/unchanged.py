"""Operations of a captured graph that give back the very tensor they take."""

from __future__ import annotations

import torch
from torch import fx

_DROPOUT = frozenset({torch.nn.functional.dropout, torch.dropout, torch.dropout_})


def drop(gm: object) -> None:
    """Take out dropout that drops nothing: eager returns its argument, torch's stages a copy."""
    if not isinstance(gm, fx.GraphModule):
        return
    found = [node for node in gm.graph.nodes if node.target in _DROPOUT and _drops_nothing(node)]
    for node in found:
        node.replace_all_uses_with(_taken(node))
        gm.graph.erase_node(node)
    if found:
        gm.recompile()


def _drops_nothing(node: fx.Node) -> bool:
    given = dict(zip(("input", "p", "training"), node.args, strict=False)) | node.kwargs
    training = given.get("training", given.get("train", True))
    value = _taken(node).meta.get("example_value")
    empty = isinstance(value, torch.Tensor) and type(value.numel()) is int and not value.numel()
    rate = given.get("p", 0.5)
    return training is False or (isinstance(rate, int | float) and rate == 0) or empty


def _taken(node: fx.Node) -> fx.Node:
    taken = node.args[0] if node.args else node.kwargs["input"]
    assert isinstance(taken, fx.Node)
    return taken
