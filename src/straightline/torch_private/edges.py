"""A tensor's place in the autograd graph, held without the tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C._autograd import (
    SavedTensor,
    _make_saved_tensor,
    _saved_tensors_hooks_disable,
    _saved_tensors_hooks_enable,
    _saved_tensors_hooks_get_disabled_error_message,
    _top_saved_tensors_default_hooks,
)

saved_tensor = _make_saved_tensor
top_saved_hooks = _top_saved_tensors_default_hooks


def edge(tensor: Tensor) -> Tensor | SavedTensor:
    """Where gradients of a tensor go, without the tensor: its memory is not kept.

    A saved tensor whose hooks drop the data keeps the tensor's place in the autograd graph alone.
    Generated code does the same in its own lines; this is for when the user's hooks would see what
    is saved.
    """
    if tensor.is_leaf or torch.is_inference_mode_enabled():
        return tensor
    message = _saved_tensors_hooks_get_disabled_error_message()
    _saved_tensors_hooks_disable("", False)
    try:
        saved = _make_saved_tensor(tensor, False)
    finally:
        if message is None:
            _saved_tensors_hooks_enable()
        else:
            _saved_tensors_hooks_disable(message, False)
    unannotated: Any = saved
    unannotated.register_hooks(type, no_data)
    return saved


def unpack(place: Tensor | SavedTensor) -> Tensor:
    """What stands for a tensor as an input of an autograd function: a leaf is itself.

    The place of another (`edge`) becomes an empty tensor.
    """
    return place if isinstance(place, Tensor) else place.unpack()


def kept(tensor: Tensor) -> SavedTensor:
    """A tensor to be read later, checked then not to have been written to since."""
    return saved_tensor(tensor, False)


def no_data(_packed: object) -> Tensor:
    """What the tensor of an `edge` is unpacked to."""
    return torch.empty(0)
