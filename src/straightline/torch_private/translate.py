"""Write down what torch's stages found out as a contract of our own."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dynamo import config as dynamo_config
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.descriptors import PlainAOTOutput, TangentAOTInput
from torch._functorch._aot_autograd.schemas import (
    InputAliasInfo,
    MemoryFormatMeta,
    OpaqueMeta,
    OutputAliasInfo,
    OutputType,
    SubclassCreationMeta,
    ViewAndMutationMeta,
)
from torch._guards import TracingContext
from torch._library.utils import is_builtin
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx.experimental._backward_state import BackwardState
from torch.fx.experimental.symbolic_shapes import statically_known_true

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
    Shared,
    SharedBase,
    Strides,
    Subclass,
    Tangent,
    ViewStep,
    Write,
    places,
)
from straightline.torch_private import (
    autocast,
    missing,
    operations,
    returns,
    symbols,
    versions,
    views,
)
from straightline.torch_private.stages import Stages

_ORIGIN: Mapping[OutputType, From] = {
    OutputType.non_alias: From.VALUE,
    OutputType.custom_function_view: From.VALUE,
    OutputType.unsafe_view_alias: From.UNSAFE_VIEW,
    OutputType.is_input: From.INPUT,
    OutputType.alias_of_input: From.VIEW_OF_INPUT,
    OutputType.alias_of_intermediate: From.VIEW_OF_BASE,
    OutputType.alias_of_intermediate_save_as_output: From.VIEW_OF_BASE,
    OutputType.alias_of_intermediate_base_is_user_output: From.VIEW_OF_OUTPUT,
}
# Namespaces whose operations torch exempts from the check that custom operations do not alias.
_UNCHECKED_NAMESPACES = frozenset({"_c10d_functional", "c10d", "onednn", "fsdp"})


def layout(meta: Any) -> Layout:
    """The layout that torch's description of a (sub)class stands for."""
    match meta:
        case SubclassCreationMeta():
            return Subclass(
                meta.original_subclass_type or type(meta.original_subclass),
                tuple((name, layout(inner)) for name, inner in meta.attrs.items()),
                tuple(_known(v) for v in meta.outer_size),
                tuple(_known(v) for v in meta.outer_stride),
                meta.meta,
            )
        case OpaqueMeta():
            return Opaque()
        case _:
            return Plain()


def _known(value: Any) -> int | None:
    """A size as a number; None for a symbol. A nested int never matters to its class: -1, as torch
    has it.
    """
    if isinstance(value, torch.SymInt):
        return -1 if value.node.is_nested_int() else None
    return value if value is None else int(value)


def role(value: Any) -> Role:
    """What kind of thing an example input is."""
    match value:
        case torch.Tensor():
            return Role.TENSOR
        case int() | float() | bool() | torch.SymInt() | torch.SymFloat() | torch.SymBool():
            return Role.NUMBER
        case BackwardState():
            return Role.BACKWARD_STATE
        case _:
            return Role.OTHER


def contract(
    stages: Stages,
    name: str,
    arguments: Sequence[tuple[str, str]],
    *,
    boxed: bool,
    keep_inputs: bool,
) -> Contract:
    """The contract of the program that `stages` traced.

    `arguments` are (name, source) of what the caller passes, lifted constants first. `keep_inputs`
    asks for the inputs' values to be kept, whatever they are, for derivatives of higher order.
    """
    meta = stages.meta
    inputs, bases = _inputs(stages, [n for n, _ in arguments])
    duplicates = _duplicates(stages)
    bound = symbols.bindings((i.name, v) for i, v in zip(inputs, stages.inputs, strict=True))
    render = functools.partial(symbols.render, bound=bound)
    training = stages.backward is not None
    hidden = returns.hidden_views(stages) if training else frozenset()
    outputs, restrided = _outputs(stages, render, hidden)
    mutations = _mutations(stages)
    stays, moves = versions.stay_and_move(stages, inputs, mutations, duplicates)
    first_base = len(mutations) + len(meta.output_info)
    base_layouts = return_layouts(meta)[first_base:]
    state = [i for i, v in enumerate(stages.inputs) if isinstance(v, BackwardState)]
    return Contract(
        name=name,
        kind="training" if training else "inference",
        arguments=_arguments(stages, arguments),
        inputs=inputs,
        modes=_modes(stages),
        mutations=mutations,
        outputs=outputs,
        intermediate_bases=meta.num_intermediate_bases,
        base_layouts=base_layouts,
        base_views=tuple(i for i in range(len(base_layouts)) if first_base + i in hidden),
        bases=bases,
        duplicates=duplicates,
        restrided=restrided,
        version_stays=stays,
        version_moves=moves,
        saved=_saved(stages, inputs, hidden) if training else Saved(),
        handles=_handles(stages, inputs, mutations, keep_inputs) if training else Handles(),
        tangents=tangents(meta) if training else (),
        missing=_missing(stages),
        gradients=_gradients(stages) if training else (),
        rng=Rng(
            meta.is_rng_op_functionalized,
            meta.num_graphsafe_rng_states,
            meta.graphsafe_rng_device,
        ),
        backward_state=state[0] if state else None,
        forward_tokens=len(meta.tokens),
        backward_tokens=meta.num_backward_tokens,
        backward_mutates=bool(meta.indices_of_inputs_that_requires_grad_with_mutations_in_bw),
        first_call=FirstCall(
            check_custom_ops=functorch_config.check_custom_op_aliasing
            and not dynamo_config.force_compile_during_fx_trace
            and _has_custom_ops(stages.forward),
        ),
        debug_requires_grad=_debug_requires_grad(stages) if training else (),
        profile=dynamo_config.record_runtime_overhead,
        boxed=boxed,
    )


