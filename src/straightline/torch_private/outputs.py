"""What a function's outputs are to its arguments and to one another, as eager has it.

Torch's record of them serves its own runtime: parts of one tensor come out of the graph as if they
were on their own, and nothing says that two outputs are one object. What is recorded here is read
off the tensors that torch's first look at the function works with, whose views and bases are
eager's.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo  # torch's runtime wrappers and Dynamo import one another: it has to come first
from torch import fx
from torch._C._autograd import CreationMeta, _get_creation_meta
from torch._functorch._aot_autograd.collect_metadata_analysis import (
    coerce_tangent_and_suggest_memory_format,
    run_functionalized_fw_and_collect_metadata,
)
from torch._functorch._aot_autograd.descriptors import (
    AOTInput,
    DifferentiableAOTOutput,
    IntermediateBaseAOTOutput,
    PlainAOTOutput,
    TangentAOTInput,
)
from torch._functorch._aot_autograd.functional_utils import ViewMetaSequence, from_fun
from torch._functorch._aot_autograd.runtime_wrappers import (
    AOTDedupeWrapper,
    AOTSyntheticBaseWrapper,
    pre_compile,
)
from torch._functorch._aot_autograd.schemas import (
    AOTState,
    OutputAliasInfo,
    OutputType,
    PlainTensorMeta,
    ViewAndMutationMeta,
)
from torch._functorch._aot_autograd.subclass_utils import requires_subclass_dispatch
from torch._functorch._aot_autograd.utils import without_output_descs

# Outputs that a gradient arrives for.
_VALUES = frozenset(
    {OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view}
)
_OF_INPUTS = frozenset({OutputType.alias_of_input, OutputType.is_input})
_OF_INTERMEDIATES = frozenset(
    {
        OutputType.alias_of_intermediate,
        OutputType.alias_of_intermediate_save_as_output,
        OutputType.alias_of_intermediate_base_is_user_output,
    }
)


@dataclass(frozen=True)
class Kin:
    """What one output is; None and False where torch's record says it all.

    `argument`: that argument itself. `output`: that output itself. `base`: the number of the output
    (or of the intermediate base, by torch's record) that it is a view of. `root`: it is no view.
    `lodges`: it looks at the memory of what it is made from, and has a history of its own; as one
    that is `detached` from it, or as a view.
    """

    argument: int | None = None
    output: int | None = None
    base: int | None = None
    root: bool = False
    lodges: bool = False
    detached: bool = False


@dataclass
class Seen:
    """The tensors that a function was last called with, and those that it returned."""

    arguments: Sequence[Any] = ()
    results: Sequence[Any] = ()
    over: bool = False


def watched(function: Callable[..., Any], seen: Seen) -> Callable[..., Any]:
    """`function`, which notes what it takes and returns until that is `over`."""

    @functools.wraps(function)
    def watch(*arguments: Any) -> Any:
        results = function(*arguments)
        if not seen.over:
            seen.arguments, seen.results = arguments, results
        return results

    return watch


def settle(
    state: AOTState, function: Callable[..., Any], seen: Seen, gm: object = None
) -> tuple[Kin, ...]:
    """Let torch's record say of each output what eager makes of it, and what it has no word for.

    `function` is what torch looked at, `watched`; `gm` the graph that Dynamo captured of it.
    """
    merged = _merged(state, function)
    look = _Look(state, seen, state.fw_metadata if merged is None else merged, _no_views(gm))
    seen.over, seen.arguments, seen.results = True, (), ()
    kin = tuple(look.decide(position) for position in range(len(look.infos)))
    look.rewrite()
    return kin


def _no_views(gm: object) -> frozenset[int]:
    """Outputs that are no views in eager, although they may be where torch takes operations apart:
    in Dynamo under dynamic shapes, and in its tracing stages.
    """
    if not isinstance(gm, fx.GraphModule):
        return frozenset()
    values: Any = gm.graph.output_node().args[0]
    return frozenset(
        i for i, node in enumerate(values) if isinstance(node, fx.Node) and _is_no_view(node)
    )


def _is_no_view(node: fx.Node) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    example = node.meta.get("example_value")
    return name == "matmul" or (isinstance(example, torch.Tensor) and example._base is None)


def _merged(state: AOTState, function: Callable[..., Any]) -> ViewAndMutationMeta | None:
    """A look at the function that lets arguments share their memory; None where none have to.

    Torch's first look takes each for itself: it misses what a write to one does to another.
    """

    def described(*inner: Any) -> tuple[Any, list[Any]]:
        out = function(*inner)
        return out, type(out)(PlainAOTOutput(i) for i in range(len(out)))

    synthetic = AOTSyntheticBaseWrapper(trace_joint=state.needs_autograd)
    flat, arguments, descriptions, meta = pre_compile(
        [AOTDedupeWrapper(), synthetic],
        described,
        state.flat_args,
        state.flat_args_descs,
        state.aot_config,
        fw_metadata=state.fw_metadata,
    )
    if not synthetic.needs_post_compile:
        return None
    return run_functionalized_fw_and_collect_metadata(
        without_output_descs(flat),
        flat_args_descs=descriptions,
        keep_input_mutations=meta.keep_input_mutations,
    )(*arguments)


class _Look:
    """One pass over the outputs; `infos` and `bases` are what becomes torch's record."""

    def __init__(
        self, state: AOTState, seen: Seen, found: ViewAndMutationMeta, no_views: frozenset[int]
    ) -> None:
        self.state = state
        self._no_views = no_views
        self.results = seen.results
        self._inputs = state.fw_metadata.input_info
        self.infos = [
            dataclasses.replace(
                info,
                requires_grad=true.requires_grad,
                requires_grad_for_backward=true.requires_grad_for_backward,
            )
            for info, true in zip(state.fw_metadata.output_info, found.output_info, strict=False)
        ]
        self.bases: list[tuple[int, torch.Tensor]] = []
        tensors = [(i, a) for i, a in enumerate(seen.arguments) if isinstance(a, torch.Tensor)]
        outputs = [(i, r) for i, r in enumerate(seen.results) if isinstance(r, torch.Tensor)]
        self._arguments = {id(a): i for i, a in tensors}
        # Only merged arguments are views of something here: of what they are merged into.
        self._roots = self._arguments | {id(a._base): i for i, a in tensors if a._base is not None}
        self._first = {id(r): i for i, r in reversed(outputs)}
        fake: Any = state.flat_args
        self._plain = not requires_subclass_dispatch(fake, state.fw_metadata)

    def decide(self, position: int) -> Kin:
        """What one output is; its record is changed where eager has it otherwise."""
        out = self.results[position]
        if not isinstance(out, torch.Tensor):
            return Kin()
        if id(out) in self._arguments:
            return Kin(argument=self._arguments[id(out)])
        first = self._first[id(out)]
        if first != position:
            self._set(position, OutputType.alias_of_intermediate_base_is_user_output)
            return Kin(output=first)
        root = out if out._base is None else out._base
        if not self._plain:
            info = self.infos[position]
            return Kin(base=info.base_idx if _of_output(info) else None, root=root is out)
        return self._view(position, out, root)

    def _view(self, position: int, out: Any, root: torch.Tensor) -> Kin:
        custom = root is not out and _get_creation_meta(out) == CreationMeta.IN_CUSTOM_FUNCTION
        info = self.infos[position]
        argument = self._roots.get(id(root))
        lodges = custom and out.requires_grad
        if argument is not None and not self._inputs[argument].mutates_storage_metadata:
            if lodges:
                self._set(position, OutputType.custom_function_view, argument, out)
            elif not custom:
                self._set(position, OutputType.alias_of_input, argument, out)
            return Kin(lodges=lodges)
        if root is not out and id(root) in self._first:
            self._set(
                position,
                OutputType.custom_function_view
                if lodges
                else OutputType.alias_of_intermediate_base_is_user_output,
                view=out,
            )
            return Kin(base=self._first[id(root)], lodges=lodges)
        if info.output_type is OutputType.alias_of_input and out.requires_grad:
            # Gradients reach it by a write that autograd has not seen at its memory's owner.
            self._set(position, OutputType.custom_function_view, info.base_idx, out)
            return Kin(root=root is out, lodges=True, detached=True)
        if root is out:
            return Kin(base=info.base_idx if _of_output(info) else None, root=True)
        if info.output_type in _OF_INPUTS:
            return Kin()
        apart = custom or position in self._no_views
        if apart or not (out.requires_grad and root.requires_grad):
            if info.output_type in _OF_INTERMEDIATES:
                self._set(position, OutputType.unsafe_view_alias)
            return Kin()
        return Kin(base=self._intermediate(position, root, out))

    def _intermediate(self, position: int, root: torch.Tensor, out: torch.Tensor) -> int:
        """The number of a base that is returned beside the outputs."""
        for number, (_, base) in enumerate(self.bases):
            if base is root:
                self._set(position, OutputType.alias_of_intermediate, view=out)
                return number
        self._set(position, OutputType.alias_of_intermediate_save_as_output, view=out)
        self.bases.append((position, root))
        return len(self.bases) - 1

    def _set(
        self,
        position: int,
        kind: OutputType,
        argument: int | None = None,
        view: Any = None,
    ) -> None:
        moved = argument is not None and self._inputs[argument].mutates_metadata
        self.infos[position] = dataclasses.replace(
            self.infos[position],
            output_type=kind,
            base_idx=argument,
            view_meta_sequence=None if moved or view is None else ViewMetaSequence(view),
        )

    def rewrite(self) -> None:
        """Put the outputs' new record in place of torch's, with the tangents that go with it."""
        meta = self.state.fw_metadata
        outs = len(meta.subclass_fw_graph_out_meta) - meta.num_intermediate_bases
        described: list[Any] = [
            *meta.subclass_fw_graph_out_meta[:outs],
            *(PlainTensorMeta(outs + i) for i in range(len(self.bases))),
        ]
        tangents: list[tuple[Any, ...]] = list(zip(*self._tangents(), strict=True)) or [(), (), ()]
        self.state.fw_metadata = dataclasses.replace(
            meta,
            output_info=self.infos,
            num_intermediate_bases=len(self.bases),
            traced_tangents=list(tangents[0]),
            traced_tangents_descs=list(tangents[1]),
            subclass_tangent_meta=list(tangents[2]),
            subclass_fw_graph_out_meta=described,
        )
        takes = any(isinstance(a, torch.Tensor) and a.requires_grad for a in self.state.flat_args)
        self.state.needs_autograd = takes and _differentiates(self.state.fw_metadata)

    def _tangents(self) -> Iterator[tuple[Any, AOTInput, Any]]:
        """What stands for each gradient that arrives, what it is of, and its format."""
        meta = self.state.fw_metadata
        known: list[tuple[Any, AOTInput, Any]] = list(
            zip(
                meta.traced_tangents,
                meta.traced_tangents_descs,
                meta.subclass_tangent_meta,
                strict=True,
            )
        )
        had = [k for k, info in enumerate(meta.output_info) if _has_tangent(info)]
        first = len(known) - len(had) - meta.num_intermediate_bases
        yield from known[:first]
        for position, info in enumerate(self.infos):
            if position in had and _has_tangent(info):
                yield known[first + had.index(position)]
            elif _has_tangent(info):
                yield _tangent(self.results[position], PlainAOTOutput(position))
        for position, base in self.bases:
            yield _tangent(base, IntermediateBaseAOTOutput(PlainAOTOutput(position)))


def _of_output(info: OutputAliasInfo) -> bool:
    return info.output_type is OutputType.alias_of_intermediate_base_is_user_output


def _has_tangent(info: OutputAliasInfo) -> bool:
    return (
        info.output_type in _VALUES
        and issubclass(info.raw_type, torch.Tensor)
        and info.requires_grad_for_backward
    )


def _tangent(
    result: torch.Tensor, what: DifferentiableAOTOutput
) -> tuple[Any, AOTInput, PlainTensorMeta]:
    """What stands for the gradient of a result, as torch has it for those that it finds."""
    value: Any = from_fun(result)
    coerced: Any = coerce_tangent_and_suggest_memory_format(value.view(value.shape))
    return coerced[0], TangentAOTInput(what), PlainTensorMeta(0, memory_format=coerced[1])


def _differentiates(meta: ViewAndMutationMeta) -> bool:
    """Whether a gradient may arrive for anything that the graph computes."""
    outputs = any(
        info.requires_grad
        and not (
            info.output_type in _OF_INPUTS
            and info.base_idx is not None
            and meta.input_info[info.base_idx].requires_grad
        )
        for info in meta.output_info
    )
    return outputs or any(
        info.requires_grad
        and info.mutates_data
        and not info.mutations_under_no_grad_or_inference_mode
        and not info.mutations_hidden_from_autograd
        for info in meta.input_info
    )
