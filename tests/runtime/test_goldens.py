"""The text that each duty turns into, from contracts made by hand, and its absence without it.

`pytest tests/runtime/test_goldens.py --update-goldens` writes `goldens/*.txt` anew; read the
difference before you commit it.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx
from torch.testing._internal.two_tensor import TwoTensor

from straightline.capture.contract import (
    Argument,
    Contract,
    Duplicate,
    FirstCall,
    Format,
    From,
    Handles,
    Input,
    Layout,
    Missing,
    Modes,
    Mutation,
    Opaque,
    Output,
    Plain,
    Rng,
    Role,
    Saved,
    SharedBase,
    Strides,
    Subclass,
    Tangent,
    ViewStep,
    Write,
    Zero,
)
from straightline.runtime import backward, forward, inference
from straightline.runtime.writer import Writer
from straightline.torch_private.marks import DYNAMIC_MARK

GOLDENS = Path(__file__).parent / "goldens"
aten = torch.ops.aten

TWO = Subclass(TwoTensor, (("a", Plain()), ("b", Plain())), (3,), (1,), None)
NESTED = Subclass(TwoTensor, (("a", TWO), ("b", Plain())), (3,), (1,), None)
SIZED = Subclass(TwoTensor, (("a", Plain()), ("b", Plain())), (None, 3), (None, 1), None)
WITH_OPAQUE = Subclass(TwoTensor, (("a", Plain()), ("rule", Opaque())), (3,), (1,), None)
TRANSPOSE = ViewStep("aten::t", ())


# -- Programs made by hand -----------------------------------------------------------------------


def graph(count: int, make: Callable[..., Sequence[Any]]) -> fx.GraphModule:
    """A graph of `count` placeholders; `make` applies operations and returns the outputs."""
    made = fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(made)
    placeholders = [fx.Proxy(made.placeholder(f"p{i}"), tracer) for i in range(count)]
    outputs = make(*placeholders)
    made.output(tuple(o.node if isinstance(o, fx.Proxy) else o for o in outputs))
    return fx.GraphModule(torch.nn.Module(), made)


def sines(*values: fx.Proxy) -> list[Any]:
    """One operation for each placeholder."""
    return [aten.sin.default(v) for v in values]


def contract(kind: str = "inference", names: str = "x", **fields: Any) -> Contract:
    """A contract of plain tensors with one value as output, where `fields` say nothing else."""
    words = names.split()
    layouts: Mapping[str, Layout] = fields.pop("layouts", {})
    changes: Mapping[str, Mapping[str, Any]] = fields.pop("changes", {})
    training = kind == "training"
    tensors = [
        dataclasses.replace(
            Input(n, Role.TENSOR, layouts.get(n, Plain()), i, requires_grad=training),
            **changes.get(n, {}),
        )
        for i, n in enumerate(words)
    ]
    base: dict[str, Any] = {
        "name": "program",
        "kind": kind,
        "arguments": tuple(Argument(n, f"self.{n}", Role.TENSOR, training) for n in words),
        "inputs": tuple(tensors),
        "modes": Modes(grad_enabled=training),
        "outputs": (Output(From.VALUE, True, training, training),),
    }
    if training:
        base["tangents"] = (TANGENT,)
        base["gradients"] = (Plain(),) * len(words)
    return Contract(**{**base, **fields})


TANGENT = Tangent(0, Plain(), None, (), "output 0")


class States:
    """Stands for the generators of a program; only its name is written."""


def _writer(made: Contract) -> Writer:
    writer = Writer()
    for item in made.arguments:
        writer.reserve(item.name)
    for given in made.inputs:
        writer.reserve(given.name)
    return writer


def text_of(made: Contract, ahead: fx.GraphModule, back: fx.GraphModule | None = None) -> str:
    """The functions of a program, forward and backward where it has both."""
    writer = _writer(made)
    if back is None:
        inference.emit(writer, made, ahead, writer.name(made.name))
        return writer.text
    states = States()
    outer, inner = writer.name("program"), writer.name("program_forward")
    apply = writer.name("apply")
    written = forward.emit_inner(writer, made, ahead, inner, states)
    writer.line("")
    writer.line("")
    forward.emit_outer(writer, made, outer, apply, written.results)
    behind = _writer(made)
    backward.emit(
        behind,
        made,
        back,
        behind.name("program_backward"),
        compile_id="0/0",
        kept=written.saved,
        second_order=object(),
        under_autocast=object(),
        rng_states=states,
    )
    return f"{writer.text}\n\n{behind.text}"


def plain(kind: str) -> str:
    """A program that has no duty at all."""
    made = contract(kind)
    if kind == "inference":
        return text_of(made, graph(1, sines))
    return text_of(made, graph(1, sines), graph(1, sines))


# -- The duties ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A program with one duty. `traces` are what the duty writes: absent where it is absent."""

    program: Callable[[], str]
    traces: tuple[str, ...]
    kind: str = "inference"


