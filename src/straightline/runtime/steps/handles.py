"""What forward notes of its inputs for the day its gradients are differentiated."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from straightline.capture.contract import Contract, Derivation, Role, Subclass
from straightline.runtime import support
from straightline.runtime.steps import modes, subclasses
from straightline.runtime.writer import Writer, tuple_of
from straightline.torch_private import edges


def emit(writer: Writer, contract: Contract) -> None:
    """Write what `contract.handles` asks for to the node `ctx`; the inputs go by their names."""
    handles = contract.handles
    if handles.edges:
        _emit_edges(writer, _names(contract, handles.edges), contract.modes.grad_enabled)
    if handles.versions:
        versions = [f"{n}._version" for n in _names(contract, handles.versions)]
        writer.line(f"ctx.versions = {tuple_of(versions)}")
    if handles.numbers:
        passed_on = contract.derivation is not None
        numbers = tuple_of(_names(contract, handles.numbers))
        writer.line(f"ctx.numbers = {'lower.numbers' if passed_on else numbers}")
    if handles.values:
        _emit_values(writer, contract)


def _emit_edges(writer: Writer, names: Sequence[str], grad_enabled: bool) -> None:
    """Keep where gradients of these inputs go; of those that are no leaves nothing else is kept.

    There are none in inference mode, in which a program is called if grad mode was not enabled.
    """
    make = writer.bind(edges.saved_tensor, "saved_tensor")
    no_data = writer.bind(edges.no_data, "no_data")
    top = writer.bind(edges.top_saved_hooks, "top_saved_hooks")
    slow = writer.bind(edges.edge, "edge")
    kept = [writer.name(f"edge_of_{name}") for name in names]
    recorded = "" if grad_enabled else f" and not {modes.in_inference_mode(writer)}"
    with writer.block(f"if {top}(True) is None{recorded}:"):
        for name, edge in zip(names, kept, strict=True):
            writer.line(f"{edge} = {name} if {name}.is_leaf else {make}({name}, False)")
            with writer.block(f"if {edge} is not {name}:"):
                writer.line(f"{edge}.register_hooks(type, {no_data})")
        writer.line(f"ctx.edges = {tuple_of(kept)}")
    with writer.block("else:"):
        writer.line(f"ctx.edges = {tuple_of([f'{slow}({name})' for name in names])}")


def _emit_values(writer: Writer, contract: Contract) -> None:
    """Values of inputs, copied where this very call goes on to write to the input."""
    keep = writer.bind(edges.kept, "kept")
    mutated = {m.input for m in contract.mutations}
    lower = len(contract.derivation.gradients) if contract.derivation is not None else 0
    own = [
        f"{keep}({contract.inputs[i].name}.{'clone' if i in mutated else 'detach'}())"
        for i in contract.handles.values
        if i >= lower
    ]
    if len(own) < len(contract.handles.values):
        own.insert(0, "*lower.values")
    writer.line(f"ctx.values = {tuple_of(own)}")


def _names(contract: Contract, numbers: Sequence[int]) -> list[str]:
    return [contract.inputs[i].name for i in numbers]


def carrier(writer: Writer, contract: Contract, number: int) -> str:
    """The expression, over the node `ctx`, of what stands for input `number` in the autograd graph.

    It is the input itself where that is a leaf, else an empty tensor in the input's place.
    """
    if number in contract.handles.edges:
        unpack = writer.bind(edges.unpack, "carrier")
        return f"{unpack}({_edge('ctx', contract, number)})"
    return _edge("ctx", contract, number)


def _edge(node: str, contract: Contract, number: int) -> str:
    if number in contract.handles.edges:
        return f"{node}.edges[{contract.handles.edges.index(number)}]"
    tensors = [i for i, item in enumerate(contract.inputs) if item.role is Role.TENSOR]
    return f"{node}.next_functions[{tensors.index(number)}][0].variable"


def emit_value(
    writer: Writer, contract: Contract, number: int, derivation: Derivation
) -> list[str]:
    """Read the value that input `number` had at the call, over the node `lower`; its flat parts."""
    handles, item = contract.handles, contract.inputs[number]
    name = writer.name(item.name)
    if number in handles.numbers:
        writer.line(f"{name} = lower.numbers[{handles.numbers.index(number)}]")
    elif number in handles.values:
        writer.line(f"{name} = lower.values[{handles.values.index(number)}].unpack()")
    else:
        writer.line(f"{name} = {_edge('lower', contract, number)}")
        _emit_leaf_check(writer, contract, number, name, derivation)
    layout = item.layout
    return subclasses.members(writer, layout, name) if isinstance(layout, Subclass) else [name]


def _emit_leaf_check(
    writer: Writer, contract: Contract, number: int, name: str, derivation: Derivation
) -> None:
    """The value is there only if the input is a leaf that was not written to since."""
    what, where = next((w, at) for i, w, at in derivation.lost if i == number)
    if number in contract.handles.edges:
        tensor = writer.bind(torch.Tensor, "Tensor")
        refuse = writer.bind(support.lost_value, "lost_value")
        with writer.block(f"if not isinstance({name}, {tensor}):"):
            writer.line(f"raise {refuse}({what!r}, {where!r})")
    changed = writer.bind(support.changed_value, "changed_value")
    version = f"lower.versions[{contract.handles.versions.index(number)}]"
    with writer.block(f"if {name}._version != {version}:"):
        writer.line(f"raise {changed}({contract.inputs[number].name!r}, {where!r})")
