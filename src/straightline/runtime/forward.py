"""The forward direction of a program that gradients flow through."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from straightline.capture.contract import Contract, From, Output
from straightline.runtime import body, inference
from straightline.runtime.steps import (
    aliases,
    arguments,
    firstcall,
    flow,
    handles,
    modes,
    rng,
    saved,
    versions,
)
from straightline.runtime.writer import Writer, tuple_of


@dataclass(frozen=True)
class Inner:
    """What the autograd function's forward returns, by value number, and the values it keeps."""

    results: dict[int, str]
    saved: tuple[str, ...]


def _output(contract: Contract, number: int) -> Output | None:
    position = number - len(contract.mutations)
    return contract.outputs[position] if 0 <= position < len(contract.outputs) else None


def _boxed(contract: Contract, number: int) -> bool:
    """The value's geometry is all that is wanted: autograd must not take it for a result."""
    if number < len(contract.mutations):
        return contract.mutations[number].boxed
    output = _output(contract, number)
    return output is not None and output.alias


def emit_outer(
    writer: Writer, contract: Contract, function: str, apply: str, inner: dict[int, str]
) -> None:
    """The function that is called: everything that must happen outside the autograd function.

    `apply` is the global through which the autograd function is entered, `inner` what its forward
    returns, by value number.
    """
    with writer.block(arguments.emit_signature(writer, contract, function)):
        firstcall.emit_check(writer, contract, function)
        modes.emit_prologue_range(writer, contract)
        arguments.emit(writer, contract)
        before = versions.emit_before(writer, contract)
        names = _outer_names(writer, contract, inner)
        unpacked = list(names.values())
        passed = [f"{i.name}.detach()" if i.detached else i.name for i in contract.inputs]
        call = f"{apply}({', '.join(passed)})"
        slow = any(o.alias and aliases.needs_value(o) for o in contract.outputs)
        with contextlib.ExitStack() as stack:
            stack.enter_context(modes.without_saved_tensor_hooks(writer, contract))
            stack.enter_context(modes.view_tracking(writer, needed=slow))
            stack.enter_context(modes.grad_mode(writer, contract.modes.grad_enabled, wanted=True))
            comma = "," if len(unpacked) == 1 else ""
            with writer.duty("runtime_wrapper_orchestration"):
                writer.line(f"{', '.join(unpacked)}{comma} = {call}" if unpacked else call)
        values = []
        for number in range(contract.returns):
            value = names.get(number, "None")
            values.append(f"{value}[0]" if number in names and _boxed(contract, number) else value)
        inference.emit_epilogue(writer, contract, _bound(writer, contract, values), before)


def _outer_names(writer: Writer, contract: Contract, inner: dict[int, str]) -> dict[int, str]:
    """The names that the inner function has for its results, where they are names and differ."""
    inputs = {i.name for i in contract.inputs} | {a.name for a in contract.arguments}
    names: dict[int, str] = {}
    for number, value in inner.items():
        free = value.isidentifier() and value not in inputs and value not in names.values()
        names[number] = (
            value if free and value != "None" else writer.name(_value_name(contract, number))
        )
    return names


def _bound(writer: Writer, contract: Contract, values: list[str]) -> list[str]:
    """Values that are read more than once under a name of their own."""
    for number, mutation in enumerate(contract.mutations):
        if mutation.boxed and not values[number].isidentifier():
            name = writer.name("new")
            writer.line(f"{name} = {values[number]}")
            values[number] = name
    return values


def _value_name(contract: Contract, number: int) -> str:
    if number < len(contract.mutations):
        return f"new_{contract.inputs[contract.mutations[number].input].name}"
    return "out" if _output(contract, number) is not None else "base"


def emit_inner(
    writer: Writer,
    contract: Contract,
    graph: fx.GraphModule,
    function: str,
    rng_states: object,
    lower: body.Lower | None = None,
) -> Inner:
    """The autograd function's forward: the graph, and what is kept for backward."""
    needed = frozenset(flow.returned(contract))
    taken = [i.name for i in contract.inputs]
    header = f"def {function}(ctx{''.join(f', {n}' for n in taken)}):"
    with writer.duty("compiled_function_forward"), writer.block(header):
        if contract.backward_state is not None:
            writer.line(f"ctx._compiled_autograd_backward_state = {taken[contract.backward_state]}")
        extra: list[str] = []
        with modes.without_autocast(writer, contract.modes.autocast):
            inputs = flow.graph_inputs(writer, contract, taken)
            extra = rng.forward_inputs(writer, contract, rng_states)
            positions = flow.flat_positions(contract, needed)
            flat = body.emit(writer, graph, inputs + extra, needed=positions, own=(), lower=lower)
            flat = flat[contract.forward_tokens :]
            values = flow.wrapped(writer, contract, flat, needed)
            rng.emit_offset(writer, contract, flat)
        return emit_end(writer, contract, flat, values)


def emit_end(
    writer: Writer, contract: Contract, flat: Sequence[str], values: Sequence[str]
) -> Inner:
    """The last lines of an autograd function's forward: keep what backward needs, and return.

    `flat` are the graph's outputs, `values` the contract's.
    """
    kept = tuple(flat[flow.flat_returns(contract) + int(contract.rng.functional) :])
    with writer.duty("compiled_fn_wrapper"):
        results = _results(writer, contract, values)
    saved.emit_save(writer, contract, kept, results)
    handles.emit(writer, contract)
    with writer.duty("compiled_fn_wrapper"):
        if contract.missing is not None:
            writer.line("ctx.materialize_grads = False")
        _mark(writer, contract, results)
        writer.line(f"return {tuple_of(results.values())}")
    return Inner(results, kept)


def _results(writer: Writer, contract: Contract, values: Sequence[str]) -> dict[int, str]:
    """What the autograd function returns, by value number."""
    results: dict[int, str] = {}
    for number in flow.returned(contract):
        value = values[number]
        if _boxed(contract, number):
            value = f"({value},)"
        elif _hides_view(contract, number):
            value = aliases.hide_view(writer, value, _value_name(contract, number))
        results[number] = value
    return results


def _hides_view(contract: Contract, number: int) -> bool:
    """The graph makes the value as a view, and it is none in eager."""
    output = _output(contract, number)
    if output is not None:
        return output.origin is From.UNSAFE_VIEW
    base = number - len(contract.mutations) - len(contract.outputs)
    return base in contract.base_views


def _mark(writer: Writer, contract: Contract, results: dict[int, str]) -> None:
    """Say which tensors carry no gradient."""
    plain = [
        value
        for number, value in results.items()
        if not _boxed(contract, number) and not _requires_grad(contract, number)
    ]
    tensors = [v for v in plain if v != "None" and v.isidentifier()]
    if tensors:
        writer.line(f"ctx.non_differentiable = {tuple_of(tensors)}")
        writer.line("ctx._materialize_non_diff_grads = False")


def _requires_grad(contract: Contract, number: int) -> bool:
    if number < len(contract.mutations):
        return contract.mutations[number].requires_grad
    output = _output(contract, number)
    return output is None or output.requires_grad or not output.tensor
