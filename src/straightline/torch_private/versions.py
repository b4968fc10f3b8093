"""Which arguments' versions a program has to move or put back by itself."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from straightline.capture.contract import Duplicate, Input, Mutation, Plain, SharedBase, places
from straightline.torch_private import operations
from straightline.torch_private.stages import Stages


def stay_and_move(
    stages: Stages,
    inputs: Sequence[Input],
    mutations: Sequence[Mutation],
    bases: Sequence[SharedBase],
    duplicates: Sequence[Duplicate],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Arguments whose version must be put back after a write, and those it must be moved of.

    Arguments merged into a base share its version, or have it moved with the base's: they stay
    together.
    """
    written = {m.input for m in mutations} | _written_in_graph(stages, inputs)
    twins: dict[int, list[int]] = {}
    for duplicate in duplicates:
        twins.setdefault(duplicate.kept, []).append(duplicate.dropped)
    stays: list[int] = []
    moves: list[int] = []
    for position, item in enumerate(inputs):
        where = item.argument
        if where is None:
            if all(stages.moved[m] is False for m in bases[position].members):
                stays += bases[position].members
            continue
        if stages.moved[where] is None or where in stages.versionless:
            continue
        moved = any(stages.moved[a] for a in (where, *twins.get(where, ())))
        info = stages.meta.input_info[position]
        if position not in written:
            if moved:
                moves.append(where)
        elif not moved and (info.mutates_data or info.mutates_storage_metadata):
            stays.append(where)
    return tuple(stays), tuple(moves)


def _written_in_graph(stages: Stages, inputs: Sequence[Input]) -> set[int]:
    """Inputs that an operation of the forward graph writes to, so that their version moves."""
    placeholders = stages.forward.graph.find_nodes(op="placeholder")[len(stages.meta.tokens) :]
    starts = itertools.accumulate((places(i.layout) for i in inputs), initial=0)
    # A write to a member does not move the version of the subclass that holds it.
    where = {
        placeholders[start]: position
        for position, (item, start) in enumerate(zip(inputs, starts, strict=False))
        if isinstance(item.layout, Plain)
    }
    return {
        where[argument]
        for node in stages.forward.graph.nodes
        if node.target is not torch.ops.inductor.resize_storage_bytes_.default
        for argument in operations.written_nodes(node)
        if argument in where
    }
