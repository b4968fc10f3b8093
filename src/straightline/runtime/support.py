"""What generated functions call in the rare cases that are not worth a line each.

Nothing here runs in a steady call, except where a docstring says so.
"""

from __future__ import annotations

from typing import Any

import torch

from straightline.errors import SAVE_IT, DoubleBackwardError, StraightlineError, TangentError


class ArgumentTypeError(StraightlineError, TypeError):
    """An argument is of another type than the program was compiled for."""


def wrong_type(source: str, value: object, expected: type) -> ArgumentTypeError:
    """The error for an argument that is not the subclass it was compiled for."""
    return ArgumentTypeError(
        f"argument {source!r} is a {_type_name(type(value))}, but this program was compiled for "
        f"a {_type_name(expected)}",
        todo="pass the type that was compiled for, or call the compiled function again through "
        "torch.compile so that its guards see the new type",
    )


def not_a_duplicate(dropped: str, kept: str) -> StraightlineError:
    """The error for two arguments that were one tensor when compiled and no longer are."""
    return StraightlineError(
        f"arguments {dropped!r} and {kept!r} were the same tensor when this program was compiled "
        "and one of them is mutated, but now they are two tensors",
        todo="call torch._dynamo.reset(), or pass them as they were passed when compiled; "
        "Dynamo's guards should have noticed, please report it",
    )


def _type_name(cls: type) -> str:
    if cls.__module__ in ("builtins", "torch"):
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


def view_like(base: torch.Tensor, pattern: torch.Tensor) -> torch.Tensor:
    """A view of `base` with the geometry of `pattern`, which looks at the same memory.

    Runs in steady calls only where sizes depend on the data, so that no view can be written out.
    """
    origin: Any = pattern._base
    if origin is not None:
        start = base
        if base is not origin and _geometry(base) != _geometry(origin):
            start = base.as_strided(*_geometry(origin))
        viewed: Any = pattern  # torch's stubs do not know the method
        out: torch.Tensor | None = viewed._view_func(start)
        if out is not None and out.shape == pattern.shape:
            return out
    size, stride, offset = _geometry(pattern)
    if base.is_complex() and not pattern.is_complex():
        out = torch.view_as_real(base).as_strided(size, stride, offset)
    elif pattern.is_complex() and not base.is_complex():
        out = torch.view_as_complex(base).as_strided(size, stride, offset)
    else:
        out = base.as_strided(size, stride, offset)
    return out if out.dtype == pattern.dtype else out.view(pattern.dtype)


class _History(torch.autograd.Function):
    """A look at some memory whose gradient is that of the value in it."""

    @staticmethod
    def forward(_ctx: Any, view: torch.Tensor, _value: torch.Tensor, detach: bool) -> torch.Tensor:
        return view.detach() if detach else view.view_as(view)

    @staticmethod
    def backward(_ctx: Any, *grads: Any) -> Any:
        return None, grads[0], None


def with_history(view: torch.Tensor, value: torch.Tensor, detach: bool) -> torch.Tensor:
    """`view`, differentiable as `value` is, and as a view of what it is a view of if not `detach`.

    Runs in steady calls where an output looks at memory that has another history than its own.
    """
    out: torch.Tensor = _History.apply(view, value, detach)  # type: ignore[no-untyped-call]
    return out


def _geometry(t: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    return tuple(t.size()), t.stride(), int(t.storage_offset())


def coerce(
    tangent: Any,
    expected: type,
    context: object,
    description: str,
    compile_id: str,
    created_at: str | None,
) -> Any:
    """A tangent of another type than expected, made into the expected one where its class knows
    how.

    What is not a tensor passes: a gradient that autograd left out. So do fake tensors, which stand
    for plain ones.
    """
    if not isinstance(tangent, torch.Tensor) or type(tangent).__name__ == "FakeTensor":
        return tangent
    convert = getattr(tangent, "__coerce_same_metadata_as_tangent__", None)
    if convert is not None:
        same = type(tangent) is expected
        converted = convert(context) if same else convert(context, expected)
        if converted is not None:
            return converted
    if expected is torch.Tensor and not hasattr(tangent, "__tensor_flatten__"):
        return tangent.as_subclass(torch.Tensor)
    raise _tangent_error(tangent, expected, description, compile_id, created_at)


def _tangent_error(
    tangent: torch.Tensor,
    expected: type,
    description: str,
    compile_id: str,
    created_at: str | None,
) -> TangentError:
    wanted = "plain Tensor" if expected is torch.Tensor else _type_name(expected)
    came = "plain Tensor" if type(tangent) is torch.Tensor else _type_name(type(tangent))
    made = f"; it was made here:\n{created_at}" if created_at else ""
    return TangentError(
        f"During the backward, we encountered a tensor subclass where we guessed its metadata "
        f"incorrectly: the gradient of forward {description} of compiled graph {compile_id} "
        f"(shape {tuple(tangent.shape)}) is a {came}, expected a {wanted}{made}",
        todo="call .detach() on forward outputs whose gradients you do not need, or give the "
        "subclass a __coerce_same_metadata_as_tangent__",
    )


def inside_functorch() -> RuntimeError:
    """The error for a compiled backward that runs inside a function transform."""
    return RuntimeError(
        "It looks like you're trying to call a compiled backward function within vmap/grad/vjp, "
        "which isn't supported. Try wrapping vmap inside torch.compile, or skip compiling the "
        "backward function."
    )


def became_deterministic() -> RuntimeError:
    """The error for a backward in deterministic mode whose forward was not."""
    return RuntimeError(
        "This compiled backward function is being run with "
        "torch.use_deterministic_algorithms(True), but it was previously generated during the "
        "forward function while torch.use_deterministic_algorithms(False) was set."
    )


def needs_compiled_autograd() -> RuntimeError:
    """The error for a hook that only compiled autograd can run."""
    return RuntimeError(
        "BackwardState requires CompiledAutograd: a hook registered inside the compiled function "
        "runs in backward, which needs torch._dynamo.config.compiled_autograd = True"
    )


def mutates_under_create_graph() -> RuntimeError:
    """The error for a backward that writes to an input while a graph of it is built."""
    return RuntimeError(
        "aot_autograd does not support input mutations with requires_grad in backward for "
        "create_graph=True"
    )


def lost_value(what: str, where: str | None) -> DoubleBackwardError:
    """The error for a value that a higher derivative needs and that nothing holds."""
    return DoubleBackwardError(what, where=where, todo=SAVE_IT)


def changed_value(name: str, where: str | None) -> DoubleBackwardError:
    """The error for a leaf that a higher derivative needs, written to since the call."""
    return DoubleBackwardError(
        f"double backward needs the value that {name!r} had at the call, but it has been modified "
        "by an inplace operation since",
        where=where,
        todo=f"modify it after the last backward, or {SAVE_IT}",
    )
