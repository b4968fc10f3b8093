"""The compiler on one page: its stages, in order.

capture    trace the graph with torch's own stages, stop before any of torch's runtime is built,
           and freeze every duty of the runtime into a contract
runtime    emit one function per direction that does all of them, graph operations included
report     what was generated goes to the log, to TORCH_TRACE and, if asked for, to a folder
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from straightline.capture import cse, naming, origins, protect, simplify
from straightline.capture.contract import Contract
from straightline.config import Config
from straightline.report import trace
from straightline.runtime import programs
from straightline.torch_private import autograd, dynamo, stages, translate
from straightline.torch_private.stages import Stages


def compile_graph(
    gm: fx.GraphModule, example_inputs: Sequence[Any], config: Config
) -> Callable[..., Any]:
    """The program of one graph that Dynamo captured, as the function that Dynamo will call."""
    name, compile_id = origins.identifier(dynamo.function_name()), dynamo.compile_id()
    observe = _observer(config, f"{name}_{origins.identifier(compile_id)}")
    with stages.trace(gm, example_inputs, joint_passes=(cse.eliminate,)) as traced:
        written = translate.written_inputs(traced)
        simplify.resize_inputs(traced.forward)
        simplify.drop_detach(traced.forward, written.first_saved)
        if traced.backward is not None:
            simplify.drop_detach(traced.backward, len(translate.output_values(traced.backward)))
        protect.copy_saved_inputs(
            traced.forward, written.inputs, written.first_saved, written.tokens
        )
        contract = translate.contract(
            traced,
            name,
            naming.arguments(dynamo.lifted_names(gm), dynamo.sources(gm, len(example_inputs))),
            boxed=dynamo.takes_boxed_arguments(gm),
            token=False,
        )
        dynamo.report_strides(traced.forward)
        lifted = dict(zip([a.name for a in contract.arguments], traced.lifted, strict=False))
        if traced.backward is None:
            program = programs.build_inference(
                contract, traced.forward, compile_id, observe, lifted
            )
        else:
            program = _training(contract, traced, compile_id, observe, lifted)
    dynamo.count_compilation()
    return program.call


def _training(
    contract: Contract,
    traced: Stages,
    compile_id: str,
    observe: programs.Observer,
    lifted: dict[str, object],
) -> programs.Program:
    assert traced.backward is not None

    def around_backward(compile_now: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        with dynamo.compiling_backward(traced.tracing, traced.compile):
            return compile_now()

    def function_class(name: str, body: dict[str, object]) -> Any:
        return autograd.function_class(name, body, traced, token=contract.saved.token)

    return programs.build_training(
        contract,
        traced.forward,
        traced.backward,
        compile_id,
        observe,
        lifted,
        function_class=function_class,
        second_order=_no_second_order,
        around_backward=around_backward,
    )


def _no_second_order(ctx: Any, grads: list[Any]) -> Any:
    raise RuntimeError("double backward")


def _observer(config: Config, title: str) -> programs.Observer:
    def observe(generated: programs.Generated) -> None:
        trace.observe(generated)
        if config.dump is not None:
            trace.write(generated, config.dump, title)

    return observe