def _arguments(stages: Stages, named: Sequence[tuple[str, str]]) -> tuple[Argument, ...]:
    return tuple(
        Argument(
            name,
            source,
            role(value),
            isinstance(value, torch.Tensor) and value.requires_grad,
            lifted=position < len(stages.lifted),
        )
        for position, ((name, source), value) in enumerate(
            zip(named, stages.original_inputs, strict=True)
        )
    )


def _kept(stages: Stages) -> list[int]:
    """Arguments that remain after duplicates are dropped."""
    if not stages.dedupe.needs_post_compile:
        return list(range(len(stages.original_inputs)))
    return [i for i, keep in enumerate(stages.dedupe.keep_arg_mask) if keep]


def _duplicates(stages: Stages) -> tuple[Duplicate, ...]:
    if not stages.dedupe.needs_post_compile:
        return ()
    kept = _kept(stages)
    return tuple(
        Duplicate(dropped, kept[position])
        for dropped, position in enumerate(stages.dedupe.add_dupe_map)
        if kept[position] != dropped
    )


def _inputs(
    stages: Stages, names: Sequence[str]
) -> tuple[tuple[Input, ...], tuple[SharedBase, ...]]:
    kept = _kept(stages)
    bases: list[SharedBase] = []
    if stages.synthetic.needs_post_compile:
        groups = stages.synthetic.base_groups
        for base in sorted(groups):
            members = tuple(kept[i] for i in groups[base])
            mutated = tuple(m for m in members if stages.original_info[m].mutates_data)
            bases.append(SharedBase(members, mutated))
        others = [kept[i] for i in stages.synthetic.other_arg_indices]
    else:
        others = kept
    where: list[int | None] = [None] * len(bases) + list(others)
    layouts = (
        [layout(m) for m in stages.meta.subclass_inp_meta]
        if stages.subclass is not None
        else [Plain()] * len(where)
    )
    frozen = _frozen()
    result = []
    for position, (argument, value) in enumerate(zip(where, stages.inputs, strict=True)):
        if argument is None:
            name = "base_of_" + "_".join(names[m] for m in bases[position].members)
        else:
            name = names[argument]
        info = stages.meta.input_info[position]
        tensor = isinstance(value, torch.Tensor)
        result.append(
            Input(
                name,
                role(value),
                layouts[position],
                argument,
                requires_grad=tensor and value.requires_grad,
                leaf=info.is_leaf,
                parameter=isinstance(value, torch.nn.Parameter),
                detached=position in stages.detach,
                frozen=position in frozen and isinstance(layouts[position], Subclass),
                waits=position in stages.meta.act_input_indices,
            )
        )
    return tuple(result), tuple(bases)


def _frozen() -> frozenset[int]:
    """Inputs that were folded into the graph as constants and arrive as None."""
    context = TracingContext.try_get()
    if context is None or context.params_flat is None:
        return frozenset()
    return frozenset(i for i, p in enumerate(context.params_flat) if p is None)


def return_layouts(meta: ViewAndMutationMeta) -> tuple[Layout, ...]:
    described = tuple(layout(m) for m in meta.subclass_fw_graph_out_meta)
    return described or (Plain(),) * meta.num_forward_returns


