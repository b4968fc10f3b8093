"""The compiler on one page: its stages, in order.

capture    trace the graph with torch's own stages, stop before any of torch's runtime is built,
           and freeze every duty of the runtime into a contract
runtime    emit one function per direction that does all of them, graph operations included
report     what was generated goes to the log, to TORCH_TRACE and, if asked for, to a folder
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import fx

from straightline import backends, fallback
from straightline.capture import (
    cse,
    cuts,
    dirty,
    naming,
    origins,
    outside,
    overlap,
    protect,
    second_order,
    simplify,
    unchanged,
)
from straightline.capture.contract import Contract
from straightline.config import Config
from straightline.kernels import native
from straightline.report import trace
from straightline.runtime import programs
from straightline.runtime.body import Lower
from straightline.switches import Consulted
from straightline.torch_private import (
    autograd,
    derived,
    dynamo,
    guards,
    keeping,
    owners,
    parts,
    returns,
    stages,
    translate,
)
from straightline.torch_private.function_class import higher_class
from straightline.torch_private.second_order import failures_named
from straightline.torch_private.stages import Stages

if TYPE_CHECKING:
    from straightline.report import dump  # loaded when files are wanted


def compile_graph(
    gm: fx.GraphModule, example_inputs: Sequence[Any], config: Config
) -> Callable[..., Any]:
    """The program of one graph that Dynamo captured, as the function that Dynamo will call.

    A graph that torch's stages cannot trace runs as it was captured, and that is said.
    """
    dirty.write_back(gm)
    if (node := overlap.written(gm)) is not None:
        return fallback.run_as_captured(gm, config, overlap.REASON, overlap.detail(node))
    if (node := dirty.written(gm)) is not None:
        return fallback.run_as_captured(gm, config, dirty.REASON, dirty.detail(node))
    if (node := outside.written(gm)) is not None:
        return fallback.run_as_captured(gm, config, outside.REASON, outside.detail(node))
    unchanged.drop(gm)
    try:
        # Dumped files are of whole programs.
        start = cuts.place(gm) if config.dump is None else None
        pair = parts.cut(gm, start) if start is not None else None
        if pair is not None:
            return _compile_parts(pair, example_inputs, config)
        return _compile(gm, example_inputs, config)
    except stages.Untraceable as failure:
        return fallback.run_as_captured(gm, config, failure.reason, failure.detail)


def _compile_parts(
    pair: parts.Parts, example_inputs: Sequence[Any], config: Config
) -> Callable[..., Any]:
    """The programs of both parts, and a function that calls one after the other."""
    first = _compile(pair.first, parts.examples(pair, example_inputs), config, "_first")
    later = parts.later_examples(pair, example_inputs)
    second = _compile(pair.second, later, config, "_second")
    name, compile_id = origins.identifier(dynamo.function_name()), dynamo.compile_id()
    return programs.build_sequence(pair.whole, [first, second], name, compile_id)


def _compile(
    gm: fx.GraphModule, example_inputs: Sequence[Any], config: Config, part: str = ""
) -> Callable[..., Any]:
    name = origins.identifier(dynamo.function_name()) + part
    compile_id = dynamo.compile_id()
    examples = _examples(config, example_inputs)
    with stages.trace(gm, example_inputs, joint_passes=(cse.eliminate,)) as traced:
        written = keeping.written_inputs(traced)
        simplify.resize_inputs(traced.forward)
        simplify.drop_detach(traced.forward, written.first_saved)
        simplify.drop_copies(traced.forward)
        if traced.backward is not None:
            simplify.drop_detach(traced.backward, len(returns.output_values(traced.backward)))
        more = protect.copy_saved_inputs(traced.forward, traced.backward, written)
        keeping.saved_more(traced, written, more)
        contract = translate.contract(
            traced,
            name,
            naming.arguments(dynamo.lifted_names(gm), dynamo.sources(gm, len(example_inputs))),
            boxed=dynamo.takes_boxed_arguments(gm),
            keep_inputs=config.double_backward == "save",
        )
        translate.check(contract, traced)
        dynamo.report_strides(traced.forward)
        lifted = dict(zip([a.name for a in contract.arguments], traced.lifted, strict=False))
        lower = _lowering(traced, config)
        title = f"{name}_{origins.identifier(compile_id)}"
        observe = _observer(config, title, examples, lower.source)
        if traced.backward is None:
            program = programs.build_inference(
                contract, traced.forward, compile_id, observe, lifted, lower
            )
        else:
            program = _training(gm, contract, traced, compile_id, observe, lifted, lower)
    dynamo.count_compilation()
    return owners.register(program.call)


def _lowering(traced: Stages, config: Config) -> native.Lowering:
    """What puts kernels into the graphs of a program, under the switches of this moment."""
    on = backends.llvm.enabled
    graphs = (traced.forward, traced.backward)
    if any(graph is not None and native.has_work(graph.graph) for graph in graphs):
        guards.assume_switch(on=on)
    return native.Lowering(config, Consulted(kernels=on, code=dynamo.code()))


def _training(
    gm: fx.GraphModule,
    contract: Contract,
    traced: Stages,
    compile_id: str,
    observe: programs.Observer,
    lifted: Mapping[str, object],
    lower: Lower,
) -> programs.Program:
    assert traced.backward is not None
    passed = tuple(traced.original_inputs[len(traced.lifted) :])
    origin = second_order.Origin(gm, passed)
    forward, results = traced.forward, len(returns.output_values(traced.forward))
    results -= contract.saved.tensors + contract.saved.opaque + contract.saved.numbers

    def kept() -> second_order.Kept:
        return second_order.kept_by(
            forward.graph,
            results,
            tokens=contract.forward_tokens,
            inputs=bool(contract.handles.values),
        )

    return programs.build_training(
        contract,
        traced.forward,
        traced.backward,
        compile_id,
        observe,
        lifted,
        seams=programs.Seams(
            function_class=functools.partial(autograd.function_class, told=autograd.facts(traced)),
            higher_class=higher_class,
            later=functools.partial(_later, traced.tracing, traced.compile),
            lower=lower,
        ),
        derive=_derive(origin, contract, kept),
    )


def _derive(
    origin: second_order.Origin, lower: Contract, kept: Callable[[], second_order.Kept]
) -> programs.Derive:
    """What traces the program of the gradients of `lower`, when they are first differentiated."""

    def derive() -> programs.Derived:
        with dynamo.tracing_backward(), failures_named():
            found = second_order.second_order(origin, kept(), joint_passes=(cse.eliminate,))
        contract = derived.contract(
            lower,
            found.order,
            found.forward,
            found.backward,
            found.meta,
            found.subclass,
            given=[(place.kind, place.index) for place in found.places],
            gradients=found.gradients,
            differentiable=found.differentiable,
            influence=found.reached,
            live=found.live,
        )
        above = _derive(origin, contract, lambda: found.kept)
        return programs.Derived(contract, found.forward, found.backward, above)

    return derive


def _later(
    tracing: Any, compiling: Any, compile_now: Callable[[], Callable[..., Any]]
) -> Callable[..., Any]:
    """Compile what was put off, in the state that forward was compiled in."""
    with dynamo.compiling_backward(tracing, compiling):
        return compile_now()


def _examples(config: Config, inputs: Sequence[Any]) -> dump.Examples | None:
    """Arguments like those that are compiled for, if they are wanted in files."""
    if config.dump is None:
        return None
    from straightline.report import dump

    return dump.examples(inputs)


def _observer(
    config: Config,
    title: str,
    examples: dump.Examples | None,
    kernel: Callable[[object], str | None],
) -> programs.Observer:
    if config.dump is None or examples is None:
        return trace.observe
    from straightline.report import dump

    folder, program = config.dump, dump.stem(config.dump, title)

    def observe(generated: programs.Generated) -> None:
        trace.observe(generated)
        dump.write(generated, folder, program, examples, kernel)

    return observe
