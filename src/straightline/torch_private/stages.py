"""Run torch's tracing stages and stop before any of its runtime wrappers is built."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._C import _DisableAutocast, _is_any_autocast_enabled
from torch._dynamo import compiled_autograd
from torch._dynamo.exc import TorchDynamoException
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.graph_compile import (
    _aot_stage2a_partition,
    _apply_tensorify_python_scalars,
    aot_stage1_graph_capture,
    run_joint_graph_passes_on_hops,
)
from torch._functorch._aot_autograd.runtime_wrappers import (
    AOTDedupeWrapper,
    AOTSyntheticBaseWrapper,
)
from torch._functorch._aot_autograd.schemas import (
    AOTState,
    InputAliasInfo,
    OutputType,
    SubclassMeta,
    ViewAndMutationMeta,
)
from torch._functorch._aot_autograd.utils import (
    saved_tensors_hooks_are_inlineable,
    top_saved_tensors_hooks,
)
from torch._functorch.aot_autograd import create_aot_state, prepare_aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import CompileContext, TracingContext

from straightline.torch_private import autocast, guards, operations, outputs, sharing
from straightline.torch_private.outputs import Kin

JointPass = Callable[[fx.GraphModule], None]


@dataclass
class Stages:
    """What torch's stages leave behind, in torch's own terms. Gone when compilation ends; what
    is needed later is taken out of it: `autograd.facts`, the state to compile in, the inputs to
    trace gradients with.

    `inputs` are fake. `original_info` describes the caller's arguments, before duplicates were
    dropped and aliased arguments merged; `meta` what the graph takes after that. `moved` says of
    each of the caller's arguments that is a tensor whether the function moves its version;
    `versionless` are those made in inference mode, which have none; `recorded`
    says whether it gives them another history, so that autograd sees a write. `kin` is about the
    function's outputs.
    """

    forward: fx.GraphModule
    backward: fx.GraphModule | None
    meta: ViewAndMutationMeta
    subclass: SubclassMeta | None
    inputs: list[Any]
    original_inputs: list[Any]
    original_info: list[InputAliasInfo]
    moved: list[bool | None]
    recorded: list[bool]
    kin: tuple[Kin, ...]
    versionless: frozenset[int]
    lifted: list[torch.Tensor]
    detach: frozenset[int]
    dedupe: AOTDedupeWrapper
    synthetic: AOTSyntheticBaseWrapper
    grad_enabled: bool
    autocast: bool
    hooks_inlined: bool
    aot_id: int
    tracing: TracingContext | None
    compile: CompileContext | None

    def inputs_are_merged(self, index: int | None) -> bool:
        """Whether graph input `index` is the common base of several arguments."""
        merged = len(self.synthetic.base_groups) if self.synthetic.needs_post_compile else 0
        return index is not None and index < merged

    @property
    def inner_meta(self) -> ViewAndMutationMeta:
        """The metadata of the graph itself, subclasses taken apart."""
        return self.meta if self.subclass is None else self.subclass.fw_metadata


@contextlib.contextmanager
def trace(
    gm: fx.GraphModule, example_inputs: Sequence[Any], joint_passes: Sequence[JointPass] = ()
) -> Iterator[Stages]:
    """Trace `gm` for the given inputs; the fake mode and the tracing state live until the block
    ends.

    Each of `joint_passes` edits the joint graph before it is split. Torch's own CSE stays off in
    here, as it would load Inductor's pattern matcher.
    """
    with contextlib.ExitStack() as stack:
        assumed = guards.Assumed()
        try:
            with _failures_are_told():
                stages = _traced(stack, gm, example_inputs, joint_passes)
                if assumed.cannot_be_checked():
                    raise Untraceable(
                        "torch's stages cannot trace this graph (they assume something of a tensor "
                        "that is not passed, only a view of it, which Dynamo cannot check)"
                    )
        except Untraceable:
            assumed.forget()
            raise
        yield stages


class Untraceable(Exception):
    """torch's own stages cannot trace a graph.

    `reason` is one of few texts, `detail` what torch says of this graph.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


@contextlib.contextmanager
def _failures_are_told() -> Iterator[None]:
    """What torch's stages raise means an untraceable graph, unless it is meant for Dynamo."""
    try:
        yield
    except (TorchDynamoException, Untraceable):
        raise
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        raise Untraceable(
            f"torch's stages cannot trace this graph ({type(error).__name__})", first[:200]
        ) from error