CASES: dict[str, Case] = {}


def case(*traces: str, kind: str = "inference") -> Callable[[Callable[[], str]], None]:
    def add(program: Callable[[], str]) -> None:
        CASES[program.__name__] = Case(program, traces, kind)

    return add


def _mutated(write: Write, requires_grad: bool = False, **fields: Any) -> str:
    made = contract(
        names="x y",
        mutations=(Mutation(0, write, requires_grad),),
        **fields,
    )
    return text_of(made, graph(2, lambda x, y: [aten.mul.Tensor(x, y), aten.sin.default(y)]))


@case("x.copy_(")
def mutation_copy() -> str:
    return _mutated(Write.COPY)


@case("x.detach().copy_(")
def mutation_copy_detached() -> str:
    return _mutated(Write.COPY_DETACHED)


@case("x.as_strided_(")
def mutation_restride() -> str:
    return _mutated(Write.RESTRIDE)


@case("x.as_strided_(", "x.copy_(")
def mutation_restride_copy() -> str:
    return _mutated(Write.RESTRIDE_COPY)


@case("x.as_strided_(", "x.detach().copy_(")
def mutation_restride_copy_detached() -> str:
    return _mutated(Write.RESTRIDE_COPY_DETACHED)


@case("x.set_(", "set_grad_enabled(False)", "finally:", "set_grad_enabled(True)")
def mutation_set() -> str:
    return _mutated(Write.SET, modes=Modes(grad_enabled=True))


@case("x.set_(")
def mutation_set_without_grad() -> str:
    """The caller has gradients off."""
    text = _mutated(Write.SET)
    assert "set_grad_enabled" not in text
    return text


@case("raise RuntimeError", "streams")
def mutation_stream_error() -> str:
    return _mutated(Write.STREAM_ERROR)


@case("running.copy_(", kind="training")
def mutation_in_training() -> str:
    made = contract(
        "training",
        "x running",
        mutations=(Mutation(1, Write.COPY, True),),
        tangents=(Tangent(1, Plain(), None, (), "output 0"),),
        changes={"running": {"leaf": False}},
    )
    ahead = graph(2, lambda x, r: [aten.mul.Tensor(r, x), aten.sin.default(x)])
    return text_of(made, ahead, graph(1, lambda g: [aten.cos.default(g), None]))


def _aliased(output: Output, **fields: Any) -> str:
    made = contract(outputs=(Output(From.VALUE, True), output), **fields)
    return text_of(made, graph(1, lambda x: [aten.sin.default(x), aten.t.default(x)]))


@case(", x)")
def alias_input() -> str:
    return _aliased(Output(From.ARGUMENT, True, base=0))


@case("aten_t(")
def alias_object_of_output() -> str:
    """The view that follows is one object with the output ahead of it."""
    made = contract(
        outputs=(
            Output(From.OUTPUT, True, base=1),
            Output(From.VIEW_OF_INPUT, True, base=0, replay=(TRANSPOSE,)),
        )
    )
    return text_of(made, graph(1, lambda x: [aten.sin.default(x), aten.t.default(x)]))


@case("aten_t(x)")
def alias_view_of_input() -> str:
    return _aliased(Output(From.VIEW_OF_INPUT, True, base=0, replay=(TRANSPOSE,)))


