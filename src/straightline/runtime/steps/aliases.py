"""Outputs that look at memory the caller can reach otherwise: regenerated from their base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from straightline.capture.contract import Contract, From, Output, ViewStep
from straightline.capture.origins import identifier
from straightline.runtime import support
from straightline.runtime.body import callee
from straightline.runtime.steps import modes
from straightline.runtime.writer import Writer, literal
from straightline.torch_private import operations
from straightline.torch_private.marks import DYNAMIC_MARK

_OF_OUTPUTS = frozenset({From.OUTPUT, From.VIEW_OF_OUTPUT, From.IN_OUTPUT})


def needs_value(output: Output) -> bool:
    """The graph's own result is needed; else the output is had from its base alone."""
    itself = output.origin in (From.ARGUMENT, From.OUTPUT)
    return not output.alias or (output.replay is None and not itself)


def hide_view(writer: Writer, value: str, wanted: str) -> str:
    """`value` as a tensor that is no view: were it seen as one, it could not be written to."""
    unsafe = writer.bind(torch.ops.aten._unsafe_view.default, "aten__unsafe_view")
    name = writer.name(wanted)
    writer.line(f"{name} = {unsafe}({value}, {value}.shape)")
    return name


def emit(writer: Writer, contract: Contract, values: Sequence[str]) -> list[str]:
    """Expressions for what the caller gets. `values` are the graph's results past the mutations:
    outputs, then intermediate bases; unneeded ones may be anything.
    """
    shared: dict[tuple[str, str], str] = {}
    results: dict[int, str] = {}
    for position in _bases_first(contract):
        output, value = contract.outputs[position], values[position]
        if output.alias:
            base = _base(contract, output, values, results)
            if output.origin in (From.ARGUMENT, From.OUTPUT):
                value = base
            else:
                with writer.duty("output_alias_wrapper"):
                    value = _view(writer, contract, output, base, value, shared)
        elif output.origin in (From.IN_INPUT, From.IN_OUTPUT):
            with writer.duty("output_alias_wrapper"):
                base = _base(contract, output, values, results)
                value = _lodged(writer, output, base, value)
        elif output.origin is From.UNSAFE_VIEW and contract.kind == "inference":
            value = hide_view(writer, value, "out")
        results[position] = _mark(writer, output, value) if output.dynamic else value
    return [result for _, result in sorted(results.items())]


def _bases_first(contract: Contract) -> list[int]:
    """The outputs in an order in which each follows the output that it is made from."""
    order: list[int] = []
    for position in range(len(contract.outputs)):
        chain: list[int] = []
        at: int | None = position
        while at is not None and at not in order:
            chain.insert(0, at)
            output = contract.outputs[at]
            at = output.base if output.origin in _OF_OUTPUTS else None
        order += chain
    return order


def _base(
    contract: Contract, output: Output, values: Sequence[str], results: Mapping[int, str]
) -> str:
    assert output.base is not None
    match output.origin:
        case From.ARGUMENT:
            return contract.arguments[output.base].name
        case From.VIEW_OF_INPUT | From.IN_INPUT:
            return contract.inputs[output.base].name
        case From.OUTPUT | From.VIEW_OF_OUTPUT | From.IN_OUTPUT:
            return results[output.base]
        case _:
            return values[len(contract.outputs) + output.base]


def _base_requires_grad(contract: Contract, output: Output) -> bool:
    """Whether the base requires grad by the time that the view is taken."""
    assert output.base is not None
    match output.origin:
        case From.VIEW_OF_INPUT:
            mutated = any(m.input == output.base and m.requires_grad for m in contract.mutations)
            return mutated or contract.inputs[output.base].requires_grad
        case From.VIEW_OF_OUTPUT:
            return contract.outputs[output.base].requires_grad
        case _:
            return contract.kind == "training"


def _view(
    writer: Writer,
    contract: Contract,
    output: Output,
    base: str,
    value: str,
    shared: dict[tuple[str, str], str],
) -> str:
    tracked = _base_requires_grad(contract, output)
    recorded = tracked and output.differentiable
    name = writer.name("view")
    if tracked and recorded != contract.modes.grad_enabled:
        with modes.grad_mode(writer, contract.modes.grad_enabled, wanted=recorded):
            _replay(writer, output, base, value, name, {})
    else:
        _replay(writer, output, base, value, name, shared)
    if (output.detached and output.replay is None) or (
        tracked and not output.requires_grad and contract.modes.grad_enabled
    ):
        writer.line(f"{name} = {name}.detach()")
    elif tracked and not output.requires_grad and output.replay is None:
        # A subclass's own view may be differentiable although no gradient is recorded.
        with writer.block(f"if {name}.requires_grad:"):
            writer.line(f"{name} = {name}.detach()")
    elif output.requires_grad and not tracked:
        writer.line(f"{name}.requires_grad_(True)")
    return name


def _lodged(writer: Writer, output: Output, base: str, value: str) -> str:
    """The value where it belongs: a look at the memory of `base`, with the history of `value`."""
    view = writer.name("view")
    _replay(writer, output, base, value, view, {})
    name = writer.name("out")
    own = writer.bind(support.with_history, "with_history")
    writer.line(f"{name} = {own}({view}, {value}, {output.detached})")
    return name


def _replay(
    writer: Writer,
    output: Output,
    base: str,
    value: str,
    name: str,
    shared: dict[tuple[str, str], str],
) -> None:
    if output.replay is None:
        view_as = writer.bind(support.view_like, "view_like")
        writer.line(f"{name} = {view_as}({base}, {value})")
        return
    if not output.replay:
        alias = writer.bind(operations.builtin(operations.find("aten::alias")), "aten_alias")
        writer.line(f"{name} = {alias}({base})")
    current = base
    for number, step in enumerate(output.replay):
        last = number == len(output.replay) - 1
        target = name if last else writer.name("view")
        call = _step(writer, step, current)
        if step.pick is None:
            writer.line(f"{target} = {call}")
        else:
            # One call makes all the items of a split, as in eager; they share a grad_fn.
            if (current, call) not in shared:
                shared[current, call] = writer.name("views")
                writer.line(f"{shared[current, call]} = {call}")
            writer.line(f"{target} = {shared[current, call]}[{step.pick}]")
        current = target


def _step(writer: Writer, step: ViewStep, base: str) -> str:
    arguments = [_argument(writer, a) for a in step.arguments]
    arguments += [f"{k}={_argument(writer, v)}" for k, v in step.keywords]
    return f"{callee(writer, operations.find(step.op))}({', '.join([base, *arguments])})"


def _argument(writer: Writer, value: object) -> str:
    match value:
        case str():
            return value
        case tuple():
            return f"[{', '.join(_argument(writer, v) for v in value)}]"
        case torch.dtype():
            return writer.bind(value, str(value).removeprefix("torch."))
        case _:
            return literal(value) or writer.bind(value, identifier(type(value).__name__))


def _mark(writer: Writer, output: Output, value: str) -> str:
    """Tell Dynamo's next graph which sizes vary."""
    name = value
    if not value.isidentifier():
        name = writer.name("out")
        writer.line(f"{name} = {value}")
    marks = ", ".join(map(str, output.dynamic))
    if output.origin in (From.ARGUMENT, From.OUTPUT):
        marks = f"*getattr({name}, {DYNAMIC_MARK!r}, ()), {marks}"
    writer.line(f"{name}.{DYNAMIC_MARK} = {{{marks}}}")
    return name
