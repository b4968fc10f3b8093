"""The option `check`: what a kernel computed, compared with what its ATen operations do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from straightline.capture import origins
from straightline.errors import CompilerBug
from straightline.lower.graph import Computed, Extern, Host, Input, Item, Lowered
from straightline.schedule.program import Launch
from straightline.torch_private import operations

# How far results may be apart, as a share of the result and of the largest one.
_TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}
# Where that is exceeded, both are compared with float64, and ours may err by this many times as
# much: results that cancel out are nothing but rounding.
_RATIO = 4.0
_ROUNDINGS = 8.0


@dataclass(frozen=True)
class Result:
    """One result of a kernel: the operation that it is of, and the line of the model."""

    op: str
    line: str | None


@dataclass(frozen=True)
class Comparison:
    """Called with what the operations of a kernel read, then with what the kernel has written;
    raises a CompilerBug unless these are what the operations give.
    """

    kernel: str
    operations: fx.Graph
    results: tuple[Result, ...]
    does: tuple[str, ...]

    @property
    def __name__(self) -> str:
        return f"check_{self.kernel}"

    def __call__(self, *values: Any) -> None:
        given, got = values[: -len(self.results)], values[-len(self.results) :]
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            wanted = _run(self.operations, given)
            for position, result in enumerate(self.results):
                if not _close(got[position], wanted[position]) and not self._rounding(
                    position, given, got[position], wanted[position]
                ):
                    raise self._bug(result, got[position], wanted[position])

    def _rounding(
        self, position: int, given: Sequence[Any], got: torch.Tensor, want: torch.Tensor
    ) -> bool:
        """Whether both are as near as can be expected to what float64 gives."""
        if not got.dtype.is_floating_point:
            return False
        exact = _run(self.operations, given, _wider)[position].double()
        scale = max((_largest(v) for v in given if isinstance(v, torch.Tensor)), default=0.0)
        floor = _ROUNDINGS * torch.finfo(got.dtype).eps * scale
        ours, theirs = (float(_apart(each, exact).max()) for each in (got, want))
        return ours <= _RATIO * theirs + floor

    def _bug(self, result: Result, got: torch.Tensor, want: torch.Tensor) -> CompilerBug:
        apart = _apart(got, want)
        worst = int(apart.argmax())
        at = [int(each) for each in torch.unravel_index(torch.tensor(worst), apart.shape)]
        name, *does = (
            op.removeprefix("aten.").removesuffix(".default") for op in (result.op, *self.does)
        )
        return CompilerBug(
            f"the kernel {self.kernel} gives another result of {name} than ATen: the largest "
            f"difference is {float(apart.flatten()[worst]):g}, at {at}, where it gives "
            f"{got[tuple(at)].item()} and not {want[tuple(at)].item()}",
            where=result.line,
            todo=f"report it; the kernel does {', '.join(does)}, each of which runs as ATen "
            "after `straightline.backends.disable_operations`",
        )


def comparison(
    step: Launch,
    lowered: Lowered,
    nodes: Mapping[str, fx.Node],
    owners: Mapping[str, fx.Node],
) -> tuple[Comparison, Sequence[fx.Node], Sequence[str]] | None:
    """What compares a kernel, the nodes whose values it takes, and the buffers it takes then.

    None where nothing can be compared: where operations draw random numbers.
    """
    kernel = step.kernel
    reads = {b.name for b in kernel.buffers if b.name not in kernel.outputs}
    written = [b.name for b in kernel.buffers if b.name in kernel.outputs and b.name in owners]
    if any(operations.is_random(nodes[name].target) for name in step.origins) or not written:
        return None
    ends = [owners[name] for name in written]
    graph, given = _part(lowered, ends, reads)
    results = []
    for name, end in zip(written, ends, strict=True):
        value = lowered.values[end]
        if isinstance(value, Computed) and len(value.results) > 1:
            names = [
                None if r is None or r.buffer is None else r.buffer.name for r in value.results
            ]
            results.append(graph.call_function(_item, (_made(graph, end), names.index(name))))
        else:
            results.append(_made(graph, end))
    graph.output(tuple(results))
    told = tuple(_told(lowered, end) for end in ends)
    does = tuple(dict.fromkeys(str(nodes[name].target) for name in step.origins))
    return Comparison(kernel.name, graph, told, does), given, written


def _item(values: Sequence[Any], position: int) -> Any:
    return values[position]


_OLD = "straightline_node"


def _made(graph: fx.Graph, old: fx.Node) -> fx.Node:
    (found,) = (node for node in graph.nodes if node.meta.get(_OLD) is old)
    return found  # type: ignore[no-any-return] # a Node


def _told(lowered: Lowered, end: fx.Node) -> Result:
    value = lowered.values[end]
    node = value.of if isinstance(value, Item) else end
    line = origins.origin(node)
    return Result(str(node.target), None if line is None else f"{line.file}:{line.line}")


def _part(
    lowered: Lowered, ends: Sequence[fx.Node], reads: set[str]
) -> tuple[fx.Graph, list[fx.Node]]:
    """The operations from what is there when a kernel runs to these ends; and what is there."""
    wanted, stack = set(ends), list(ends)
    given: set[fx.Node] = set()
    while stack:
        node = stack.pop()
        if node not in ends and _is_there(lowered, node, reads):
            given.add(node)
            continue
        more = [each for each in node.all_input_nodes if each not in wanted]
        wanted.update(more)
        stack += more
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    in_order = [node for node in lowered.values if node in wanted]
    first = [node for node in in_order if node in given]
    for node in first:
        copies[node] = graph.placeholder(node.name)
    for node in in_order:
        if node not in given:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].meta[_OLD] = node
    return graph, first


def _is_there(lowered: Lowered, node: fx.Node, reads: set[str]) -> bool:
    match lowered.values[node]:
        case Input() | Host() | Extern():
            return True
        case Item(of, _, tensor):
            made = isinstance(lowered.values[of], Extern)
            return made or (tensor is not None and _named(tensor.buffer) in reads)
        case Computed(_, (tensor,)):
            return tensor is not None and _named(tensor.buffer) in reads
        case _:
            return False


def _named(buffer: Any) -> str | None:
    return None if buffer is None else buffer.name


# -- Running and comparing -----------------------------------------------------------------------


def _run(
    graph: fx.Graph, given: Sequence[Any], change: Callable[[Any], Any] = lambda value: value
) -> Sequence[Any]:
    """What the graph's operations give; `change` is done to all that they are called with."""
    values: dict[fx.Node, Any] = {}
    rest: Iterator[Any] = iter(given)

    def argument(value: Any) -> Any:
        return values[value] if isinstance(value, fx.Node) else change(value)

    for node in graph.nodes:
        match node.op:
            case "placeholder":
                values[node] = change(next(rest))
            case "output":
                break
            case _:
                args, kwargs = map_aggregate((node.args, node.kwargs), argument)
                values[node] = node.target(*args, **kwargs)
    results: Sequence[Any] = map_aggregate(node.args[0], argument)
    return results


def _wider(value: Any) -> Any:
    match value:
        case torch.Tensor() if value.dtype in _TOLERANCE:
            return value.double()
        case torch.dtype() if value in _TOLERANCE:
            return torch.float64
        case _:
            return value


def _close(got: torch.Tensor, want: torch.Tensor) -> bool:
    tolerance = _TOLERANCE.get(want.dtype)
    if tolerance is None:
        return torch.equal(got, want)
    allowed = tolerance * (want.double().abs() + _largest(want))
    return bool((_apart(got, want) <= allowed.nan_to_num(posinf=0.0)).all())


def _apart(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """How far apart elements are: infinitely, where one alone is NaN or they are not both finite
    and not the same.
    """
    a, b = got.double(), want.double()
    same = (a == b) | (a.isnan() & b.isnan())
    return (a - b).abs().nan_to_num(nan=torch.inf, posinf=torch.inf).masked_fill(same, 0.0)


def _largest(value: torch.Tensor) -> float:
    finite = value.detach().double().nan_to_num(posinf=0.0, neginf=0.0).abs()
    return float(finite.max()) if finite.numel() else 0.0
