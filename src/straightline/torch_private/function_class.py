"""Classes of autograd functions whose nodes carry what generated functions write to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.autograd.function import FunctionMeta


def higher_class(name: str, body: Mapping[str, object]) -> type[torch.autograd.Function]:
    """An autograd function with the given forward and backward, for a program of a higher order.

    Gradients arrive as one mutable list. To compiled autograd it is any function.
    """
    make: Any = FunctionMeta
    cls: type[torch.autograd.Function] = make(
        name, (torch.autograd.Function,), {**body, "boxed_grads_call": True}
    )
    without_values(cls)
    return cls


def without_values(cls: Any) -> None:
    """What a node of the class was not given reads as empty."""
    node = cls._backward_cls
    node.symints = ()
    node.opaque_objects = ()
    node._tensors_no_vc_check = ()