@case("set_grad_enabled(False)", "finally:", "set_grad_enabled(True)", "view = view.detach()")
def alias_view_without_grad() -> str:
    """Taken under no_grad, returned with gradients on."""
    return _aliased(
        Output(From.VIEW_OF_INPUT, True, base=0, replay=(TRANSPOSE,)),
        modes=Modes(grad_enabled=True),
        changes={"x": {"requires_grad": True}},
    )


@case("set_grad_enabled(not ", "finally:", "set_grad_enabled(False)")
def alias_view_with_grad() -> str:
    """Taken under enable_grad, returned with gradients off."""
    return _aliased(
        Output(From.VIEW_OF_INPUT, True, True, True, base=0, replay=(TRANSPOSE,)),
        changes={"x": {"requires_grad": True}},
    )


@case("view_like(x")
def alias_view_of_input_by_geometry() -> str:
    return _aliased(Output(From.VIEW_OF_INPUT, True, base=0))


@case("aten_alias(x)")
def alias_view_without_a_step() -> str:
    return _aliased(Output(From.VIEW_OF_INPUT, True, base=0, replay=()))


@case("x.size(0)", "aten_view(")
def alias_view_with_symbolic_sizes() -> str:
    step = ViewStep("aten::view", ((-1, "x.size(0)"),))
    return _aliased(Output(From.VIEW_OF_INPUT, True, base=0, replay=(step,)))


@case("aten__unsafe_view(")
def hidden_view_in_inference() -> str:
    return _aliased(Output(From.UNSAFE_VIEW, True))


@case("with_history(")
def value_in_input() -> str:
    return _aliased(Output(From.IN_INPUT, True, True, True, base=0, replay=(TRANSPOSE,)))


@case("aten_t(sin_default)")
def alias_view_of_output() -> str:
    return _aliased(Output(From.VIEW_OF_OUTPUT, True, base=0, replay=(TRANSPOSE,)))


@case("views = aten_split_Tensor(x, 1)", "views[0]", "views[1]")
def alias_items_of_a_split() -> str:
    """One call makes both."""
    items = tuple(
        Output(
            From.VIEW_OF_INPUT,
            True,
            base=0,
            replay=(ViewStep("aten::split.Tensor", (1,), pick=i),),
        )
        for i in range(2)
    )
    return text_of(
        contract(outputs=items), graph(1, lambda x: [aten.sin.default(x), aten.cos.default(x)])
    )


@case(".requires_grad_(True)")
def alias_that_requires_grad() -> str:
    return _aliased(Output(From.VIEW_OF_INPUT, True, True, base=0, replay=(TRANSPOSE,)))


@case(DYNAMIC_MARK)
def dynamic_marks() -> str:
    return text_of(contract(outputs=(Output(From.VALUE, True, dynamic=(0, 2)),)), graph(1, sines))


@case("view = aten_t(sin_default)", kind="training")
def alias_view_of_an_intermediate() -> str:
    made = contract(
        "training",
        outputs=(Output(From.VIEW_OF_BASE, True, True, True, base=0, replay=(TRANSPOSE,)),),
        intermediate_bases=1,
        base_layouts=(Plain(),),
        tangents=(Tangent(1, Plain(), None, (), "intermediate base 0"),),
    )
    ahead = graph(1, lambda x: [aten.t.default(x), aten.sin.default(x)])
    return text_of(made, ahead, graph(1, sines))


@case("aten__unsafe_view(", kind="training")
def intermediate_that_is_no_view_to_autograd() -> str:
    made = contract(
        "training",
        outputs=(Output(From.VIEW_OF_BASE, True, True, True, base=0, replay=(TRANSPOSE,)),),
        intermediate_bases=1,
        base_layouts=(Plain(),),
        base_views=(0,),
        tangents=(Tangent(1, Plain(), None, (), "intermediate base 0"),),
    )
    ahead = graph(1, lambda x: [aten.t.default(x), aten.sin.default(x)])
    return text_of(made, ahead, graph(1, sines))


@case("aten__unsafe_view(", kind="training")
def output_that_is_no_view_to_autograd() -> str:
    made = contract("training", outputs=(Output(From.UNSAFE_VIEW, True, True, True),))
    return text_of(made, graph(1, sines), graph(1, sines))


