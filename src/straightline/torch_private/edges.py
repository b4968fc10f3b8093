"""A tensor's place in the autograd graph, held without the tensor."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C._autograd import SavedTensor, _make_saved_tensor


def edge(tensor: Tensor) -> SavedTensor:
    """Where gradients of a tensor go, without the tensor: its memory is not kept.

    A saved tensor whose hooks drop the data keeps the tensor's place in the autograd graph alone.
    """
    saved = _make_saved_tensor(tensor, False)
    saved.register_hooks(type, _empty)
    return saved


def unpack(place: Tensor | SavedTensor) -> Tensor:
    """What stands for a tensor as an input of an autograd function: a leaf is itself.

    The place of another (`edge`) becomes an empty tensor.
    """
    return place if isinstance(place, Tensor) else place.unpack()


def kept(tensor: Tensor) -> SavedTensor:
    """A tensor to be read later, checked then not to have been written to since."""
    return _make_saved_tensor(tensor, False)


def _empty(_packed: object) -> Tensor:
    return torch.empty(0)