def _mutations(stages: Stages) -> tuple[Mutation, ...]:
    meta = stages.meta
    layouts = return_layouts(meta)
    returned = returns.returned(stages)
    result = []
    for position, index in enumerate(meta.mutated_inp_runtime_indices):
        info = meta.input_info[index]
        value = stages.inputs[index]
        unseen = (
            info.is_leaf
            or stages.backward is None
            or info.mutations_hidden_from_autograd
            or info.mutations_under_no_grad_or_inference_mode
        )
        detached = unseen and value.requires_grad
        streams = meta.mutated_inp_stream_indices
        on_stream = (
            streams is not None and position < len(streams) and streams[position] is not None
        )
        write = _write(info, detached=detached, on_stream=on_stream)
        grows = info.mutates_metadata and _grows(value, returned[position])
        result.append(Mutation(index, write, info.requires_grad, layouts[position], grows))
    return tuple(result)


def _grows(value: torch.Tensor, new: Any) -> bool:
    """Whether a new geometry may reach beyond the memory that an input has."""
    to = returns.fake(new)
    if not isinstance(to, torch.Tensor) or to.layout is not torch.strided:
        return False
    reach = to.storage_offset() + 1
    for size, stride in zip(to.shape, to.stride(), strict=True):
        reach = reach + (size - 1) * stride
    return not statically_known_true(reach * to.element_size() <= value.untyped_storage().nbytes())


def _write(info: InputAliasInfo, *, detached: bool, on_stream: bool) -> Write:
    if info.mutates_storage_metadata:
        return Write.SET
    if not info.mutates_data:
        return Write.RESTRIDE
    if on_stream and not info.is_leaf:
        return Write.STREAM_ERROR
    if info.mutates_metadata:
        return Write.RESTRIDE_COPY_DETACHED if detached else Write.RESTRIDE_COPY
    return Write.COPY_DETACHED if detached else Write.COPY


def _outputs(
    stages: Stages, render: views.Render, hidden: frozenset[int]
) -> tuple[tuple[Output, ...], tuple[int, ...]]:
    """The outputs in the graph's order, and which arguments the last ones restride."""
    meta = stages.meta
    layouts = return_layouts(meta)[meta.num_mutated_inp_runtime_indices :]
    kept = _kept(stages)
    restrided = tuple(kept[i] for i in stages.synthetic.aliased_arg_idx_with_metadata_mutations)
    mutated = meta.num_mutated_inp_runtime_indices
    values = returns.returned(stages)[mutated:]
    result = []
    for position, (info, where) in enumerate(zip(meta.output_info, layouts, strict=False)):
        output = _output(info, where)
        base, value = output.base, values[position]
        if functorch_config.view_replay_for_aliased_outputs:
            steps: tuple[ViewStep, ...] | None = None
            match output.origin:
                case From.VIEW_OF_INPUT if stages.inputs_are_merged(base):
                    pass  # torch recorded the way from the argument, not from the shared base
                case From.VIEW_OF_INPUT:
                    steps = views.steps(info.view_meta_sequence, render)
                case From.VIEW_OF_OUTPUT | From.VIEW_OF_BASE:
                    assert base is not None
                    of_base = output.origin is From.VIEW_OF_BASE
                    start = base + len(meta.output_info) * of_base
                    ends = returns.fake(values[start]), returns.fake(value)
                    steps = views.replay(info.view_meta_sequence, *ends, render)
            output = dataclasses.replace(output, replay=steps)
        if info.output_type is OutputType.non_alias and mutated + position in hidden:
            output = dataclasses.replace(output, origin=From.UNSAFE_VIEW)
        result.append(output)
    return tuple(result), restrided


def _output(info: OutputAliasInfo, where: Layout) -> Output:
    origin = _ORIGIN[info.output_type]
    viewed = origin in (From.VIEW_OF_INPUT, From.VIEW_OF_BASE, From.VIEW_OF_OUTPUT)
    return Output(
        origin,
        tensor=issubclass(info.raw_type, torch.Tensor),
        requires_grad=info.requires_grad,
        differentiable=info.requires_grad_for_backward,
        base=info.base_idx if viewed or origin is From.INPUT else None,
        dynamic=tuple(sorted(info.dynamic_dims or ())),
        layout=where,
    )


def _modes(stages: Stages) -> Modes:
    meta = stages.meta
    return Modes(
        grad_enabled=stages.grad_enabled,
        autocast=stages.autocast,
        backward_casts=stages.autocast and autocast.backward_has_casts(),
        grad_after=meta.grad_enabled_mutation,
        deterministic=meta.deterministic if stages.backward is not None else None,
        hooks_inlined=stages.hooks_inlined and stages.backward is not None,
    )


