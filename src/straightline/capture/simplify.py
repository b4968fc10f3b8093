"""Operations that do nothing below autograd are left out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from straightline.torch_private import operations


def drop_detach(gm: fx.GraphModule, returned: int) -> None:
    """Let users of a `detach` use its argument: no gradient is recorded where the graph runs.

    Kept where one of the first `returned` outputs is a `detach` or looks at one: the caller may
    tell it apart from the base.
    """
    (output,) = gm.graph.find_nodes(op="output")
    visible = _looked_at(r for r in output.args[0][:returned] if isinstance(r, fx.Node))
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
        if node not in visible:
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
    gm.recompile()


def _looked_at(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """The given nodes and what they are views of."""
    found: set[fx.Node] = set()
    for each in nodes:
        node = each
        while node not in found:
            found.add(node)
            if node.op == "call_function" and operations.is_view(node.target):
                node = node.all_input_nodes[0]
    return found


def resize_inputs(gm: fx.GraphModule) -> None:
    """A storage resized after its contents were replaced is the input's own, not the replacement's.

    Functionalised, `x.copy_(y); use(x); x.untyped_storage().resize_(0)` resizes the value that
    stands for x's new contents and copies that, freed, into x. The resize belongs after the copy,
    on x; and a storage that ends up empty needs no copy.
    """
    for resize in gm.graph.find_nodes(op="call_function", target=_resize_storage()):
        value, size = resize.args
        copies = [
            user
            for user in value.users
            if user.target is torch.ops.aten.copy_.default and user.args[1] is value
        ]
        for copy in copies:
            with gm.graph.inserting_after(copy):
                gm.graph.call_function(resize.target, (copy.args[0], size))
            if size == 0:
                gm.graph.erase_node(copy)
        if copies:
            gm.graph.erase_node(resize)
    gm.recompile()


def _resize_storage() -> Any:
    return torch.ops.inductor.resize_storage_bytes_.default
