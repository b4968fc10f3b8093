"""The second-order program: what runs when a gradient is itself differentiated.

First order, a program is split into a forward, which keeps some values, and a backward. When that
backward runs under grad mode, a program is traced whose forward computes the gradients and whose
backward carries cotangents of the gradients to the program's inputs and tangents. It is traced from
Dynamo's graph, with autograd on, and then *cut*: whatever the first forward has kept is an input
and is not computed again. Hence random masks are the forward's own, mutated inputs count at their
old value, and nothing has to be kept that first-order backward would not keep.

The third order is the same with the second-order program in place of the first, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import fx

from straightline.capture import formulas, origins
from straightline.capture.numbering import Numbering, draws
from straightline.errors import SAVE_IT, DoubleBackwardError
from straightline.torch_private import operations
from straightline.torch_private.second_order import (
    BACKWARD_TOKEN,
    REPLAYED,
    WITH_EFFECTS,
    WITH_RNG,
    Ambient,
    Derived,
    derived,
    random_state,
    split,
)


@dataclass(frozen=True)
class Origin:
    """All that must be kept of a first-order program so that its derivatives can be traced later.

    `graph` is Dynamo's graph module, `inputs` are the fake inputs it was traced with, in its own
    order.
    """

    graph: fx.GraphModule
    inputs: tuple[Any, ...]
    ambient: Ambient = field(default_factory=Ambient.now)

    def source(self, position: int) -> str:
        """How the user's program reaches an input."""
        nodes = self.graph.graph.find_nodes(op="placeholder")
        if position >= len(nodes):
            return f"input {position}"
        source = getattr(nodes[position], "_dynamo_source", None)
        return origins.source_text(str(getattr(source, "name", None) or nodes[position].name))


@dataclass(frozen=True)
class Kept:
    """The values that a program's forward keeps, as numbers of values, in the order it returns
    them.

    `inputs`: it keeps the values of all of its inputs besides.
    """

    order: int
    numbering: Numbering
    values: tuple[int, ...]
    draws: tuple[int, ...]
    inputs: bool = False


@dataclass(frozen=True)
class Place:
    """One input of the second-order forward graph.

    `input`: flat input `index` of the lower program, its value at the time of the lower forward;
    `tangent`: flat tangent `index` of the lower program; `saved`: entry `index` of what its forward
    kept.
    """

    kind: Literal["input", "tangent", "saved"]
    index: int


@dataclass(frozen=True)
class SecondOrder:
    """A traced second-order program. *flat* means after subclasses were taken apart.

    `forward`: `places` -> one gradient for each True in `gradients`, then the values kept for
    `backward`. `backward`: (kept numbers, kept tensors, kept opaque values, one cotangent for each
    True in `differentiable`) -> one cotangent for each of `inputs` flat inputs and `tangents` flat
    tangents of the lower program, None where there is none. It is None when no gradient depends on
    anything. `gradients[i]`: whether (outer) input i of the lower program has a gradient.
    `reached[k]`: the (outer) inputs of the lower program, and its tangents after those, that
    gradient k depends on in the eyes of autograd. `live`:
    flat inputs of the lower program whose value is read though its forward did not keep it, each
    with the error to raise if there is no live leaf to read it from.
    """

    order: int
    forward: fx.GraphModule
    backward: fx.GraphModule | None
    places: tuple[Place, ...]
    gradients: tuple[bool, ...]
    differentiable: tuple[bool, ...]
    reached: tuple[frozenset[int], ...]
    live: Mapping[int, DoubleBackwardError]
    kept: Kept
    meta: Any
    subclass: Any


def kept_by(forward: fx.Graph, results: int, *, tokens: int = 0, inputs: bool = False) -> Kept:
    """What a first-order forward graph keeps: its outputs after the first `results`.

    The first `tokens` placeholders are none of the program's inputs.
    """
    numbering = Numbering()
    numbers = numbering.graph(forward, tokens)
    return Kept(
        1,
        numbering,
        tuple(numbers[v] if isinstance(v, fx.Node) else -1 for v in outputs_of(forward)[results:]),
        tuple(numbers[n] for n in forward.nodes if draws(n)),
        inputs,
    )


