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
    """The given nodes and what they are, or may be, views of."""
    found: set[fx.Node] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            if operations.is_view(node.target) is not False:
                pending += node.all_input_nodes
    return found


def drop_copies(gm: fx.GraphModule) -> None:
    """Let the users of a copy of an input use the input, where nobody can tell.

    Tracing copies every input that is differentiable and mutated, so that autograd sees the old
    value. The graph itself writes to none before its end. A copy stays where it, or a view of it,
    is returned or kept, or where its geometry is another.
    """
    (output,) = gm.graph.find_nodes(op="output")
    visible = _looked_at(output.all_input_nodes)
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default):
        source = node.args[0]
        unwritten = not any(operations.writes(user.target) for user in source.users)
        if source.op != "placeholder" or node in visible or not unwritten or node.kwargs:
            continue
        if _geometry(node) == _geometry(source):
            node.replace_all_uses_with(source)
            gm.graph.erase_node(node)
    gm.recompile()


def _geometry(node: fx.Node) -> object:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return node
    return tuple(map(str, value.shape)), tuple(map(str, value.stride()))


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
