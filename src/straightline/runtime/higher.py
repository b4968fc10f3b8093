"""Programs of a higher order: gradients that can be differentiated in turn.

Such a program is entered from the backward of the program one order lower, in place of it, when a
graph of the gradients is wanted. Its backward is emitted like any other.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from straightline.capture.contract import Contract, Derivation, Given
from straightline.runtime import body, forward
from straightline.runtime.backward import saved_names
from straightline.runtime.forward import Inner
from straightline.runtime.steps import flow, handles, modes, saved, tangents
from straightline.runtime.writer import Writer, tuple_of
from straightline.torch_private.second_order import REPLAYED


def emit_entry(
    writer: Writer,
    contract: Contract,
    lower: Contract,
    function: str,
    apply: str,
    *,
    under_autocast: object,
) -> None:
    """The function that the lower program's backward calls: `ctx` is its node, `grads` what it was
    given.

    `apply` is the global through which this program's autograd function is entered.
    `under_autocast(ctx, grads)`, if any, is called instead when autocast is on.
    """
    derivation = _derivation(contract)
    count = len(derivation.gradients)
    with writer.block(f"def {function}(ctx, grads):"):
        if under_autocast is not None:
            modes.emit_under_autocast(writer, under_autocast)
        passed = [
            handles.carrier(writer, lower, i) if item.requires_grad else "None"
            for i, item in enumerate(contract.inputs[:count])
        ]
        received = [writer.name(item.name) for item in contract.inputs[count:]]
        or_none = tangents.emit_received(writer, lower, received)
        results = [
            writer.name(f"grad_{item.name}")
            for item, has_gradient in zip(contract.inputs, derivation.gradients, strict=False)
            if has_gradient
        ]
        call = f"{apply}({', '.join(['ctx', *passed, *received])})"
        comma = "," if len(results) == 1 else ""
        writer.line(f"{', '.join(results)}{comma} = {call}" if results else call)
        saved.emit_drop(writer, lower)
        for name, deciding in zip(results, derivation.by_tangent, strict=True):
            if deciding is not None:
                _emit_detach(writer, name, [received[t] for t in deciding])
        given = iter(results)
        gradients = [
            or_none(number, next(given) if has else "None")
            for number, has in enumerate(derivation.gradients)
        ]
        leading = ["None"] if lower.derivation is not None else []
        writer.line(f"return {tuple_of([*leading, *gradients])}")


def _emit_detach(writer: Writer, name: str, deciding: Sequence[str]) -> None:
    """A gradient that depends on none but these tangents requires grad only if one of them does."""
    if not deciding:
        writer.line(f"{name} = {name}.detach()")
        return
    with writer.block(f"if not ({' or '.join(f'{t}.requires_grad' for t in deciding)}):"):
        writer.line(f"{name} = {name}.detach()")


def emit_inner(
    writer: Writer,
    contract: Contract,
    lower: Contract,
    graph: fx.GraphModule,
    function: str,
    *,
    compile_id: str,
    lower_saved: Sequence[str],
    recast: bool,
    kernels: body.Lower | None = None,
) -> Inner:
    """The autograd function's forward. `lower` in its text is the node of the lower program.

    `recast`: for callers that have autocast on, which reaches the operations of the gradients as it
    does in the lower program's backward.
    """
    derivation = _derivation(contract)
    taken = [item.name for item in contract.inputs]
    count = len(derivation.gradients)
    header = f"def {function}(ctx, lower, {', '.join(taken)}):"
    with writer.duty("compiled_function_forward"), writer.block(header):
        names = saved_names(writer, lower, lower_saved)
        saved.emit_load(writer, lower, names, node="lower")
        flat_tangents = tangents.emit(writer, lower, compile_id, taken[count:], symbols=True)
        kept = [*names.tensors, *names.opaque, *names.numbers]
        inputs = _inputs(writer, lower, derivation, kept, flat_tangents)
        with modes.without_autocast(writer, contract.modes.backward_casts):
            flat = body.emit(
                writer,
                graph,
                inputs,
                needed=flow.flat_positions(contract, range(contract.returns)),
                own=set(inputs) - set(taken),
                recast=_of_gradient if recast else None,
                lower=None if recast else kernels,
            )
            values = flow.wrapped(writer, contract, flat, range(contract.returns))
        return forward.emit_end(writer, contract, flat, values)


def _of_gradient(node: fx.Node) -> bool:
    """The node was not traced in the lower program, to be computed again here."""
    return not node.meta.get(REPLAYED)


def _inputs(
    writer: Writer,
    lower: Contract,
    derivation: Derivation,
    kept: Sequence[str],
    flat_tangents: Sequence[str],
) -> list[str]:
    """An expression for each placeholder of the graph."""
    parts: dict[int, list[str]] = {}
    inputs = []
    for given in derivation.given:
        match given:
            case Given("saved", index):
                inputs.append(kept[index])
            case Given("tangent", index):
                inputs.append(flat_tangents[index])
            case Given("input", index, part):
                if index not in parts:
                    parts[index] = handles.emit_value(writer, lower, index, derivation)
                inputs.append(parts[index][part])
    return inputs


def _derivation(contract: Contract) -> Derivation:
    assert contract.derivation is not None
    return contract.derivation


def title(order: int, direction: str = "") -> str:
    """`backward` for the first order, `second order backward` and so on for the others."""
    words = {1: "", 2: "second order", 3: "third order", 4: "fourth order", 5: "fifth order"}
    return f"{words.get(order, f'{order}th order')} {direction}".strip()


def under_autocast(title: str) -> str:
    """What is titled so, for callers that have autocast on."""
    return f"{title} under autocast"
