"""The backward direction of a program."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from straightline.capture.contract import Contract, places
from straightline.capture.origins import identifier
from straightline.runtime import body, support
from straightline.runtime.steps import modes, rng, saved, subclasses, tangents
from straightline.runtime.writer import Writer, tuple_of
from straightline.torch_private import autocast, switches

# torch's name for what puts gradients of subclasses together.
_WRAP = "backward_subclass_wrapper"


def emit(
    writer: Writer,
    contract: Contract,
    graph: fx.GraphModule,
    function: str,
    *,
    compile_id: str,
    kept: Sequence[str],
    second_order: object,
    under_autocast: object,
    rng_states: object,
    lower: body.Lower | None = None,
) -> None:
    """Write the function that autograd calls with the node and a list of gradients.

    `second_order(ctx, grads)` is called instead when a graph of the gradients is wanted, and
    `under_autocast(ctx, grads)` when autocast is on. None: this is that function.
    """
    recast = under_autocast is None
    names = saved_names(writer, contract, kept)
    header = f"def {function}(ctx, grads, entered=False):"
    with writer.duty("compiled_function_backward"), writer.block(header):
        if contract.backward_state is not None:
            # Compiled autograd traces the graph itself and never comes here.
            refuse = writer.bind(support.needs_compiled_autograd, "needs_compiled_autograd")
            writer.line(f"raise {refuse}()")
            return
        if not recast:
            emit_state(writer, contract, function, second_order)
            if autocast_matters(contract, graph):
                modes.emit_under_autocast(writer, under_autocast)
        with writer.duty("backward_prologue"):
            received = [writer.name(t.name) for t in contract.tangents]
            or_none = tangents.emit_received(writer, contract, received)
            saved.emit_load(writer, contract, names)
            saved.emit_drop(writer, contract)
            flat_tangents = tangents.emit(writer, contract, compile_id, received)
        with modes.without_autocast(writer, contract.modes.backward_casts):
            inputs = [*names.numbers, *names.tensors, *names.opaque, *flat_tangents]
            inputs += ["None"] * contract.backward_tokens
            inputs += rng.backward_inputs(writer, contract, rng_states)
            flat = body.emit(
                writer,
                graph,
                inputs,
                needed=range(_flat_gradients(contract) + int(contract.rng.functional)),
                own=set(inputs) | set(received),
                recast=_of_backward if recast else None,
                lower=None if recast else lower,
            )
        if contract.backward_tokens:
            flat = flat[: -contract.backward_tokens]
        with writer.duty("backward_epilogue"):
            rng.emit_backward_offset(writer, contract, flat)
            parts = iter(flat)
            gradients = [
                or_none(number, subclasses.wrap_named(writer, layout, parts, "grad", duty=_WRAP))
                for number, layout in enumerate(contract.gradients)
            ]
            if contract.derivation is not None:
                gradients = ["None", *gradients]  # for the node of the lower program
            writer.line(f"return {tuple_of(gradients)}")


def autocast_matters(contract: Contract, graph: fx.GraphModule) -> bool:
    """Whether the graph of gradients computes something else when its caller has autocast on."""
    return not contract.modes.backward_casts and any(map(autocast.may_cast, graph.graph.nodes))


def _of_backward(node: fx.Node) -> bool:
    """The node was not traced in forward, to be computed again here."""
    return node.meta.get("partitioner_tag") != "is_forward"


def _flat_gradients(contract: Contract) -> int:
    return sum(places(layout) for layout in contract.gradients)


def saved_names(writer: Writer, contract: Contract, kept: Sequence[str]) -> saved.SavedNames:
    """The names that forward had for what it saved; its arguments' names stand for nothing else
    here.
    """
    inputs = {item.name for item in contract.arguments} | {item.name for item in contract.inputs}
    names: list[str] = []
    for value in kept:
        fits = value in inputs and value not in names
        names.append(value if fits else writer.name(identifier(value)))
    tensors = contract.saved.tensors
    opaque = tensors + contract.saved.opaque
    return saved.SavedNames(
        tuple(names[:tensors]), tuple(names[tensors:opaque]), tuple(names[opaque:])
    )


def emit_state(writer: Writer, contract: Contract, function: str, second_order: object) -> None:
    """Nothing guards a backward: the state it runs in is read now."""
    has_stashed = writer.bind(switches.has_stashed, "has_stashed")
    get_stashed = writer.bind(switches.get_stashed, "get_stashed")
    context = writer.name("context")
    with writer.block(f'if not entered and {has_stashed}("context"):'):
        writer.line(f'{context} = {get_stashed}("context")')
        with writer.block(f"if {context} is not None:"):
            writer.line(f"return {context}.run({function}, ctx, grads, True)")
    functorch = writer.bind(switches.functorch_stack, "functorch_stack")
    refuse = writer.bind(support.inside_functorch, "inside_functorch")
    with writer.block(f"if {functorch}() is not None:"):
        writer.line(f"raise {refuse}()")
    if contract.modes.deterministic is False:
        deterministic = writer.bind(switches.are_deterministic, "are_deterministic")
        refuse = writer.bind(support.became_deterministic, "became_deterministic")
        with writer.block(f"if {deterministic}():"):
            writer.line(f"raise {refuse}()")
    is_grad_enabled = writer.bind(switches.is_grad_enabled, "is_grad_enabled")
    with writer.block(f"if {is_grad_enabled}():"):
        if contract.backward_mutates:
            refuse = writer.bind(support.mutates_under_create_graph, "mutates_under_create_graph")
            writer.line(f"raise {refuse}()")
        else:
            again = writer.bind(second_order, "second_order")
            writer.line(f"return {again}(ctx, grads)")