@case("ctx.non_differentiable = ", "_materialize_non_diff_grads = False", kind="training")
def output_without_gradient() -> str:
    made = contract(
        "training",
        outputs=(Output(From.VALUE, True, True, True), Output(From.VALUE, True)),
    )
    ahead = graph(1, lambda x: [aten.sin.default(x), aten.sign.default(x)])
    return text_of(made, ahead, graph(1, sines))


def _subclass(layout: Layout, count: int, **changes: Any) -> str:
    made = contract(
        names="x y",
        layouts={"x": layout},
        outputs=(Output(From.VALUE, True, layout=layout),),
        changes={"x": changes},
    )
    return text_of(made, graph(count, lambda *p: [aten.sin.default(v) for v in p[:-1]]))


@case("TwoTensor", "wrong_type(", "x.a", "__tensor_unflatten__(")
def subclass_unwrap_and_wrap() -> str:
    return _subclass(TWO, 3)


@case("x_a.a", "x_a.b")
def subclass_nested() -> str:
    return _subclass(NESTED, 4)


@case("x.size(0)", "x.stride(0)")
def subclass_with_symbolic_sizes() -> str:
    return _subclass(SIZED, 5)


@case("x.rule")
def subclass_with_an_opaque_member() -> str:
    made = contract(names="x y", layouts={"x": WITH_OPAQUE})
    return text_of(made, graph(3, lambda a, rule, y: [aten.add.Tensor(a, y)]))


@case("x.trigger_wait()")
def subclass_that_waits() -> str:
    return _subclass(TWO, 3, waits=True)


@case("aten_sin(y)")
def subclass_frozen() -> str:
    """It is not taken apart: None stands in its place."""
    made = contract(names="x y", layouts={"x": TWO}, changes={"x": {"frozen": True}})
    return text_of(made, graph(2, lambda x, y: [aten.sin.default(y)]))


@case("grad_out0_a", "__tensor_flatten__()[1]", "TwoTensor", kind="training")
def subclass_in_training() -> str:
    made = contract(
        "training",
        layouts={"x": TWO},
        outputs=(Output(From.VALUE, True, True, True, layout=TWO),),
        tangents=(Tangent(0, TWO, None, (TANGENT, TANGENT), "output 0"),),
        gradients=(TWO,),
    )
    return text_of(made, graph(2, sines), graph(2, sines))


@case("if y is not x:", "not_a_duplicate(")
def duplicate_arguments() -> str:
    made = contract(names="x y", duplicates=(Duplicate(1, 0),))
    made = dataclasses.replace(made, inputs=made.inputs[:1])
    return text_of(made, graph(1, sines))


@case("_base", "untyped_storage()", "increment_version(x)")
def synthetic_base() -> str:
    made = contract(
        names="x y",
        bases=(SharedBase((0, 1), (0,)),),
        mutations=(Mutation(0, Write.COPY, False),),
    )
    made = dataclasses.replace(made, inputs=(Input("base", Role.TENSOR),))
    return text_of(made, graph(1, lambda b: [aten.mul.Tensor(b, 2), aten.sin.default(b)]))


@case("x.as_strided_(")
def synthetic_base_with_changed_geometry() -> str:
    made = contract(
        names="x y",
        bases=(SharedBase((0, 1), ()),),
        restrided=(0,),
        outputs=(Output(From.VALUE, True), Output(From.VALUE, True)),
    )
    made = dataclasses.replace(made, inputs=(Input("base", Role.TENSOR),))
    return text_of(made, graph(1, lambda b: [aten.sin.default(b), aten.t.default(b)]))


@case("set_grad_enabled(False)", "finally:", "set_grad_enabled(True)")
def mode_without_gradients() -> str:
    made = contract(modes=Modes(grad_enabled=True), changes={"x": {"requires_grad": True}})
    return text_of(made, graph(1, sines))


@case("DisableAutocast")
def mode_autocast() -> str:
    return text_of(contract(modes=Modes(grad_enabled=False, autocast=True)), graph(1, sines))


@case("set_grad_enabled(True)")
def mode_left_changed() -> str:
    return text_of(contract(modes=Modes(grad_enabled=False, grad_after=True)), graph(1, sines))


@case("disable_saved_hooks(", "enable_saved_hooks()", kind="training")
def mode_saved_tensor_hooks_inlined() -> str:
    made = contract("training", modes=Modes(grad_enabled=True, hooks_inlined=True))
    return text_of(made, graph(1, sines), graph(1, sines))