def _saved(stages: Stages, inputs: Sequence[Input], hidden: frozenset[int]) -> Saved:
    meta = stages.meta
    unchecked = meta.num_tensors_saved_with_no_vc_check or 0
    opaque = meta.num_opaque_objects_saved_for_bw or 0
    numbers = meta.num_symints_saved_for_bw or 0
    values = returns.output_values(stages.forward)
    first = _first_saved(stages)
    tensors = values[first : len(values) - opaque - numbers]
    placeholders = stages.forward.graph.find_nodes(op="placeholder")
    plain = _never_views(placeholders, inputs, len(meta.tokens))
    looks = [returns.is_view(n) for n in tensors]
    view = tuple(i for i, looking in enumerate(looks) if looking is True)
    maybe = tuple(i for i, n in enumerate(tensors) if looks[i] is None and n not in plain)
    return Saved(
        checked=len(tensors) - unchecked,
        unchecked=unchecked,
        opaque=opaque,
        numbers=numbers,
        view=view,
        maybe_view=maybe,
        dynamic=tuple(
            (i, tuple(sorted(dims))) for i, dims in sorted(meta.dynamic_saved_tensors_idxs.items())
        ),
        shared=tuple(
            Shared(*found)
            for found in returns.shared(stages, hidden, tensors[: len(tensors) - unchecked])
        ),
    )


def _first_saved(stages: Stages) -> int:
    """Where the saved values begin among what the forward graph returns.

    Not by torch's record of the graph without subclasses: where a member is written to out of the
    graph and its class is not, or where sizes are returned, it counts other results.
    """
    meta = stages.meta
    returned = sum(places(where) for where in return_layouts(meta))
    return len(meta.tokens) + returned + meta.num_outputs_rng_offset


def _handles(
    stages: Stages, inputs: Sequence[Input], mutations: Sequence[Mutation], keep_inputs: bool
) -> Handles:
    """What is noted for derivatives of higher order; nothing where there cannot be any."""
    meta = stages.meta
    refused = (
        _has_effects(stages.backward)
        or meta.indices_of_inputs_that_requires_grad_with_mutations_in_bw
    )
    if refused or any(isinstance(v, BackwardState) for v in stages.inputs):
        return Handles()
    first = _first_saved(stages)
    saved = set(returns.output_values(stages.forward)[first:])
    placeholders = stages.forward.graph.find_nodes(op="placeholder")[len(meta.tokens) :]
    starts = list(itertools.accumulate((places(i.layout) for i in inputs), initial=0))
    tensors = [n for n, item in enumerate(inputs) if item.role is Role.TENSOR]
    tracked = [n for n in tensors if inputs[n].requires_grad and not inputs[n].detached]
    mutated = {m.input for m in mutations}
    unsaved = [n for n in tracked if not saved.issuperset(placeholders[starts[n] : starts[n + 1]])]
    return Handles(
        edges=tuple(n for n in tracked if not inputs[n].parameter),
        versions=()
        if keep_inputs
        else tuple(n for n in unsaved if n not in mutated and not stages.inputs[n].is_inference()),
        numbers=tuple(n for n, item in enumerate(inputs) if item.role is Role.NUMBER),
        values=tuple(tensors) if keep_inputs else (),
    )


def _has_effects(backward: fx.GraphModule | None) -> bool:
    """A backward does more than to compute and to check."""
    return backward is not None and any(
        not operations.checks_only(node.args[1])
        for node in backward.graph.find_nodes(
            op="call_function", target=torch.ops.higher_order.with_effects
        )
    )


def _never_views(
    placeholders: Sequence[fx.Node], inputs: Sequence[Input], tokens: int
) -> frozenset[fx.Node]:
    """Graph inputs that hold a Parameter, which is never a view."""
    if any(isinstance(i.layout, Subclass) for i in inputs):
        return frozenset()
    taken = placeholders[tokens : tokens + len(inputs)]
    return frozenset(n for n, i in zip(taken, inputs, strict=True) if i.parameter)


@dataclass(frozen=True)
class Written:
    """Graph inputs written to after the graph ran, and places of things in the graphs.

    `first_saved`: where the saved values begin among the forward's outputs; `checked`: how many
    checked tensors lead them; `numbers`: how many numbers stand ahead of them among the backward's
    inputs; `tokens`: how many placeholders come ahead of the forward's input 0.
    """

    inputs: frozenset[int]
    first_saved: int
    checked: int
    numbers: int
    tokens: int