def second_order(
    origin: Origin, kept: Kept, joint_passes: Sequence[Callable[[fx.GraphModule], None]] = ()
) -> SecondOrder:
    """Trace the program one order above the one whose forward kept `kept`.

    Each of `joint_passes` edits the joint graph before it is split. Raises DoubleBackwardError when
    the program needs a value that was neither kept nor can be a live leaf.
    """
    order = kept.order + 1
    with derived(
        formulas.differentiable(origin.graph), origin.inputs, order, origin.ambient
    ) as trace:
        _refuse_side_effects(trace)
        joint = trace.graph
        graph = joint.graph
        _drop_effects(graph, len(trace.meta.tokens))
        primals, cotangents = _placeholders(graph)
        of = kept.numbering.of
        numbers = kept.numbering.continued(
            graph,
            {n: of("input", i) for i, n in enumerate(primals)}
            | {n: of("cotangent", order, i) for i, n in enumerate(cotangents)},
        )
        _same_draws(graph, numbers, kept)
        cut = _Cut(graph, numbers, kept)
        cut.apply()
        _uncopy_results(graph, trace.flat_results)
        _sweep(graph)
        inputs = trace.flat_inputs(len(primals))
        _measure_elsewhere(graph, primals[:inputs])
        _sweep(graph)
        _check_draws(graph)
        live = {
            i: _lost_input(origin, trace, i, node, kept)
            for i, node in enumerate(primals[:inputs])
            if node.users and _tensor(node)
        }
        places = tuple(cut.places(primals, inputs))
        drawn = tuple(
            numbers[n]
            for n in numbers
            if draws(n) and n.meta.get("partitioner_tag") == "is_forward"
        )
        by_name = {n.name: number for n, number in numbers.items()} | cut.names()
        graph.lint()
        joint.recompile()
        for edit in joint_passes:
            edit(joint)
        forward, backward = split(joint, trace.flat_results, trace.state)
        return SecondOrder(
            order=order,
            forward=forward,
            backward=backward,
            places=places,
            gradients=trace.kept,
            differentiable=trace.differentiable,
            reached=trace.reached,
            live=live,
            kept=Kept(
                order,
                kept.numbering,
                tuple(
                    by_name[v.name] if isinstance(v, fx.Node) else -1
                    for v in outputs_of(forward.graph)[trace.flat_results :]
                ),
                drawn,
                kept.inputs,
            ),
            meta=trace.meta,
            subclass=trace.subclass,
        )


def outputs_of(graph: fx.Graph) -> tuple[Any, ...]:
    """What a graph returns."""
    values = graph.output_node().args[0]
    assert isinstance(values, (tuple, list))
    return tuple(values)


def _placeholders(graph: fx.Graph) -> tuple[list[fx.Node], list[fx.Node]]:
    nodes = graph.find_nodes(op="placeholder")
    return (
        [n for n in nodes if not str(n.target).startswith("tangents")],
        [n for n in nodes if str(n.target).startswith("tangents")],
    )


def _tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _refuse_side_effects(trace: Derived) -> None:
    if any(i.mutates_data for i in trace.meta.input_info):
        raise _side_effects(None)


def _side_effects(where: str | None) -> DoubleBackwardError:
    return DoubleBackwardError(
        "double backward through an operation with side effects is not possible",
        where=where,
        todo="keep the operation out of the compiled function",
    )


def _drop_effects(graph: fx.Graph, tokens: int) -> None:
    """Take out the forward's operations that were there for their effect, which has happened
    already.

    Each takes a token and hands on another; the first placeholders and the first outputs are
    tokens, and so are some of backward's. A check in the formula of a gradient stays, without them:
    its place does not matter.
    """
    for node in graph.find_nodes(op="call_function", target=WITH_EFFECTS):
        results = {user.args[1]: user for user in node.users}
        operation, arguments = node.args[1], node.args[2:]
        replayed = bool(node.meta.get(REPLAYED))
        if not (replayed or operations.checks_only(operation)) or set(results) - {0}:
            raise _side_effects(origins.where(node))
        if not replayed:
            with graph.inserting_before(node):
                check = graph.call_function(operation, arguments, dict(node.kwargs))
            check.meta = {key: value for key, value in node.meta.items() if key != "val"}
        if 0 in results:
            results[0].replace_all_uses_with(node.args[0])
            graph.erase_node(results[0])
        graph.erase_node(node)
    given = graph.find_nodes(op="placeholder")
    gone = {*given[:tokens], *(n for n in given if str(n.target).startswith(BACKWARD_TOKEN))}
    graph.output_node().args = (tuple(v for v in outputs_of(graph) if v not in gone),)
    for placeholder in gone:
        graph.erase_node(placeholder)


