"""What torch knows of the values that enter and leave a graph, subclasses included."""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch._aot_autograd.schemas import (
    OpaqueMeta,
    SubclassCreationMeta,
    ViewAndMutationMeta,
)
from torch.fx.experimental._backward_state import BackwardState

from straightline.capture.contract import Layout, Opaque, Plain, Role, Subclass


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


def return_layouts(meta: ViewAndMutationMeta) -> tuple[Layout, ...]:
    described = tuple(layout(m) for m in meta.subclass_fw_graph_out_meta)
    return described or (Plain(),) * meta.num_forward_returns