@case("are_deterministic()", "became_deterministic()", kind="training")
def mode_deterministic() -> str:
    made = contract("training", modes=Modes(grad_enabled=True, deterministic=False))
    return text_of(made, graph(1, sines), graph(1, sines))


@case("if unchecked:", "call_checked(")
def first_call_check() -> str:
    return text_of(contract(first_call=FirstCall(check_custom_ops=True)), graph(1, sines))


@case("_is_profiler_enabled", "record_prologue()")
def profiler_range() -> str:
    return text_of(contract(profile=True), graph(1, sines))


@case("= args", "args.clear()")
def boxed_arguments() -> str:
    return text_of(contract(names="x y", boxed=True), graph(2, lambda x, y: [x * y]))


@case("args.clear()", "aten_view(x, [s0, 2])")
def boxed_number_that_a_view_reads() -> str:
    """It outlives its last use in the graph."""
    view = Output(From.VIEW_OF_INPUT, True, base=0, replay=(ViewStep("aten::view", (("s0", 2),)),))
    made = contract(
        names="x s0",
        changes={"s0": {"role": Role.NUMBER}},
        outputs=(Output(From.VALUE, True), view),
        boxed=True,
    )
    text = text_of(made, graph(2, lambda x, s0: [aten.mul.Tensor(x, s0), x]))
    assert "del s0" not in text
    return text


@case("raise AssertionError")
def debug_assertions() -> str:
    return text_of(contract(debug_requires_grad=(False,)), graph(1, sines))


@case("x.detach()", kind="training")
def detached_input() -> str:
    made = contract("training", changes={"x": {"detached": True}})
    return text_of(made, graph(1, sines), graph(1, sines))


@case("seed_and_offset()", "set_offset(")
def rng_functional() -> str:
    made = contract(rng=Rng(functional=True))
    return text_of(
        made, graph(3, lambda x, seed, offset: [aten.sin.default(x), aten.add.Tensor(offset, 4)])
    )


@case("rng_states.for_forward(ctx)", "rng_states.for_backward(ctx)", kind="training")
def rng_generators() -> str:
    made = contract("training", rng=Rng(states=2, device=torch.device("cuda")))

    def ahead(x: Any, first: Any, second: Any) -> list[Any]:
        return [aten.bernoulli.default(x, generator=first)]

    return text_of(made, graph(3, ahead), graph(3, ahead))


@case("seed_and_offset()", "set_offset(", kind="training")
def rng_functional_in_training() -> str:
    made = contract("training", rng=Rng(functional=True))

    def step(x: Any, seed: Any, offset: Any) -> list[Any]:
        return [aten.sin.default(x), aten.add.Tensor(offset, 4)]

    return text_of(made, graph(3, step), graph(3, step))


@case("(None, x)")
def tokens_in_forward() -> str:
    made = contract(forward_tokens=1)
    return text_of(made, graph(2, lambda token, x: [token, aten.pow.Tensor_Tensor(token, x)]))


@case("(None, grad_out0)", kind="training")
def tokens_in_backward() -> str:
    made = contract("training", backward_tokens=1)
    back = graph(2, lambda g, token: [aten.pow.Tensor_Tensor(token, g), token])
    return text_of(made, graph(1, sines), back)


@case(
    "ctx.to_save = ",
    "ctx._tensors_no_vc_check = ",
    "ctx.opaque_objects = ",
    "ctx.symints = ",
    " = ctx.saved_tensors",
    "ctx.maybe_clear_saved_tensors()",
    kind="training",
)
def saved_values() -> str:
    made = contract(
        "training", names="x y", saved=Saved(checked=2, unchecked=1, opaque=1, numbers=1)
    )

    def ahead(x: Any, y: Any) -> list[Any]:
        kept = [aten.cos.default(x), y, aten.exp.default(x), aten.neg.default(y)]
        return [aten.sin.default(x), *kept, aten.sym_size.int(x, 0)]

    def back(size: Any, cos: Any, y: Any, exp: Any, opaque: Any, grad: Any) -> list[Any]:
        return [aten.mul.Tensor(grad, cos), aten.mul.Tensor(exp, y)]

    return text_of(made, graph(2, ahead), graph(6, back))


