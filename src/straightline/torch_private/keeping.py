"""What a forward keeps for backward and notes of its inputs, and what of it is written to."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import fx
from torch.fx.experimental._backward_state import BackwardState

from straightline.capture.contract import (
    Handles,
    Input,
    Mutation,
    Plain,
    Role,
    Saved,
    Shared,
    Subclass,
    places,
)
from straightline.capture.written import Written
from straightline.torch_private import operations, returns
from straightline.torch_private.layouts import layout, return_layouts
from straightline.torch_private.stages import Stages


def saved(stages: Stages, inputs: Sequence[Input], hidden: frozenset[int]) -> Saved:
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


def handles(
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
        else tuple(
            n for n in unsaved if n not in mutated and inputs[n].argument not in stages.versionless
        ),
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
