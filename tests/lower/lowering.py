"""Lowering a Python function, and running its computes by the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_function
from torch.fx.experimental.proxy_tensor import make_fx

from straightline.ir.index import Index, evaluate
from straightline.ir.interpret import interpret_compute
from straightline.ir.nodes import Buffer
from straightline.ir.verify import verify_compute
from straightline.lower.graph import Computed, Extern, Host, Input, Item, Lowered, View, lower
from straightline.lower.types import TO_TORCH


def traced(function: Callable[..., Any], *args: Any, dynamic: bool = False) -> fx.GraphModule:
    """The ATen graph of `function`, sizes symbolic if `dynamic`: made quickly, functional only as
    far as `function` is.
    """
    return make_fx(function, tracing_mode="symbolic" if dynamic else "fake")(*args)


@dataclass
class Seen:
    """The graphs that were lowered, forward first, each with what became of it."""

    graphs: list[tuple[fx.GraphModule, Lowered]] = field(default_factory=list)

    @property
    def reasons(self) -> dict[str, str]:
        """Why nodes are not lowered, by the operation."""
        return {k: v for _, lowered in self.graphs for k, v in reasons(lowered).items()}


def interpreted(function: Callable[..., Any], seen: Seen, *, dynamic: bool = False) -> Any:
    """`function`, whose functional ATen graphs are lowered and run by the interpreter; those of its
    gradients likewise.
    """

    def compiler(gm: fx.GraphModule, example_inputs: Any) -> Any:
        lowered = lower(gm)
        seen.graphs.append((gm, lowered))
        return make_boxed_func(lambda *args: run(gm, lowered, *args))

    return aot_function(function, compiler, dynamic=dynamic, decompositions={})


def reasons(lowered: Lowered) -> dict[str, str]:
    """Why nodes are not lowered, by the operation."""
    return {
        str(node.target): value.reason
        for node, value in lowered.values.items()
        if isinstance(value, Extern)
    }


class KernelError(Exception):
    """A check of a compute failed."""


def run(graph: fx.GraphModule, lowered: Lowered, *args: Any) -> list[Any]:
    """The outputs of the graph, each compute by the interpreter and the rest by eager."""
    placeholders = graph.graph.find_nodes(op="placeholder")
    given = dict(zip(placeholders, args, strict=True))
    sizes: dict[str, int] = {}
    memory: dict[str, Any] = {}
    tensors: dict[fx.Node, Any] = dict(given)

    def keep(buffer: Buffer | None, tensor: Any) -> None:
        if buffer is not None and isinstance(tensor, torch.Tensor):
            memory[buffer.name] = array(tensor)

    for node, value in lowered.values.items():
        target: Any = node.target
        sizes |= _sizes(lowered, tensors)
        operands: Any = fx.map_arg((node.args, node.kwargs), lambda n: tensors[n])
        match value:
            case Input(tensor, _):
                actual = given[node] if node in given else getattr(graph, target)
                tensors[node] = actual
                keep(tensor.buffer if tensor is not None else None, actual)
            case Host():
                tensors[node] = given[node] if node in given else target(*operands[0])
            case View() | Item():
                tensors[node] = target(*operands[0], **operands[1])
            case Extern(_, results):
                made = target(*operands[0], **operands[1])
                tensors[node] = made
                for tensor, one in zip(results, _several(made), strict=False):
                    keep(tensor.buffer if tensor is not None else None, one)
            case Computed(computes, results):
                for compute in computes:
                    verify_compute(compute)
                    for buffer in compute.buffers:
                        memory.setdefault(buffer.name, empty(buffer, sizes))
                    status = interpret_compute(compute, memory, sizes)
                    if status:
                        raise KernelError(lowered.failures[status - 1])
                made = [
                    None if t is None or t.buffer is None else tensor_of(t.buffer, memory)
                    for t in results
                ]
                tensors[node] = made if _is_several(node) else made[0]
    (output,) = graph.graph.find_nodes(op="output")
    return fx.map_arg(output.args[0], lambda n: tensors[n])


def _several(made: Any) -> Any:
    return made if isinstance(made, list | tuple) else (made,)


def _is_several(node: fx.Node) -> bool:
    return isinstance(node.meta["val"], list | tuple)


def _sizes(lowered: Lowered, tensors: Mapping[fx.Node, Any]) -> dict[str, int]:
    """The sizes that are known by now."""
    known = {}
    for size, source in lowered.sizes.items():
        if source.node in tensors:
            value = tensors[source.node]
            number = value if source.dim is None else value.shape[source.dim]
            known[size.name] = (number - source.offset) // source.scale
    return known


def _count(index: Index, sizes: Mapping[str, int]) -> int:
    return int(evaluate(index, lambda atom: sizes[atom.name]))


def empty(buffer: Buffer, sizes: Mapping[str, int]) -> Any:
    """Memory for a buffer, as an array with its strides; its values are not zero."""
    shape = [_count(n, sizes) for n in buffer.shape]
    strides = [_count(n, sizes) for n in buffer.strides]
    tensor = torch.empty_strided(shape, strides, dtype=TO_TORCH[buffer.dtype])
    return array(tensor.fill_(1))


def array(tensor: torch.Tensor) -> Any:
    """The memory of a tensor as numpy sees it; bfloat16 as its bits."""
    tensor = tensor.detach()
    bits = tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor
    return bits.numpy()


def tensor_of(buffer: Buffer, memory: Mapping[str, Any]) -> torch.Tensor:
    made = torch.from_numpy(np.asarray(memory[buffer.name]))
    return made.view(torch.bfloat16) if TO_TORCH[buffer.dtype] is torch.bfloat16 else made


def computed(function: Callable[..., Any], *args: Any, dynamic: bool = False) -> Any:
    """What `function` gives by its computes; everything in it has to be lowered."""
    seen = Seen()
    result = interpreted(function, seen, dynamic=dynamic)(*args)
    assert seen.reasons == {}
    return result
