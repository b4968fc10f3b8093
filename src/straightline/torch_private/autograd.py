"""Autograd functions as torch's engine and compiled autograd expect them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
import torch._dynamo  # torch's runtime wrappers and Dynamo import one another: it has to come first
from torch._functorch._aot_autograd.runtime_wrappers import (
    AutogradLazyBackwardCompileInfo,
    _codegen_backward_epilogue,
    _codegen_backward_prologue,
    make_runtime_safe,
)
from torch._functorch._aot_autograd.subclass_codegen import codegen_backward_subclass_fns
from torch.autograd.function import FunctionMeta

from straightline.torch_private.function_class import without_values
from straightline.torch_private.stages import Stages

Facts: TypeAlias = Mapping[str, Callable[[], object]]


class _Lazy(FunctionMeta):
    """Attributes that compiled autograd reads off the class are made when first read."""

    def __getattr__(cls, name: str) -> Any:  # noqa: N805 - of a metaclass
        facts: Facts = cls.__dict__.get("_straightline_facts", {})
        if name not in facts:
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
        value = facts[name]()
        setattr(cls, name, value)
        return value


def function_class(
    name: str, body: Mapping[str, object], told: Facts
) -> type[torch.autograd.Function]:
    """A `torch.autograd.Function` with the given forward and backward, and with what `facts` tells.

    Gradients arrive as one mutable list, so that backward can drop each after its last use. What
    forward did not have to keep reads as empty.
    """
    attributes: dict[str, object] = {
        **body,
        "boxed_grads_call": True,
        "_straightline_facts": told,
        "_compiled_autograd_key": staticmethod(_compiled_autograd_key),
    }
    make: Any = _Lazy
    cls: type[torch.autograd.Function] = make(name, (torch.autograd.Function,), attributes)
    without_values(cls)
    return cls


def _compiled_autograd_key(ctx: Any) -> tuple[Any, ...]:
    # It asks before it collects gradients, and torch's prologue takes no gradient for left out.
    ctx.materialize_grads = True
    return (ctx._autograd_function_id, *ctx.symints)


def facts(stages: Stages) -> Facts:
    """What compiled autograd asks the class of a program for, by name."""
    meta, subclass, backward = stages.meta, stages.subclass, stages.backward
    assert backward is not None
    # What was known of tracing only goes: fake tensors, symbols. Torch's own code expects it gone.
    make_runtime_safe(meta, subclass)
    tracing, compiling, aot_id = stages.tracing, stages.compile, stages.aot_id
    fns = functools.cache(
        lambda: (
            (None, None)
            if subclass is None
            else codegen_backward_subclass_fns(grad_input_metas=subclass.grad_input_metas)
        )
    )

    return {
        "metadata": lambda: meta,
        "maybe_subclass_metadata": lambda: subclass,
        "_aot_id": lambda: aot_id,
        "_lazy_backward_info": lambda: AutogradLazyBackwardCompileInfo(
            backward,
            [],
            tracing,
            compiling,
        ),
        "_bw_prologue_fn": lambda: _codegen_backward_prologue(meta, subclass, fns()[0]),
        "_bw_epilogue_fn": lambda: _codegen_backward_epilogue(meta, subclass, fns()[1]),
        "num_symints_saved_for_bw": lambda: meta.num_symints_saved_for_bw,
    }