class _Cut:
    """Replaces, in a joint graph, every value that the lower forward kept by an input."""

    def __init__(self, graph: fx.Graph, numbers: dict[fx.Node, int], kept: Kept) -> None:
        self.graph = graph
        self.numbers = numbers
        self.kept = kept
        self.index: dict[int, int] = {}
        for i, number in enumerate(kept.values):
            self.index.setdefault(number, i)
        self.taken: dict[int, fx.Node] = {}
        self.redrawn: dict[str, int] = {}

    def apply(self) -> None:
        for node in list(self.graph.nodes):
            if node.op == "output" or not node.users or node not in self.numbers:
                continue
            number = self.numbers[node]
            if number in self.index:
                node.replace_all_uses_with(self._given(self.index[number], node))
            elif draws(node) and node.meta.get(REPLAYED):
                self._draw_again(node, number)

    def _given(self, index: int, like: fx.Node) -> fx.Node:
        """The input that carries entry `index` of what was kept, in the layout of `like`."""
        node = self.taken.get(index)
        if node is None:
            with self.graph.inserting_before(self._first_cotangent()):
                node = self.graph.placeholder(f"primals_saved_{index}")
            node.meta = {
                key: like.meta[key]
                for key in ("val", "tensor_meta", "desc", "stack_trace")
                if key in like.meta
            }
            node.meta["partitioner_tag"] = "is_forward"
            self.taken[index] = node
        return node

    def _first_cotangent(self) -> fx.Node:
        nodes: list[fx.Node] = list(self.graph.nodes)
        for node in nodes:
            if node.op != "placeholder" or str(node.target).startswith("tangents"):
                return node
        raise AssertionError("a graph has an output")

    def _draw_again(self, node: fx.Node, number: int) -> None:
        """Where the generator's state was kept instead of numbers, draw them from that state."""
        state = self.index.get(self.kept.numbering.random_state(number))
        if state is None or node.target is WITH_RNG:
            return
        given = self._given(state, node)
        given.meta.pop("tensor_meta", None)
        given.meta["val"] = random_state(node.meta["val"])
        # The graph takes the operation as an argument, which its annotation does not know.
        operation: Any = node.target
        with self.graph.inserting_before(node):
            again = self.graph.call_function(
                WITH_RNG, (given, operation, *node.args), dict(node.kwargs)
            )
        again.meta = dict(node.meta)
        self.redrawn[again.name] = number
        node.replace_all_uses_with(again)

    def names(self) -> dict[str, int]:
        """The numbers of the nodes that the cut has made, by name."""
        return {n.name: self.kept.values[i] for i, n in self.taken.items()} | self.redrawn

    def places(self, primals: list[fx.Node], inputs: int) -> Iterator[Place]:
        """What each remaining input of the forward is; inputs that nothing reads are taken out."""
        given = {node: i for i, node in self.taken.items()}
        position = {node: i for i, node in enumerate(primals)}
        for node in _placeholders(self.graph)[0]:
            if node in given:
                yield Place("saved", given[node])
            elif not node.users:
                self.graph.erase_node(node)
            elif position[node] < inputs:
                yield Place("input", position[node])
            else:
                yield Place("tangent", position[node] - inputs)


def _sweep(graph: fx.Graph) -> None:
    """Remove everything that no output needs; checks alone have an effect of their own."""
    for node in reversed(list(graph.nodes)):
        kept = node.op in ("placeholder", "output") or operations.checks_only(node.target)
        if not (kept or node.users):
            graph.erase_node(node)


def _uncopy_results(graph: fx.Graph, results: int) -> None:
    """Take out the copies that made each gradient a result of its own, where it already is one."""
    output = graph.output_node()
    values = list(outputs_of(graph))
    roots: set[fx.Node] = set()
    for i, node in enumerate(values[:results]):
        if not isinstance(node, fx.Node) or node.target is not torch.ops.aten.clone.default:
            continue
        source = node.args[0]
        assert isinstance(source, fx.Node)
        root = operations.memory_of(source)
        if root.op == "call_function" and root not in roots:
            roots.add(root)
            values[i] = source
    output.args = (tuple(values),)


def _measure_elsewhere(graph: fx.Graph, inputs: list[fx.Node]) -> None:
    """Read sizes of a value that may be gone from a tangent or a kept value of the same size."""
    sizes = torch.ops.aten.sym_size.int
    own = set(inputs)
    others = [n for n in _placeholders(graph)[0] if n not in own and _tensor(n)]
    for node in inputs:
        for user in list(node.users):
            if user.target is not sizes:
                continue
            wanted = str(user.meta["val"])
            found = next(
                (
                    (other, dim)
                    for other in others
                    for dim, size in enumerate(other.meta["val"].shape)
                    if str(size) == wanted
                ),
                None,
            )
            if found is not None:
                user.args = found


def _same_draws(graph: fx.Graph, numbers: dict[fx.Node, int], kept: Kept) -> None:
    """The numbering of draws holds only if both traces draw the same."""
    again = tuple(numbers[n] for n in graph.nodes if draws(n) and n.meta.get(REPLAYED))
    if again != kept.draws:
        raise DoubleBackwardError(
            "double backward: the random numbers of the forward could not be found again",
            todo="remove random numbers that are drawn and not used",
        )


def _check_draws(graph: fx.Graph) -> None:
    for node in graph.nodes:
        if draws(node) and node.meta.get(REPLAYED) and node.target is not WITH_RNG:
            custom = operations.is_operator(node.target) and not operations.is_random(node.target)
            raise _lost(
                f"what {node.target} gave, which may not give the same again"
                if custom
                else "random numbers that the forward drew",
                node,
            )


def _lost_input(
    origin: Origin, trace: Derived, flat: int, node: fx.Node, kept: Kept
) -> DoubleBackwardError:
    """The error to raise when there is no live leaf with an input's value; raised now if none can
    be.
    """
    requires_grad, mutated, place = trace.input(trace.owner(flat))
    name = f"input {flat}" if place is None else origin.source(place)
    reader = next(iter(node.users))
    error = _lost(
        f"the value of {name} before the call" if mutated else f"the value of {name}", reader
    )
    if (mutated or not requires_grad) and not kept.inputs:
        raise error
    return error


def _lost(what: str, reader: fx.Node) -> DoubleBackwardError:
    return DoubleBackwardError(
        f"double backward needs {what}, which was not kept for backward",
        where=origins.where(reader),
        todo=SAVE_IT,
    )
