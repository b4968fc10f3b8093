"""From an ATen graph to computes: what becomes of each node.

Nothing here decides what runs together or what is kept in memory. A node that has no rule, or whose
rule declines, stays what it was, with its reason.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import fx

from straightline.ir.dtypes import DType
from straightline.ir.index import ZERO, Index, Size
from straightline.ir.nodes import Buffer, Compute, Op, walk
from straightline.ir.ops import OPERATIONS
from straightline.lower import externs
from straightline.lower.builder import Builder, Failure, Names, Spec
from straightline.lower.rules import RULES, VIEWS
from straightline.lower.symbols import Sizes, Source
from straightline.lower.tensor import Tensor, Unsupported, of_buffer
from straightline.lower.types import Real, from_torch


@dataclass(frozen=True)
class Input:
    """A placeholder or an attribute of the graph; `tensor` is None for what is not one of ours,
    and `reason` says why.
    """

    tensor: Tensor | None
    reason: str = ""


@dataclass(frozen=True)
class Host:
    """A number that Python computes: a size, or one made of sizes; None where that cannot be said
    in the IR.
    """

    number: Index | Real | None


@dataclass(frozen=True)
class Computed:
    """Made by computes, in this order. Each of `results` has its buffer, or is None where the
    operation gives none.
    """

    computes: tuple[Compute, ...]
    results: tuple[Tensor | None, ...]


@dataclass(frozen=True)
class View:
    """Another look at the memory of `base`: no work as long as computes read it. Where it is needed
    as a tensor, it is the node's own operation on the tensor of `base`.
    """

    base: fx.Node
    results: tuple[Tensor, ...]


@dataclass(frozen=True)
class Item:
    """One of several results of a node."""

    of: fx.Node
    at: int
    tensor: Tensor | None


@dataclass(frozen=True)
class Extern:
    """Runs as it is. `results` are None where they are not tensors that computes can read."""

    reason: str
    results: tuple[Tensor | None, ...]


Value: TypeAlias = Input | Host | Computed | View | Item | Extern


@dataclass(frozen=True)
class Lowered:
    """What became of a graph: `values` in the order of its nodes, the output left out.

    `failures[code - 1]` is the name of the node and the error that a kernel's status `code` means.
    `sizes` are those that computes are told of, by torch's names, and where each is read.
    """

    values: Mapping[fx.Node, Value]
    failures: tuple[tuple[str, Failure], ...]
    sizes: Mapping[Size, Source]

    @property
    def computes(self) -> Iterator[Compute]:
        for value in self.values.values():
            if isinstance(value, Computed):
                yield from value.computes


Supports: TypeAlias = Callable[[str, DType], bool]
"""Whether there is machine code for a function of the IR on operands of a type."""

Off: TypeAlias = Callable[[str, str], bool]
"""Whether an operation, by its name, is switched off for tensors of a dispatch key."""


def lower(
    gm: fx.GraphModule,
    supports: Supports = lambda _name, _dtype: True,
    graph: fx.Graph | None = None,
    off: Off = lambda _name, _key: False,
) -> Lowered:
    """Each node of a graph, that of `gm` unless told, as computes, as a view, or as an operation to
    run as it is.

    The graph is functional, with a fake tensor or a size under `meta["val"]` of each node. What
    needs a function that is not among those that `supports` says stays as it is, and so does what
    is switched `off`.
    """
    return _Lowering(gm, graph or gm.graph, supports, off).run()


def tensor_of(value: Value | None) -> Tensor | None:
    """The one tensor of a node, if it is one that computes can read."""
    match value:
        case Input(tensor, _) | Item(_, _, tensor):
            return tensor
        case Computed(results=(single,)) | View(results=(single,)) | Extern(results=(single,)):
            return single
        case _:
            return None


class _Lowering:
    def __init__(self, gm: fx.GraphModule, graph: fx.Graph, supports: Supports, off: Off) -> None:
        self.gm = gm
        self.graph = graph
        self.supports = supports
        self.off = off
        self.sizes = Sizes()
        self.names = Names({node.name for node in graph.nodes})
        self.failures: list[tuple[str, Failure]] = []
        self.values: dict[fx.Node, Value] = {}

    def run(self) -> Lowered:
        for node in self.graph.find_nodes(op="placeholder"):
            self.sizes.learn(node, node.meta.get("val"))
        for node in self.graph.nodes:
            if node.op != "output":
                self.values[node] = self.node(node)
        return Lowered(self.values, tuple(self.failures), self.sizes.sources)

    def node(self, node: fx.Node) -> Value:
        described = node.meta.get("val")
        if isinstance(
            described, int | float | bool | torch.SymInt | torch.SymFloat | torch.SymBool
        ):
            self.sizes.learn(node, described)
            return Host(self.host(described))
        match node.op:
            case "placeholder":
                return self.input(node, described)
            case "get_attr":
                return self.input(node, self.attribute(node) if described is None else described)
            case "call_function" if node.target is operator.getitem:
                return self.item(node)
            case "call_function":
                return self.call(node)
            case _:
                return Extern(f"a call of a {node.op}", ())

    def host(self, value: Any) -> Index | Real | None:
        try:
            if isinstance(value, torch.SymFloat):
                return self.sizes.real(value)
            return self.sizes.index(value) if isinstance(value, int | torch.SymInt) else None
        except Unsupported:
            return None

    def attribute(self, node: fx.Node) -> Any:
        return operator.attrgetter(str(node.target))(self.gm)

    def input(self, node: fx.Node, described: Any) -> Input:
        try:
            return Input(self.memory(node.name, described))
        except Unsupported as unsupported:
            return Input(None, unsupported.reason)

    def memory(self, name: str, described: Any) -> Tensor:
        """A tensor that is there: its own buffer."""
        spec = self.spec(described)
        buffer = Buffer(name, spec.dtype, spec.shape, spec.strides)
        try:
            offset = self.sizes.index(described.storage_offset())
        except Unsupported:
            offset = None
        return of_buffer(buffer, offset)

    def spec(self, described: Any) -> Spec:
        reason = externs.unreadable(described)
        if reason is not None:
            raise Unsupported(reason)
        return Spec(
            tuple(map(self.sizes.index, described.shape)),
            from_torch(described.dtype),
            tuple(map(self.sizes.stride, described.stride())),
        )

    def item(self, node: fx.Node) -> Value:
        source, position = node.args
        assert isinstance(source, fx.Node)
        value = self.values[source]
        assert isinstance(position, int)
        if isinstance(value, Extern):
            self.sizes.learn(node, node.meta.get("val"))
        results = value.results if isinstance(value, Computed | View | Extern) else ()
        return Item(source, position, results[position] if position < len(results) else None)

    def call(self, node: fx.Node) -> Value:
        described = node.meta.get("val")
        before = len(self.failures)
        try:
            return self.lowered(node, described)
        except Unsupported as unsupported:
            del self.failures[before:]
            return self.extern(node, described, unsupported.reason)

    def lowered(self, node: fx.Node, described: Any) -> Value:
        reason = externs.reason(node.target)
        if reason is not None:
            raise Unsupported(reason)
        viewing, rule = VIEWS.find(node.target), RULES.find(node.target)
        if viewing is None and rule is None:
            raise Unsupported(externs.without_rule(node.target))
        if self.off(str(node.target), "CPU"):
            raise Unsupported("switched off")
        specs = [None if d is None else self.spec(d) for d in _several(described)]
        if all(ZERO in spec.shape for spec in specs if spec is not None):
            raise Unsupported("a result without elements")
        args = [self.argument(a) for a in node.args]
        kwargs = {name: self.argument(a) for name, a in node.kwargs.items()}
        trial = Names(set(self.names.taken))
        builder = Builder(node.name, specs, trial, self.failures)
        made = (viewing or rule)(builder, *args, **kwargs)  # type: ignore[misc] # one is there
        results = (made,) if isinstance(made, Tensor) else tuple(made)
        _agree(node, results, specs)
        for compute in builder.computes:
            self.check_functions(compute)
        self.names.taken = trial.taken
        if viewing is not None:
            base = node.args[0]
            assert isinstance(base, fx.Node)
            return View(base, tuple(r for r in results if r is not None))
        return Computed(tuple(builder.computes), results)

    def check_functions(self, compute: Compute) -> None:
        for expr in walk(*compute.values):
            if isinstance(expr, Op) and expr.name in OPERATIONS and OPERATIONS[expr.name].ulp:
                dtype = expr.args[0].dtype
                if not self.supports(expr.name, dtype):
                    raise Unsupported(f"there is no {expr.name} of {dtype}")

    def argument(self, argument: Any) -> Any:
        match argument:
            case fx.Node():
                return self.operand(argument)
            case torch.SymInt():
                return self.sizes.index(argument)
            case complex():
                raise Unsupported("complex")
            case list() | tuple():
                return [self.argument(a) for a in argument]
            case _:
                return argument

    def operand(self, node: fx.Node) -> Tensor | Index | Real:
        value = self.values[node]
        if isinstance(value, Host):
            if value.number is None:
                raise Unsupported("a number that varies, and is no size")
            return value.number
        tensor = tensor_of(value)
        if tensor is None:
            raise Unsupported(self.why_unreadable(node))
        return tensor

    def why_unreadable(self, node: fx.Node) -> str:
        for described in _several(node.meta.get("val")):
            try:
                self.spec(described)
            except Unsupported as unsupported:
                return unsupported.reason
        return "an operand that is no tensor"

    def extern(self, node: fx.Node, described: Any, reason: str) -> Extern:
        self.sizes.learn(node, described)
        several = _several(described)
        results: list[Tensor | None] = []
        for at, one in enumerate(several):
            try:
                name = node.name if len(several) == 1 else self.names.fresh(f"{node.name}_{at}")
                results.append(self.memory(name, one))
            except Unsupported:
                results.append(None)
        return Extern(reason, tuple(results))


def _several(described: Any) -> Sequence[Any]:
    return described if isinstance(described, list | tuple) else (described,)


def _agree(node: fx.Node, results: Sequence[Tensor | None], specs: Sequence[Spec | None]) -> None:
    """A rule that does not give what torch says it gives would be wrong unseen."""
    agree = len(results) == len(specs) and all(
        spec is None
        if result is None
        else spec is not None and result.shape == spec.shape and result.dtype is spec.dtype
        for result, spec in zip(results, specs, strict=True)
    )
    if not agree:
        raise Unsupported(f"the rule of {node.target} gives another shape or type")
