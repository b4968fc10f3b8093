"""Write down what torch's stages found out as a contract of our own."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
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
    VALUES,
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
    Output,
    Plain,
    Rng,
    Saved,
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
    keeping,
    missing,
    returns,
    symbols,
    versions,
    views,
)
from straightline.torch_private.layouts import layout, return_layouts, role
from straightline.torch_private.outputs import Kin
from straightline.torch_private.stages import Stages, Untraceable

_ORIGIN: Mapping[OutputType, From] = {
    OutputType.non_alias: From.VALUE,
    OutputType.custom_function_view: From.VALUE,
    OutputType.unsafe_view_alias: From.UNSAFE_VIEW,
    OutputType.is_input: From.ARGUMENT,
    OutputType.alias_of_input: From.VIEW_OF_INPUT,
    OutputType.alias_of_intermediate: From.VIEW_OF_BASE,
    OutputType.alias_of_intermediate_save_as_output: From.VIEW_OF_BASE,
    OutputType.alias_of_intermediate_base_is_user_output: From.VIEW_OF_OUTPUT,
}
# Namespaces whose operations torch exempts from the check that custom operations do not alias.
_UNCHECKED_NAMESPACES = frozenset({"_c10d_functional", "c10d", "onednn", "fsdp"})


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
    hidden = returns.hidden_views(stages)
    outputs, restrided = _outputs(stages, render, hidden)
    mutations = _mutations(stages, inputs, bases, duplicates)
    stays, moves = versions.stay_and_move(stages, inputs, mutations, bases, duplicates)
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
        saved=keeping.saved(stages, inputs, hidden) if training else Saved(),
        handles=keeping.handles(stages, inputs, mutations, keep_inputs) if training else Handles(),
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
            mutated = tuple(
                m
                for m in members
                if stages.original_info[m].mutates_data and stages.moved[m] is not False
            )
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
    frozen, detached = _frozen(), _detached(stages)
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
                detached=position in detached,
                frozen=position in frozen and isinstance(layouts[position], Subclass),
                waits=position in stages.meta.act_input_indices,
                inference=argument in stages.versionless
                and info.mutates_data
                and stages.moved[argument] is False,
            )
        )
    return tuple(result), tuple(bases)


def _detached(stages: Stages) -> frozenset[int]:
    """Inputs that no gradient reaches. Where that is all of them, results still require grad."""
    inputs = enumerate(stages.inputs)
    tracked = {i for i, v in inputs if isinstance(v, torch.Tensor) and v.requires_grad}
    return frozenset() if tracked <= stages.detach else stages.detach


def _frozen() -> frozenset[int]:
    """Inputs that were folded into the graph as constants and arrive as None."""
    context = TracingContext.try_get()
    if context is None or context.params_flat is None:
        return frozenset()
    return frozenset(i for i, p in enumerate(context.params_flat) if p is None)


def _recorded(
    stages: Stages,
    inputs: Sequence[Input],
    bases: Sequence[SharedBase],
    duplicates: Sequence[Duplicate],
) -> set[int]:
    """Inputs that autograd saw a write to."""
    found = set()
    for position, item in enumerate(inputs):
        where = bases[position].members if item.argument is None else (item.argument,)
        twins = [d.dropped for d in duplicates if d.kept in where]
        if any(stages.recorded[argument] for argument in (*where, *twins)):
            found.add(position)
    return found


def _mutations(
    stages: Stages,
    inputs: Sequence[Input],
    bases: Sequence[SharedBase],
    duplicates: Sequence[Duplicate],
) -> tuple[Mutation, ...]:
    meta = stages.meta
    recorded = _recorded(stages, inputs, bases, duplicates)
    layouts = return_layouts(meta)
    returned = returns.returned(stages)
    result = []
    for position, index in enumerate(meta.mutated_inp_runtime_indices):
        info = meta.input_info[index]
        value = stages.inputs[index]
        unseen = (
            info.is_leaf
            or stages.backward is None
            or index not in recorded
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
    kinship = (*stages.kin, *(Kin() for _ in restrided))
    outputs = zip(meta.output_info, kinship, layouts, strict=False)
    for position, (info, kin, where) in enumerate(outputs):
        output = _output(stages, info, kin, where)
        base, value = output.base, values[position]
        if functorch_config.view_replay_for_aliased_outputs:
            steps: tuple[ViewStep, ...] | None = None
            match output.origin:
                case From.VIEW_OF_INPUT | From.IN_INPUT if stages.inputs_are_merged(base):
                    pass  # torch recorded the way from the argument, not from the shared base
                case From.VIEW_OF_INPUT | From.IN_INPUT:
                    steps = views.steps(info.view_meta_sequence, render)
                case From.VIEW_OF_OUTPUT | From.IN_OUTPUT if base is not None and _regenerated(
                    stages, base
                ):
                    ways = info.view_meta_sequence, meta.output_info[base].view_meta_sequence
                    steps = views.rest(*ways, render)
                case From.VIEW_OF_OUTPUT | From.IN_OUTPUT | From.VIEW_OF_BASE:
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


def _regenerated(stages: Stages, output: int | None) -> bool:
    """Whether an output's memory is found outside of the graph, on the way from an input."""
    assert output is not None
    return (
        stages.kin[output].lodges
        or stages.meta.output_info[output].output_type is OutputType.alias_of_input
    )


def _output(stages: Stages, info: OutputAliasInfo, kin: Kin, where: Layout) -> Output:
    origin, base = _origin(stages, info, kin)
    return Output(
        origin,
        tensor=issubclass(info.raw_type, torch.Tensor),
        requires_grad=info.requires_grad,
        differentiable=info.requires_grad_for_backward,
        base=base,
        detached=kin.detached or (kin.root and origin is From.VIEW_OF_INPUT),
        dynamic=tuple(sorted(info.dynamic_dims or ())),
        layout=where,
    )


def _origin(stages: Stages, info: OutputAliasInfo, kin: Kin) -> tuple[From, int | None]:
    """Where an output comes from, and the number of what it is made from."""
    if kin.argument is not None:
        return From.ARGUMENT, kin.argument
    if kin.output is not None:
        return From.OUTPUT, kin.output
    if kin.lodges and kin.base is not None:
        return From.IN_OUTPUT, kin.base
    # Where an input keeps its memory, what the graph makes of it is there already.
    input_ = info.base_idx
    if kin.lodges and input_ is not None and stages.meta.input_info[input_].mutates_data:
        return From.IN_INPUT, input_
    origin = _ORIGIN[info.output_type]
    return origin, input_ if origin is From.VIEW_OF_INPUT else kin.base


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
        if _ORIGIN[info.output_type] in VALUES
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


def check(contract: Contract, stages: Stages) -> None:
    """The graph returns what the contract says; where subclasses are misjudged, it does not."""
    saved = contract.saved
    expected = contract.forward_tokens + int(contract.rng.functional)
    expected += sum(places(layout) for layout in contract.return_layouts())
    expected += saved.tensors + saved.opaque + saved.numbers
    if expected != len(returns.output_values(stages.forward)):
        raise Untraceable(
            "torch's stages cannot trace this graph (what they say of its results does not fit it)"
        )
