"""Random state of accelerators, threaded through the program."""

from __future__ import annotations

from collections.abc import Sequence

from straightline.capture.contract import Contract
from straightline.runtime import rng
from straightline.runtime.steps import flow
from straightline.runtime.writer import Writer


def forward_inputs(writer: Writer, contract: Contract, states: object) -> list[str]:
    """Expressions for the state inputs of the forward graph: generators, then seed and offset."""
    names: list[str] = []
    if contract.rng.states and contract.kind == "training":
        names += [writer.name("rng_state") for _ in range(contract.rng.states)]
        bound = writer.bind(states, "rng_states")
        with writer.duty("functionalized_rng_wrapper"):
            writer.line(f"{', '.join(names)}, = {bound}.for_forward(ctx)")
    return names + _seed(writer, contract)


def backward_inputs(writer: Writer, contract: Contract, states: object) -> list[str]:
    """Expressions for the state inputs of the backward graph: seed and offset, then generators."""
    seed = _seed(writer, contract)
    names = [writer.name("rng_state") for _ in range(contract.rng.states)]
    if names:
        bound = writer.bind(states, "rng_states")
        with writer.duty("functionalized_rng_wrapper"):
            writer.line(f"{', '.join(names)}, = {bound}.for_backward(ctx)")
    return seed + names


def _seed(writer: Writer, contract: Contract) -> list[str]:
    if not contract.rng.functional:
        return []
    names = [writer.name("seed"), writer.name("offset")]
    read = writer.bind(rng.seed_and_offset, "seed_and_offset")
    with writer.duty("functionalized_rng_wrapper"):
        writer.line(f"{', '.join(names)} = {read}()")
    return names


def emit_offset(writer: Writer, contract: Contract, flat: Sequence[str]) -> None:
    """The graph says how far it advanced the generator."""
    if contract.rng.functional:
        _set(writer, flat[flow.flat_returns(contract)])


def emit_backward_offset(writer: Writer, contract: Contract, flat: Sequence[str]) -> None:
    """As `emit_offset`, for backward, where the offset follows the gradients."""
    if contract.rng.functional:
        _set(writer, flat[-1])


def _set(writer: Writer, value: str) -> None:
    write = writer.bind(rng.set_offset, "set_offset")
    with writer.duty("functionalized_rng_wrapper"):
        writer.line(f"{write}({value})")
