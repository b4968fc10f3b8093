"""Inputs that share memory, as torch's stages merge them into a common base."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import torch
from torch._functorch._aot_autograd.input_output_analysis import compute_overlapping_inputs
from torch._functorch._aot_autograd.schemas import AOTState, MutationType
from torch.multiprocessing.reductions import StorageWeakRef


def agree(state: AOTState) -> None:
    """Let inputs that share memory say the same of what torch's stages may merge them into.

    They are leaves if what they are views of is one, and autograd does not see writes if it sees
    none of those that happen. Torch refuses the first where a leaf meets a view of it, and takes an
    input that is not written to for one whose writes are seen. It also counts one gradient for all
    the new values of what it merges, but drops no more of theirs than that.
    """
    inputs: list[Any] = state.flat_args
    meta = state.fw_metadata
    infos = meta.input_info
    groups: dict[object, list[int]] = {}
    for position, value in enumerate(inputs):
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            with contextlib.suppress(NotImplementedError):  # a subclass without memory of its own
                groups.setdefault(StorageWeakRef(value.untyped_storage()), []).append(position)
    for members in groups.values():
        written = [infos[i] for i in members if infos[i].mutates_data]
        if len(members) < 2 or not written:
            continue
        first = inputs[members[0]]
        leaf = (first if first._base is None else first._base).is_leaf
        hidden = all(w.mutations_hidden_from_autograd for w in written)
        under_no_grad = all(w.mutations_under_no_grad_or_inference_mode for w in written)
        seen = [w for w in written if w.mutation_type is MutationType.MUTATED_OUT_GRAPH]
        for i in members:
            infos[i] = dataclasses.replace(infos[i], is_leaf=leaf)
            if not infos[i].mutates_data:
                infos[i] = dataclasses.replace(
                    infos[i],
                    mutations_hidden_from_autograd=hidden,
                    mutations_under_no_grad_or_inference_mode=under_no_grad,
                )
            if not seen:
                infos[i] = dataclasses.replace(infos[i], requires_grad=False)
        counted = sum(w.requires_grad for w in seen)
        wanted = any(infos[i].requires_grad for i in members)
        if seen and counted != wanted and _merges(state, members):
            described: tuple[Any, ...] = (
                meta.traced_tangents,
                meta.traced_tangents_descs,
                meta.subclass_tangent_meta,
            )
            for each in described:
                each[:counted] = (each[:counted] or [None])[: int(wanted)]


def _merges(state: AOTState, members: list[int]) -> bool:
    return len(compute_overlapping_inputs(state.aot_config, state.flat_args, members)) > 1
