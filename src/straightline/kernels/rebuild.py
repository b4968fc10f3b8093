"""A graph with kernels in the place of the operations that they do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from straightline.capture import origins
from straightline.ir.index import Index
from straightline.ir.nodes import Buffer
from straightline.kernels.check import comparison
from straightline.kernels.numbers import Numbers
from straightline.lower.graph import Computed, Host, Item, Lowered, View
from straightline.lower.tensor import Tensor
from straightline.lower.types import TO_TORCH
from straightline.schedule.program import Launch, Plan
from straightline.torch_private import allocation
from straightline.torch_private.marks import WRITES

Called = Callable[[Launch], tuple[Callable[..., Any], Sequence[Index]]]
"""What calls a kernel, and the numbers that it takes after the kernel's tensors."""


def rebuild(
    graph: fx.Graph, lowered: Lowered, plan: Plan, called: Called, *, check: bool = False
) -> fx.Graph:
    """The graph that runs `plan`. Views stay operations, written where something needs a tensor.

    With `check` each kernel is followed by what compares its results with those of ATen.
    """
    return _Rebuilder(graph, lowered, plan, called, check).run()


class _Rebuilder:
    def __init__(
        self, graph: fx.Graph, lowered: Lowered, plan: Plan, called: Called, check: bool
    ) -> None:
        self._check = check
        self._old = graph
        self._lowered = lowered
        self._plan = plan
        self._called = called
        self._new = fx.Graph()
        self._nodes: dict[fx.Node, fx.Node] = {}
        self._memory: dict[str, fx.Node] = {}
        self._numbers = Numbers(self._new, lowered, self._node)
        self._by_name = {node.name: node for node in graph.nodes}
        self._owners = dict(_owners(lowered))

    def run(self) -> fx.Graph:
        for node in self._old.nodes:
            if node.op in ("placeholder", "get_attr"):
                self._copied(node)
        for step in self._plan.steps:
            if isinstance(step, Launch):
                self._launch(step)
            else:
                self._copied(self._by_name[step.name])
        (output,) = self._old.find_nodes(op="output")
        self._copied(output)
        return self._new

    def _copied(self, node: fx.Node) -> fx.Node:
        for argument in node.all_input_nodes:
            self._node(argument)
        self._nodes[node] = self._new.node_copy(node, self._node)
        return self._nodes[node]

    def _node(self, node: fx.Node) -> fx.Node:
        """The new node of an old one, written now if it is a view or a number."""
        if node in self._nodes:
            return self._nodes[node]
        value = self._lowered.values[node]
        match value:
            case Computed(_, (tensor,)):
                return self._memory[_buffer(tensor).name]
            case Item(of, _, tensor) if isinstance(self._lowered.values[of], Computed):
                return self._memory[_buffer(tensor).name]
            case _:
                return self._copied(node)

    def _launch(self, step: Launch) -> None:
        kernel = step.kernel
        last = self._by_name[step.origins[-1]]
        for buffer in kernel.buffers:
            if buffer.name in kernel.outputs:
                self._memory[buffer.name] = self._allocated(buffer, last)
        function, numbers = self._called(step)
        tensors = [self._tensor(buffer) for buffer in kernel.buffers]
        arguments = [*tensors, *(self._numbers.number(each) for each in numbers)]
        node = self._new.call_function(function, tuple(arguments))
        node.meta = _origin(last)
        node.meta[origins.SEVERAL] = tuple(origins.origin(self._by_name[n]) for n in step.origins)
        node.meta[WRITES] = True
        if self._check:
            self._compared(step, node)

    def _compared(self, step: Launch, launch: fx.Node) -> None:
        found = comparison(step, self._lowered, self._by_name, self._owners)
        if found is not None:
            function, given, written = found
            arguments = [*map(self._node, given), *(self._memory[name] for name in written)]
            node = self._new.call_function(function, tuple(arguments))
            node.meta = {**launch.meta}

    def _allocated(self, buffer: Buffer, default: fx.Node) -> fx.Node:
        owner = self._owners.get(buffer.name)
        made = self._plan.made[buffer.name]
        size = tuple(map(self._numbers.number, made.shape))
        stride = tuple(map(self._numbers.number, made.strides))
        dtype = TO_TORCH[made.dtype]
        if allocation.is_called_fake():
            # Modes see torch's own function only.
            place: dict[str, Any] = {"dtype": dtype, "device": torch.device("cpu")}
            node = self._new.create_node(
                "call_function", torch.empty_strided, (size, stride), place, name=buffer.name
            )
        else:
            node = self._new.create_node(
                "call_function", allocation.empty_strided, (size, stride, dtype), name=buffer.name
            )
        node.meta = _origin(owner or default)
        return node

    def _tensor(self, buffer: Buffer) -> fx.Node:
        found = self._memory.get(buffer.name)
        return found if found is not None else self._node(self._owners[buffer.name])


def _buffer(tensor: Tensor | None) -> Buffer:
    assert tensor is not None
    assert tensor.buffer is not None
    return tensor.buffer


def _owners(lowered: Lowered) -> Iterator[tuple[str, fx.Node]]:
    """The node whose value each buffer holds."""
    for node, value in lowered.values.items():
        tensors: Sequence[Any]
        match value:
            case Host() | View():
                continue
            case Item(_, _, tensor):
                tensors = (tensor,)
            case Computed(_, results):
                tensors = results
            case _:
                tensors = getattr(value, "results", None) or (getattr(value, "tensor", None),)
        for tensor in tensors:
            if tensor is not None and tensor.buffer is not None:
                yield tensor.buffer.name, node


def _origin(node: fx.Node) -> dict[str, Any]:
    """What says where a node comes from."""
    return {key: value for key, value in node.meta.items() if key != "val"}
