"""Gradients that may not arrive in backward: what they are taken for, and what depends on them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.schemas import SubclassCreationMeta, ViewAndMutationMeta

from straightline.capture.contract import Layout, Missing, Plain, Subclass, Tangent, Zero, places
from straightline.torch_private import symbols

SIZE = "size"
"""What generated code calls the sizes of a result."""


def missing(
    meta: ViewAndMutationMeta,
    tangents: Sequence[Tangent],
    backward: fx.GraphModule,
    gradients: Sequence[Layout],
) -> Missing | None:
    """How left-out gradients are told, or None where the engine makes the zeros.

    A single gradient may be left out too, by a node above that gave None. Zeros of a subclass are
    made where its parts are plain tensors whose sizes follow from its own.
    """
    if not tangents:
        return None
    zeros = [_zeros(m) for m in meta.subclass_tangent_meta]
    plain = [isinstance(t.layout, Plain) for t in tangents]
    made = [() if p else z for p, z in zip(plain, zeros, strict=True)]
    if any(each is None for each in made):
        return None
    reached, fixed = needed(tangents, backward, gradients)
    return Missing(tuple(each for each in made if each is not None), reached, fixed)


def needed(
    tangents: Sequence[Tangent], backward: fx.GraphModule, gradients: Sequence[Layout]
) -> tuple[tuple[tuple[int, ...], ...], bool]:
    """For each gradient that a backward graph computes, the tangents that it depends on; whether
    one is there that depends on none.
    """
    placeholders = [
        n for n in backward.graph.find_nodes(op="placeholder") if n.name.startswith("tangents")
    ]
    results: Any = backward.graph.output_node().args[0]
    reached: list[set[fx.Node]] = []
    for group in _groups(tangents):
        touched = {placeholders[i] for i in group}
        for node in backward.graph.nodes:
            if touched.intersection(node.all_input_nodes):
                touched.add(node)
        reached.append(touched)
    starts = itertools.accumulate((places(g) for g in gradients), initial=0)
    parts = [results[first:end] for first, end in itertools.pairwise(starts)]
    deciding = tuple(
        tuple(k for k, touched in enumerate(reached) if touched.intersection(part))
        for part in parts
    )
    fixed = any(
        not by and any(value is not None for value in part)
        for by, part in zip(deciding, parts, strict=True)
    )
    return deciding, fixed


def _groups(tangents: Sequence[Tangent]) -> list[range]:
    counts = [_tensors(t.layout) for t in tangents]
    starts = itertools.accumulate(counts, initial=0)
    return [range(first, end) for first, end in itertools.pairwise(starts)]


def _tensors(where: Layout) -> int:
    """How many flat tangents there are of a layout; its sizes are not among them."""
    return sum(_tensors(m) for _, m in where.members) if isinstance(where, Subclass) else 1


def _zeros(meta: Any) -> tuple[Zero | str, ...] | None:
    """The flat parts of a subclass's zero, or None where they cannot be told."""
    value = getattr(meta, "original_subclass", None)
    if not isinstance(meta, SubclassCreationMeta) or not isinstance(value, torch.Tensor):
        return None
    bound: dict[Any, str] = {}
    sizes: list[Any] = list(value.shape)
    for dim, size in enumerate(sizes):
        if isinstance(size, torch.SymInt):
            bound.setdefault(size.node.expr, f"{SIZE}[{dim}]")
    parts = list(_parts(value, bound))
    return None if None in parts else tuple(part for part in parts if part is not None)


def _parts(value: Any, bound: symbols.Bindings) -> Iterator[Zero | str | None]:
    """Members, then the sizes and the strides that are known at run time only; None where one is
    not.
    """
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        yield None
    elif not hasattr(value, "__tensor_flatten__"):
        size = tuple(_size(s, bound) for s in value.shape)
        known = value.is_floating_point() and None not in size
        yield (
            Zero(tuple(s for s in size if s is not None), value.dtype, value.device)
            if known
            else None
        )
    else:
        for name in value.__tensor_flatten__()[0]:
            yield from _parts(getattr(value, name), bound)
        sizes: list[Any] = [*value.shape, *value.stride()]
        for each in sizes:
            if isinstance(each, torch.SymInt):
                text = _size(each, bound)
                yield None if text is None else str(text)


def _size(size: Any, bound: symbols.Bindings) -> int | str | None:
    if not isinstance(size, torch.SymInt):
        return int(size)
    return None if size.node.is_nested_int() else symbols.render(size, bound)