def written_inputs(stages: Stages) -> Written:
    """Which of the graph's inputs no longer hold their old value when backward runs."""
    layouts = (
        [layout(m) for m in stages.meta.subclass_inp_meta]
        if stages.subclass is not None
        else [Plain()] * len(stages.inputs)
    )
    starts = list(itertools.accumulate((places(where) for where in layouts), initial=0))
    written = {
        place
        for index in stages.meta.mutated_inp_runtime_indices
        if stages.meta.input_info[index].mutates_data
        for place in range(starts[index], starts[index + 1])
    }
    meta, tokens = stages.meta, len(stages.meta.tokens)
    first = _first_saved(stages)
    numbers = meta.num_symints_saved_for_bw or 0
    unchecked = meta.num_tensors_saved_with_no_vc_check or 0
    rest = unchecked + (meta.num_opaque_objects_saved_for_bw or 0) + numbers
    checked = len(returns.output_values(stages.forward)) - first - rest
    return Written(frozenset(written), first, checked, numbers, tokens)


def saved_more(stages: Stages, written: Written, count: int) -> None:
    """Keep torch's record of saved tensors true: `count` more come last among the checked ones."""
    dims = stages.meta.dynamic_saved_tensors_idxs
    moved = {i + count if i >= written.checked else i: d for i, d in dims.items()}
    stages.meta.dynamic_saved_tensors_idxs = moved


def tangents(meta: ViewAndMutationMeta) -> tuple[Tangent, ...]:
    mutated = meta.num_mutated_inp_runtime_indices
    positions = [
        k
        for k, index in enumerate(meta.mutated_inp_runtime_indices)
        if meta.input_info[index].mutates_data and meta.input_info[index].requires_grad
    ]
    positions += [
        mutated + k
        for k, info in enumerate(meta.output_info)
        if _ORIGIN[info.output_type] in (From.VALUE, From.UNSAFE_VIEW)
        and issubclass(info.raw_type, torch.Tensor)
        and info.requires_grad_for_backward
    ]
    positions += range(mutated + meta.num_outputs, meta.num_forward_returns)
    stacks: Sequence[str | None] = meta.tangent_source_stack_traces or [None] * len(positions)
    return tuple(
        _tangent(position, described, _describe_tangent(description), stack)
        for position, described, description, stack in zip(
            positions, meta.subclass_tangent_meta, meta.traced_tangents_descs, stacks, strict=True
        )
    )


def _missing(stages: Stages) -> Missing | None:
    if stages.backward is None:
        return None
    return missing.missing(stages.meta, tangents(stages.meta), stages.backward, _gradients(stages))


def _describe_tangent(description: Any) -> str:
    if isinstance(description, TangentAOTInput):
        if isinstance(description.output, PlainAOTOutput):
            return f"output {description.output.idx}"
        return str(description.output.expr())
    return str(description.expr())


def _tangent(position: int, meta: Any, description: str, stack: str | None) -> Tangent:
    members: tuple[Tangent, ...] = ()
    if isinstance(meta, SubclassCreationMeta):
        members = tuple(
            _tangent(position, inner, f"{description}.{name}", stack)
            for name, inner in meta.attrs.items()
        )
    format_ = None if isinstance(meta, OpaqueMeta) else _format(meta.memory_format)
    return Tangent(position, layout(meta), format_, members, description, stack)


def _format(meta: MemoryFormatMeta | None) -> Strides | Format | None:
    if meta is None:
        return None
    if meta.memory_format is not None:
        return Format(meta.memory_format)
    assert meta.size is not None
    assert meta.stride is not None
    return Strides(tuple(int(s) for s in meta.size), tuple(int(s) for s in meta.stride))


def _gradients(stages: Stages) -> tuple[Layout, ...]:
    if stages.subclass is None:
        return (Plain(),) * len(stages.inputs)
    assert stages.subclass.grad_input_metas is not None
    return tuple(layout(m) for m in stages.subclass.grad_input_metas)


def _debug_requires_grad(stages: Stages) -> tuple[bool | None, ...]:
    if not functorch_config.debug_assert:
        return ()
    return tuple(v.requires_grad if isinstance(v, torch.Tensor) else None for v in stages.inputs)


def _graphs(gm: fx.GraphModule) -> Iterator[fx.Graph]:
    for module in gm.modules():
        if isinstance(module, fx.GraphModule):
            yield module.graph


def _has_custom_ops(gm: fx.GraphModule) -> bool:
    """Whether the graph calls an operation whose claim not to alias torch wants checked once."""
    return any(
        isinstance(node.target, OpOverload)
        and not isinstance(node.target, HigherOrderOperator)
        and not is_builtin(node.target)
        and node.target.namespace not in _UNCHECKED_NAMESPACES
        and not node.target.is_view
        and all(r.alias_info is None for r in node.target._schema.returns)
        for graph in _graphs(gm)
        for node in graph.nodes
        if node.op == "call_function"
    )