def _traced(
    stack: contextlib.ExitStack,
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    joint_passes: Sequence[JointPass],
) -> Stages:
    hooks = top_saved_tensors_hooks()
    # A program that ends in another grad mode leaves it switched when it is traced.
    grad_enabled = torch.is_grad_enabled()
    stack.callback(torch.set_grad_enabled, grad_enabled)
    stack.enter_context(
        functorch_config.patch(
            unlift_effect_tokens=False,
            cse=False,
            # Gradients that do not arrive are zeros of the subclass; those that do are of it.
            disable_guess_zero_tangent_for_mutated_input_subclass=True,
        )
    )
    stack.enter_context(autocast.backward_without())
    (
        flat_fn,
        lifted,
        _param_names,
        _buffer_names,
        fake_inputs,
        descriptions,
        aot_config,
        fake_mode,
        shape_env,
        _in_spec,
        _out_spec,
        waits,
    ) = prepare_aot_module_simplified(
        gm, list(example_inputs), None, None, True, False, flatten=False
    )
    stack.enter_context(compiled_autograd._disable())
    moved: list[bool | None] = []
    recorded: list[bool] = []
    seen = outputs.Seen()
    watched = outputs.watched(_watched(flat_fn, moved, recorded), seen)
    state = create_aot_state(
        stack,
        watched,
        fake_inputs,
        descriptions,
        aot_config,
        fake_mode,
        shape_env,
    )
    state.fw_metadata.act_input_indices = waits
    sharing.agree(state)
    kin = outputs.settle(state, watched, seen, gm)
    for position in _assigned(gm, len(lifted), state.fw_metadata.input_info):
        moved[position] = True
    if _writes_lists(gm):
        # Tracing tensors in lists do not count.
        moved[:] = [m or None for m in moved]
    original_inputs, original_info = list(state.flat_args), state.fw_metadata.input_info
    inputs_returned = _call_them_views(state)
    captured = aot_stage1_graph_capture(state, flat_fn)
    dedupe, synthetic = captured.wrappers
    assert isinstance(dedupe, AOTDedupeWrapper)
    assert isinstance(synthetic, AOTSyntheticBaseWrapper)
    _call_them_inputs(state, inputs_returned, synthetic)
    if state.needs_autograd:
        _refuse_scattered_bases(captured.graph_module)
    tensorify_floats(captured.graph_module)
    if state.needs_autograd and captured.maybe_subclass_meta is None and autocast.one_region(gm):
        autocast.share_casts(captured.graph_module, _leaves(captured.graph_module, state))
    for joint_pass in joint_passes:
        joint_pass(captured.graph_module)
    tracing = TracingContext.try_get()
    common: dict[str, Any] = {
        "meta": state.fw_metadata,
        "subclass": captured.maybe_subclass_meta,
        "inputs": list(state.flat_args),
        "original_inputs": original_inputs,
        "original_info": original_info,
        "moved": moved,
        "recorded": recorded,
        "kin": kin,
        "versionless": frozenset(
            position
            for position, value in enumerate([*lifted, *example_inputs])
            if isinstance(value, torch.Tensor) and value.is_inference()
        ),
        "lifted": list(lifted),
        "dedupe": dedupe,
        "synthetic": synthetic,
        "grad_enabled": grad_enabled,
        "autocast": _is_any_autocast_enabled(),
        "hooks_inlined": not compiled_autograd.in_compiled_autograd_region
        and saved_tensors_hooks_are_inlineable(hooks),
        "aot_id": aot_config.aot_id,
        "tracing": tracing,
        "compile": CompileContext.try_get(),
    }
    if state.needs_autograd:
        forward, backward, _saved, _numbers, detach, _inputs = _aot_stage2a_partition(
            captured.graph_module,
            captured.updated_flat_args,
            captured.maybe_subclass_meta,
            state.fw_metadata,
            state.aot_config,
            min_cut_rematerialization_partition,
        )
        stages = Stages(forward, backward, detach=frozenset(detach), **common)
    else:
        with _DisableAutocast():
            forward = run_joint_graph_passes_on_hops(
                captured.graph_module,
                None,
                state.aot_config,
                default_partition_fn=min_cut_rematerialization_partition,
            )
        stages = Stages(forward, None, detach=frozenset(), **common)
    if tracing is not None:
        # Dynamo's pass for data-parallel training keeps one of these for each split.
        tracing.fw_metadata = stages.inner_meta
    return stages