@case("x.detach() if x._is_view() else x", "t.detach()", kind="training")
def saved_views_are_detached() -> str:
    made = contract("training", saved=Saved(checked=2, maybe_view=(0,), view=(1,)))
    ahead = graph(1, lambda x: [aten.sin.default(x), x, aten.t.default(x)])
    back = graph(3, lambda x, t, grad: [aten.mm.default(grad, t)])
    return text_of(made, ahead, back)


@case(DYNAMIC_MARK, kind="training")
def saved_values_with_dynamic_sizes() -> str:
    made = contract("training", saved=Saved(checked=1, dynamic=((0, (1,)),)))
    ahead = graph(1, lambda x: [aten.sin.default(x), aten.cos.default(x)])
    return text_of(made, ahead, graph(2, lambda cos, grad: [aten.mul.Tensor(grad, cos)]))


@case("ctx.edges = ", "ctx.versions = ", "x._version", kind="training")
def handles_for_double_backward() -> str:
    made = contract("training", names="x y", handles=Handles(edges=(0, 1), versions=(0,)))
    back = graph(1, lambda grad: [aten.sin.default(grad), None])
    return text_of(made, graph(2, lambda x, y: [aten.mul.Tensor(x, y)]), back)


@case("ctx.values = ", "if not graph_is_kept():", kind="training")
def handles_that_keep_values() -> str:
    made = contract("training", handles=Handles(values=(0,)))
    return text_of(made, graph(1, sines), graph(1, sines))


def _tangent(tangent: Tangent) -> str:
    return text_of(contract("training", tangents=(tangent,)), graph(1, sines), graph(1, sines))


@case("grad_out0.stride() != (3, 1)", "empty_strided(", kind="training")
def tangent_with_strides() -> str:
    return _tangent(dataclasses.replace(TANGENT, format=Strides((2, 3), (3, 1))))


@case("grad_out0.is_contiguous()", ".contiguous()", "to_dense()", kind="training")
def tangent_contiguous() -> str:
    return _tangent(dataclasses.replace(TANGENT, format=Format(torch.contiguous_format)))


@case("memory_format=channels_last", kind="training")
def tangent_channels_last() -> str:
    return _tangent(dataclasses.replace(TANGENT, format=Format(torch.channels_last)))


@case("grad_out0_made_at", kind="training")
def tangent_with_its_origin() -> str:
    return _tangent(dataclasses.replace(TANGENT, created_at="model.py:3"))


@case("no_grad_out0 = grad_out0 is None", "zeros(", "None if no_grad_out0 else", kind="training")
def tangents_that_are_left_out() -> str:
    made = contract(
        "training",
        "x y",
        outputs=(Output(From.VALUE, True, True, True),) * 2,
        tangents=(TANGENT, Tangent(1, Plain(), None, (), "output 1")),
        missing=Missing(zeros=((), ()), needed=((0,), (0, 1))),
    )
    back = graph(2, lambda a, b: [aten.sin.default(a), aten.add.Tensor(a, b)])
    return text_of(made, graph(2, sines), back)


@case("zeros((size[0], 3)", "TwoTensor", kind="training")
def tangent_of_a_subclass_that_is_left_out() -> str:
    zero = Zero(("size[0]", 3), torch.float32, torch.device("cpu"))
    made = contract(
        "training",
        layouts={"x": TWO},
        outputs=(Output(From.VALUE, True, True, True, layout=TWO),),
        tangents=(Tangent(0, TWO, None, (TANGENT, TANGENT), "output 0"),),
        gradients=(TWO,),
        missing=Missing(zeros=((zero, zero),), needed=((0,),), fixed=True),
    )
    return text_of(made, graph(2, sines), graph(2, sines))


@case("if grad_out0 is None:", "return (None,)", "materialize_grads", kind="training")
def tangent_that_is_left_out() -> str:
    made = contract("training", missing=Missing(zeros=((),), needed=((0,),)))
    return text_of(made, graph(1, sines), graph(1, sines))


