"""The one function of a program that no gradient flows through."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from torch import fx

from straightline.capture.contract import Contract
from straightline.runtime import body
from straightline.runtime.steps import (
    aliases,
    arguments,
    firstcall,
    flow,
    modes,
    mutations,
    rng,
    versions,
)
from straightline.runtime.writer import Writer, tuple_of


def emit(
    writer: Writer,
    contract: Contract,
    graph: fx.GraphModule,
    function: str,
    lower: body.Lower | None = None,
) -> None:
    """Write the function: arguments, the graph, mutations, aliases, return."""
    needed = flow.needed_values(contract)
    with writer.block(arguments.emit_signature(writer, contract, function)):
        firstcall.emit_check(writer, contract, function)
        modes.emit_prologue_range(writer, contract)
        arguments.emit(writer, contract)
        before = versions.emit_before(writer, contract)
        shielded = contract.modes.grad_enabled and any(i.requires_grad for i in contract.inputs)
        with contextlib.ExitStack() as stack:
            stack.enter_context(
                modes.grad_mode(writer, contract.modes.grad_enabled, wanted=False, needed=shielded)
            )
            stack.enter_context(modes.without_autocast(writer, contract.modes.autocast))
            inputs = flow.graph_inputs(writer, contract, [i.name for i in contract.inputs])
            inputs += rng.forward_inputs(writer, contract, None)
            own = {a.name for a in contract.arguments} if contract.boxed else set()
            flat = body.emit(
                writer,
                graph,
                inputs,
                needed=flow.flat_positions(contract, needed),
                own=own - flow.kept_inputs(contract),
                lower=lower,
            )
            flat = flat[contract.forward_tokens :]
            values = flow.wrapped(writer, contract, flat, needed)
            rng.emit_offset(writer, contract, flat)
        emit_epilogue(writer, contract, values, before)


def emit_epilogue(
    writer: Writer, contract: Contract, values: list[str], before: Mapping[int, str]
) -> None:
    """Mutations, aliases and the return, outside the graph's own modes."""
    count = len(contract.mutations)
    outputs = len(contract.outputs) - len(contract.restrided)
    mutations.emit(writer, contract, values[:count])
    arguments.emit_version_bumps(writer, contract)
    versions.emit_after(writer, contract, before)
    results = aliases.emit(writer, contract, values[count:])
    mutations.emit_restrided(writer, contract, results[outputs:])
    modes.emit_grad_after(writer, contract)
    writer.line(f"return {tuple_of(results[:outputs])}")