def _call_them_views(state: AOTState) -> list[int]:
    """Outputs that are inputs, described as views of them while the graph is captured.

    Torch would have the graph return such an input itself, but puts it in the place of another
    result where there are new values of inputs among them.
    """
    infos = state.fw_metadata.output_info
    found = [n for n, info in enumerate(infos) if info.output_type is OutputType.is_input]
    for number in found:
        infos[number] = dataclasses.replace(infos[number], output_type=OutputType.alias_of_input)
    return found


def _call_them_inputs(
    state: AOTState, outputs: Sequence[int], synthetic: AOTSyntheticBaseWrapper
) -> None:
    """What `_call_them_views` changed is put back; a part of merged arguments stays a view."""
    infos = state.fw_metadata.output_info
    merged = len(synthetic.base_groups) if synthetic.needs_post_compile else 0
    for number in outputs:
        base = infos[number].base_idx
        if base is not None and base >= merged:
            infos[number] = dataclasses.replace(infos[number], output_type=OutputType.is_input)


def _leaves(joint: fx.GraphModule, state: AOTState) -> set[fx.Node]:
    """Inputs of the joint graph that autocast would keep the cast of."""
    inputs = joint.graph.find_nodes(op="placeholder")[len(state.fw_metadata.tokens) :]
    return {
        node
        for node, about in zip(inputs, state.fw_metadata.input_info, strict=False)
        if about.is_leaf and about.requires_grad
    }


def _watched(
    function: Callable[..., Any], moved: list[bool | None], recorded: list[bool]
) -> Callable[..., Any]:
    """`function`, which notes at its last call which of its arguments' versions it moved, and which
    of their histories.

    Torch's record of mutations does not tell `x.mul_()` from `x.data.mul_()`, and neither from what
    batch normalisation does to its buffers. The tensors that it traces with do.
    """

    @functools.wraps(function)
    def watched(*arguments: Any) -> Any:
        before = [_version(a) for a in arguments]
        histories = [_history(a) for a in arguments]
        results = function(*arguments)
        moved[:] = [
            None if version is None else _version(a) != version
            for a, version in zip(arguments, before, strict=True)
        ]
        recorded[:] = [
            _history(a) is not history for a, history in zip(arguments, histories, strict=True)
        ]
        return results

    return watched


def _assigned(gm: Any, lifted: int, info: Sequence[InputAliasInfo]) -> Iterator[int]:
    """Arguments whose version moves with their storage: by `x.set_()`, and not by `x.data = y`.

    Tracing tensors do not count either; Dynamo takes the second's count back.
    """
    taken_back = set()
    if isinstance(gm, fx.GraphModule):
        for node in gm.graph.nodes:
            if getattr(node.target, "__name__", None) == "_lower_version_count_by_1":
                taken_back.update(node.args[0].all_input_nodes[:1])
        placeholders = gm.graph.find_nodes(op="placeholder")
        taken_back = {lifted + placeholders.index(n) for n in taken_back if n in placeholders}
    for position, about in enumerate(info):
        if about.mutates_storage_metadata and position not in taken_back:
            yield position


def _writes_lists(gm: Any) -> bool:
    """Whether some operation writes to the tensors of a list."""
    for module in gm.modules():
        for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
            name = getattr(node.target, "__name__", "")
            if name.startswith(("_foreach_", "_fused_")) and name.endswith("_"):
                return True
            if any(a.startswith("List") for a in operations.written_types(node.target)):
                return True
    return False


def _version(value: Any) -> int | None:
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else None


def _history(value: Any) -> object:
    return value.grad_fn if isinstance(value, torch.Tensor) else None


def _refuse_scattered_bases(graph: fx.GraphModule) -> None:
    """Gradients are not what they should be where merged arguments' base is not contiguous: the
    operation by which torch writes into one takes it to be.
    """
    for node in graph.graph.find_nodes(
        op="call_function", target=torch.ops.aten.as_strided_scatter.default
    ):
        base = node.args[0].meta.get("val")
        if isinstance(base, torch.Tensor) and not base.is_contiguous():
            raise Untraceable(
                "torch's stages cannot trace this graph (they write into memory that arguments "
                "share as if it were contiguous)"
            )


def tensorify_floats(graph: fx.GraphModule) -> None:
    """Make tensors of the Python floats that vary, so that they stay out of the guards.

    Without such floats torch's pass has nothing to do; but when a float was specialized before, it
    restarts Dynamo, whose second analysis drops in-place methods whose result is not used.
    """
    if any(isinstance(n.meta.get("val"), torch.SymFloat) for n in graph.graph.nodes):
        _apply_tensorify_python_scalars(graph)
