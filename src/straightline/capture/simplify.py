"""Operations that do nothing below autograd are left out."""

from __future__ import annotations

import torch
from torch import fx


def drop_detach(gm: fx.GraphModule, returned: int) -> None:
    """Let the users of each `detach` use its argument: no gradient is recorded where the graph runs.

    Kept where a `detach` itself is among the first `returned` outputs, which the caller may tell apart
    from its base.
    """
    (output,) = gm.graph.find_nodes(op="output")
    visible = {r for r in output.args[0][:returned] if isinstance(r, fx.Node)}
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
        if node not in visible:
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
    gm.recompile()