@case("zeros(", "None if no_grad_out0 else", kind="training")
def tangent_that_is_left_out_beside_a_fixed_gradient() -> str:
    made = contract("training", "x y", missing=Missing(((),), needed=((0,), ()), fixed=True))
    back = graph(1, lambda a: [aten.sin.default(a), aten.ones.default([3])])
    return text_of(made, graph(2, lambda x, y: [aten.mul.Tensor(x, y)]), back)


@case("increment_version(x)")
def version_that_moves() -> str:
    return text_of(contract(version_moves=(0,)), graph(1, sines))


@case("x_version = x._version", "set_version((x,), (x_version,))")
def version_that_stays() -> str:
    made = contract(mutations=(Mutation(0, Write.COPY, False),), version_stays=(0,))
    return text_of(made, graph(1, lambda x: [aten.mul.Tensor(x, 2), aten.sin.default(x)]))


@case("needs_compiled_autograd()", "_compiled_autograd_backward_state", kind="training")
def backward_state() -> str:
    made = contract("training", names="x state", backward_state=1)
    back = graph(1, lambda grad: [aten.sin.default(grad), None])
    return text_of(made, graph(2, lambda x, state: [aten.sin.default(x)]), back)


@case("mutates_under_create_graph()", kind="training")
def backward_that_mutates() -> str:
    made = contract("training", backward_mutates=True)
    return text_of(made, graph(1, sines), graph(1, sines))


# -- What is held --------------------------------------------------------------------------------


def _golden(name: str, text: str, request: pytest.FixtureRequest) -> None:
    path = GOLDENS / f"{name}.txt"
    if request.config.getoption("--update-goldens"):
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"no golden for {name}: pytest {Path(__file__).name} --update-goldens"
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CASES)
def test_a_duty_turns_into_its_golden_text(name: str, request: pytest.FixtureRequest) -> None:
    text = CASES[name].program()
    ast.parse(text)
    _golden(name, text, request)


@pytest.mark.parametrize("kind", ["inference", "training"])
def test_a_program_without_duties(kind: str, request: pytest.FixtureRequest) -> None:
    _golden(f"plain_{kind}", plain(kind), request)


@pytest.mark.parametrize("name", CASES)
def test_without_the_duty_there_is_no_trace_of_it(name: str) -> None:
    case = CASES[name]
    with_it, without = case.program(), plain(case.kind)
    for trace in case.traces:
        assert trace in with_it
        assert trace not in without


def test_the_same_contract_gives_the_same_text() -> None:
    for case in CASES.values():
        assert case.program() == case.program()


def test_every_golden_belongs_to_a_case() -> None:
    names = {*CASES, "plain_inference", "plain_training"}
    assert {path.stem for path in GOLDENS.glob("*.txt")} == names


def test_every_field_of_a_contract_has_a_case() -> None:
    """A duty that is added to the contract needs a golden; here stands which one it is."""
    shown = {
        "mutations": "mutation_copy",
        "outputs": "alias_view_of_input",
        "intermediate_bases": "alias_view_of_an_intermediate",
        "base_layouts": "alias_view_of_an_intermediate",
        "base_views": "intermediate_that_is_no_view_to_autograd",
        "bases": "synthetic_base",
        "duplicates": "duplicate_arguments",
        "missing": "tangents_that_are_left_out",
        "version_moves": "version_that_moves",
        "version_stays": "version_that_stays",
        "restrided": "synthetic_base_with_changed_geometry",
        "saved": "saved_values",
        "handles": "handles_for_double_backward",
        "tangents": "tangent_with_strides",
        "gradients": "subclass_in_training",
        "rng": "rng_generators",
        "backward_state": "backward_state",
        "forward_tokens": "tokens_in_forward",
        "backward_tokens": "tokens_in_backward",
        "backward_mutates": "backward_that_mutates",
        "first_call": "first_call_check",
        "debug_requires_grad": "debug_assertions",
        "profile": "profiler_range",
        "boxed": "boxed_arguments",
    }
    # What a program is, not what it has to do; and what only a derived program has.
    others = {"name", "kind", "arguments", "inputs", "modes", "derivation"}
    fields = {field.name for field in dataclasses.fields(Contract)}
    assert fields == {*shown, *others}
    assert set(shown.values()) <= set(CASES)
