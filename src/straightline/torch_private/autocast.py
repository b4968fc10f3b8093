"""Autocast while torch traces, as eager has it: a cast per weight, none that only forward saw.

Backward runs under whatever autocast is on when it is called. So it is traced without any, and its
operations are dispatched through the caller's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

import torch
from torch import fx
from torch._C import _dispatch_has_kernel_for_dispatch_key, _is_any_autocast_enabled
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.graph_capture_wrappers import disable_autocast
from torch._ops import HigherOrderOperator, OpOverload
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast

# What casts by itself: each such call makes a tensor of its own.
_ASKED = frozenset({"to", "type", "type_as", "bfloat16", "half", "float", "double", "_to_copy"})
_KEYS = ("AutocastCPU", "AutocastCUDA")


def backward_has_casts() -> bool:
    """Somebody asked torch for a certain autocast in backward, to be traced into it."""
    return functorch_config.backward_pass_autocast not in ("same_as_forward", "off")


@contextlib.contextmanager
def backward_without() -> Iterator[None]:
    """No autocast where backward is traced, unless somebody asked for some."""
    if backward_has_casts():
        yield
        return
    with functorch_config.patch(backward_pass_autocast="off"):
        yield


def off_in_backward() -> contextlib.AbstractContextManager[None]:
    """No autocast around a call of autograd, in a function that is traced as a whole."""
    return contextlib.nullcontext() if backward_has_casts() else disable_autocast()


def share_casts(gm: fx.GraphModule, weights: Collection[fx.Node]) -> None:
    """Let the gradients of one weight's casts meet in low precision, before they are cast back.

    Eager casts a weight once and keeps the result; tracing casts it at each use. `weights`: leaves
    among the joint graph's inputs.
    """
    cast = torch.ops.aten._to_copy.default
    found = gm.graph.find_nodes(op="call_function", target=cast)
    of: dict[int, fx.Node] = {
        node.meta["seq_nr"]: node.args[0]
        for node in found
        if node.args[0] in weights and "seq_nr" in node.meta and _by_autocast(node)
    }
    back: dict[fx.Node, tuple[fx.Node, torch.dtype]] = {}
    for node in found:
        weight = of.get(node.meta.get("seq_nr", -1))
        if weight is not None and node.args[0] is not weight and len(node.users) == 1:
            back[node] = weight, node.args[0].meta["val"].dtype
    for add in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor):
        left, right = add.args
        if add.kwargs or left not in back or back[left] != back.get(right):
            continue
        with gm.graph.inserting_before(add):
            low = gm.graph.call_function(add.target, (left.args[0], right.args[0]))
            low.meta = {**add.meta, "val": left.args[0].meta["val"]}
            shared = gm.graph.call_function(cast, (low,), left.kwargs)
            shared.meta = {**add.meta}
        add.replace_all_uses_with(shared)
        for node in (add, left, right):
            gm.graph.erase_node(node)
        if len(shared.users) == 1:
            back[shared] = back[left]
    gm.recompile()


def _by_autocast(node: fx.Node) -> bool:
    """A cast that no call of the user's asked for."""
    stack = node.meta.get("source_fn_stack") or ()
    return any(getattr(s, "__name__", s) not in _ASKED for _, s in list(stack)[-1:])


def one_region(gm: object) -> bool:
    """Whether all casts of a graph come from one cache, which lives as long as the outermost
    autocast.
    """
    if not torch.is_autocast_cache_enabled():
        return False
    if _is_any_autocast_enabled():
        return True
    entered = depth = 0
    for node in gm.graph.nodes if isinstance(gm, fx.GraphModule) else ():
        if node.target is _enter_autocast:
            entered += depth == 0
            depth += 1
        elif node.target is _exit_autocast:
            depth -= 1
    return entered == 1


def casts(target: object) -> bool:
    """Autocast changes what an operation computes in."""
    return isinstance(target, OpOverload) and any(
        _dispatch_has_kernel_for_dispatch_key(target.name(), key) for key in _KEYS
    )


def may_cast(node: fx.Node) -> bool:
    """What `casts`, and what runs that, or a graph: nobody would cast its results back."""
    if not isinstance(node.target, HigherOrderOperator):
        return casts(node.target)
    inside = [a for a in node.args if isinstance(a, OpOverload)]
    return any(casts(operation) for operation in inside) or not inside
