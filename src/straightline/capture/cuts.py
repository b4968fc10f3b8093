"""Where a captured graph is cut in two, so that the new value of an argument has a place of its own
in the autograd graph.

Eager's autograd graph goes from the argument's old value through its new one to what is computed of
that. One autograd function for all of it has the new value and the results side by side: asked for
the gradient of a result with regard to the argument, which by then is the new value, it knows none.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from straightline.capture import overlap
from straightline.torch_private.second_order import SET_GRAD_ENABLED

# Parts of the names of operations that change the state around those that follow.
_STATE = ("enter_", "exit_", "nesting", "hooks", "push", "pop", "stream")


def place(gm: object) -> fx.Node | None:
    """The first operation of the second part, or None where the graph stays whole.

    It follows the last recorded write to an argument of which something else is computed then, as
    soon as gradients are recorded. The second part writes to nothing that the first may keep for
    its backward, and no state of torch's but the grad mode changes.
    """
    if not isinstance(gm, fx.GraphModule) or not torch.is_grad_enabled():
        return None
    nodes: list[fx.Node] = list(gm.graph.nodes)
    if any(_changes_state(node) for node in nodes):
        return None
    modes = _grad_modes(nodes)
    written = _last_writes(nodes, modes)
    live, shared = _live(nodes), _shared(nodes)
    read: dict[torch.UntypedStorage, int] = {}
    for position, node in enumerate(nodes):
        for memory in _read(node, shared) if modes[position] and node in live else ():
            if memory in written and written[memory] < position:
                read.setdefault(memory, position)
    if not read:
        return None
    first, last = max(written[memory] for memory in read) + 1, min(read.values())
    for cut in range(first, last + 1):
        if modes[cut - 1] and not _writes_across(nodes, cut):
            return nodes[cut]
    return None


def _changes_state(node: fx.Node) -> bool:
    name = str(getattr(node.target, "__name__", node.target))
    return node.op == "call_function" and any(part in name for part in _STATE)


def _live(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """The operations that something comes of."""
    live: set[fx.Node] = set()
    for node in reversed(nodes):
        if node.op == "output" or overlap.writes(node) or node in live:
            live.update((node, *node.all_input_nodes))
    return live


def _grad_modes(nodes: Sequence[fx.Node]) -> list[bool]:
    """Whether gradients are recorded at each operation."""
    modes, now = [], True
    for node in nodes:
        if node.target is SET_GRAD_ENABLED:
            now = bool(node.args[0])
        modes.append(now)
    return modes


def _last_writes(
    nodes: Sequence[fx.Node], modes: Sequence[bool]
) -> dict[torch.UntypedStorage, int]:
    """For each argument's memory that autograd sees writes to, the place of the last one."""
    passed = {memory for node in nodes if node.op == "placeholder" for memory in _memory(node)}
    found = {}
    for position, (node, recorded) in enumerate(zip(nodes, modes, strict=True)):
        target = node.args[0] if node.args else None
        if recorded and overlap.writes(node) and _requires_grad(target):
            found.update(dict.fromkeys(passed.intersection(_memory(target)), position))
    return found


def _shared(nodes: Sequence[fx.Node]) -> set[torch.UntypedStorage]:
    """Memory that several arguments are in."""
    counts = collections.Counter(
        memory for node in nodes if node.op == "placeholder" for memory in _memory(node)
    )
    return {memory for memory, count in counts.items() if count > 1}


def _read(
    node: fx.Node, shared: Collection[torch.UntypedStorage]
) -> Iterator[torch.UntypedStorage]:
    """The memory that something new is computed of, with a gradient.

    A view is not new, unless its argument would be merged with others: it would be a view of that.
    """
    if node.op in ("placeholder", "output", "get_attr"):
        return
    value = _value(node)
    results = value if isinstance(value, list | tuple) else [value]
    if not any(isinstance(r, torch.Tensor) and r.requires_grad for r in results):
        return
    own = {memory for result in results for memory in _memory_of(result)}
    for operand in node.all_input_nodes:
        for memory in _memory(operand):
            if memory not in own or memory in shared or overlap.writes(node):
                yield memory


def _writes_across(nodes: Sequence[fx.Node], cut: int) -> bool:
    """Whether something is written from `cut` on that was there before."""
    before = {memory for node in nodes[:cut] for memory in _memory(node)}
    for node in nodes[cut:]:
        targets: list[Any] = [node.args[0]] if node.args and overlap.writes(node) else []
        targets += [node.kwargs["out"]] if "out" in node.kwargs else []
        if any(not before.isdisjoint(_memory(target)) for target in targets):
            return True
    return False


def _value(operand: Any) -> Any:
    return operand.meta.get("example_value") if isinstance(operand, fx.Node) else None


def _requires_grad(operand: Any) -> bool:
    value = _value(operand)
    return isinstance(value, torch.Tensor) and value.requires_grad


def _memory(operand: Any) -> Iterator[torch.UntypedStorage]:
    value = _value(operand)
    results: Iterable[Any] = value if isinstance(value, list | tuple) else [value]
    for result in results:
        yield from _memory_of(result)


def _memory_of(value: Any) -> Iterator[torch.UntypedStorage]:
    memory = overlap.memory(value)
    if memory is not None:
        yield memory
