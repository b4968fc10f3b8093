"""The programs measured, each with a hand-written floor: the operations that must run, no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

aten = torch.ops.aten
_add = aten.add.Tensor._op
_cat = aten.cat.default._op
_mul = aten.mul.Tensor._op
_relu = aten.relu.default._op

Inputs = tuple[Any, ...]


class Direction(Enum):
    """What one measured call does."""

    FORWARD = "forward"
    STEP = "forward + backward"
    BACKWARD = "backward"


@dataclass(frozen=True)
class Case:
    """One row.

    `floor` takes the inputs in the function's own order; with a backward it returns the output to
    differentiate. `fresh` replaces the inputs before each call, on every side alike.
    """

    group: str
    name: str
    function: Callable[..., Any]
    inputs: Callable[[], Inputs]
    floor: Callable[..., Any]
    direction: Direction = Direction.FORWARD
    tangent: Callable[[], Tensor] | None = None
    fresh: Callable[[Inputs], Inputs] | None = None
    arguments: int | None = None
    bar: float | None = None


def floor_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`apply` of the autograd engine itself, below the checks of `Function.apply` in Python."""
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply


# The rows that have a bar.


def _inference(x: Tensor) -> Tensor:
    return (x * 2 + 1).relu()


def _inference_floor(x: Tensor) -> Any:
    y = _mul(x, 2)
    z = _add(y, 1)
    del y
    return (_relu(z),)


def _mutation_and_alias(x: Tensor) -> Any:
    x.mul_(-1)
    return x.view(2, 4), x + 1


def _mutation_and_alias_floor(x: Tensor) -> Any:
    y = _mul(x, -1)
    z = _add(y, 1)
    x.copy_(y)
    return x.view(2, 4), z


def _affine(x: Tensor, w: Tensor) -> Tensor:
    return x * w + 1


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        y = _mul(x, w)
        out: Tensor = _add(y, 1)
        del y
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return None, _mul(grad, x)


def _two(build: Callable[[], Tensor]) -> Tensor:
    return TwoTensor(build(), build())


def _vector() -> Tensor:
    return torch.randn(8)


# Floors spell every call out, for a helper would cost a Python frame that nothing requires, and
# free each value after its last use, for memory still in the cache makes the next operation faster.
_unflatten: Callable[..., Any] = TwoTensor.__tensor_unflatten__
_SIZE, _STRIDE = (8,), (1,)


def _subclass(x: Tensor) -> Tensor:
    return x * 2 + 1


def _subclass_floor(x: Any) -> Any:
    a = _mul(x.a, 2)
    b = _mul(x.b, 2)
    a1 = _add(a, 1)
    del a
    b1 = _add(b, 1)
    del b
    return (_unflatten({"a": a1, "b": b1}, None, _SIZE, _STRIDE),)


def _nested_floor(x: Any) -> Any:
    left, right = x.a, x.b
    aa = _mul(left.a, 2)
    ab = _mul(left.b, 2)
    ba = _mul(right.a, 2)
    bb = _mul(right.b, 2)
    aa1 = _add(aa, 1)
    del aa
    ab1 = _add(ab, 1)
    del ab
    ba1 = _add(ba, 1)
    del ba
    bb1 = _add(bb, 1)
    del bb
    out_left = _unflatten({"a": aa1, "b": ab1}, None, _SIZE, _STRIDE)
    out_right = _unflatten({"a": ba1, "b": bb1}, None, _SIZE, _STRIDE)
    return (_unflatten({"a": out_left, "b": out_right}, None, _SIZE, _STRIDE),)


class _NestedAffine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        left, right, w_left, w_right = x.a, x.b, w.a, w.b
        x_aa, x_ab, x_ba, x_bb = left.a, left.b, right.a, right.b
        aa = _mul(x_aa, w_left.a)
        ab = _mul(x_ab, w_left.b)
        ba = _mul(x_ba, w_right.a)
        bb = _mul(x_bb, w_right.b)
        aa1 = _add(aa, 1)
        del aa
        ab1 = _add(ab, 1)
        del ab
        ba1 = _add(ba, 1)
        del ba
        bb1 = _add(bb, 1)
        del bb
        out_left = _unflatten({"a": aa1, "b": ab1}, None, _SIZE, _STRIDE)
        out_right = _unflatten({"a": ba1, "b": bb1}, None, _SIZE, _STRIDE)
        ctx.save_for_backward(x_aa, x_ab, x_ba, x_bb)
        return _unflatten({"a": out_left, "b": out_right}, None, _SIZE, _STRIDE)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x_aa, x_ab, x_ba, x_bb = ctx.saved_tensors
        left, right = grad.a, grad.b
        aa = _mul(left.a, x_aa)
        ab = _mul(left.b, x_ab)
        ba = _mul(right.a, x_ba)
        bb = _mul(right.b, x_bb)
        to_left = _unflatten({"a": aa, "b": ab}, None, _SIZE, _STRIDE)
        to_right = _unflatten({"a": ba, "b": bb}, None, _SIZE, _STRIDE)
        return None, _unflatten({"a": to_left, "b": to_right}, None, _SIZE, _STRIDE)


def _nested() -> Tensor:
    return _two(lambda: _two(_vector))


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.requires_grad_()


BAR = 0.5
_affine_apply = floor_apply(_Affine)
_nested_apply = floor_apply(_NestedAffine)

CORE: Sequence[Case] = (
    Case(
        group="layer",
        name="inference",
        function=_inference,
        inputs=lambda: (_vector(),),
        floor=_inference_floor,
        bar=BAR,
    ),
    Case(
        group="layer",
        name="mutation + alias",
        function=_mutation_and_alias,
        inputs=lambda: (_vector(),),
        floor=_mutation_and_alias_floor,
        bar=BAR,
    ),
    Case(
        group="layer",
        name="training forward",
        function=_affine,
        inputs=lambda: (_vector(), _leaf(_vector())),
        floor=_affine_apply,
        bar=BAR,
    ),
    Case(
        group="layer",
        name="forward + backward",
        function=_affine,
        inputs=lambda: (_vector(), _leaf(_vector())),
        floor=_affine_apply,
        direction=Direction.STEP,
        tangent=_vector,
        bar=BAR,
    ),
    Case(
        group="layer",
        name="TwoTensor in and out",
        function=_subclass,
        inputs=lambda: (_two(_vector),),
        floor=_subclass_floor,
        bar=BAR,
    ),
    Case(
        group="layer",
        name="nested TwoTensor, inference",
        function=_subclass,
        inputs=lambda: (_nested(),),
        floor=_nested_floor,
        bar=BAR,
    ),
    Case(
        group="layer",
        name="nested TwoTensor, forward",
        function=_affine,
        inputs=lambda: (_nested(), _leaf(_nested())),
        floor=_nested_apply,
        bar=BAR,
    ),
    Case(
        group="layer",
        name="nested TwoTensor, forward + backward",
        function=_affine,
        inputs=lambda: (_nested(), _leaf(_nested())),
        floor=_nested_apply,
        direction=Direction.STEP,
        tangent=_nested,
        bar=BAR,
    ),
    Case(
        group="layer",
        name="nested TwoTensor, backward",
        function=_affine,
        inputs=lambda: (_nested(), _leaf(_nested())),
        floor=_nested_apply,
        direction=Direction.BACKWARD,
        tangent=_nested,
        bar=BAR,
    ),
)


# The tables of the upstream pull requests. Their functions have many arguments, so their text is
# written out by a loop; the floors are the same text with the operations' builtins.


def _define(lines: Sequence[str]) -> Callable[..., Any]:
    scope: dict[str, Any] = {"torch": torch, "mul": _mul, "add": _add, "cat": _cat}
    text = "\n".join(lines)
    exec(compile(text, "<benchmark case>", "exec"), scope)
    function: Callable[..., Any] = scope["case"]
    return function


def _names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{i}" for i in range(count)]


def orchestration(arguments: int, aliases: int, mutations: int) -> Case:
    """Inference: the first arguments are mutated, the others read, views of the last returned."""
    names = _names("x", arguments)
    mutated, read = names[:mutations], names[mutations:]
    viewed = read[len(read) - aliases :]
    views = "".join(f", {n}.view(2, 4)" for n in viewed)
    head = f"def case({', '.join(names)}):"
    function = _define(
        [head]
        + [f"    {n}.mul_(-1)" for n in mutated]
        + [f"    return torch.cat([{', '.join(read)}]){views}"]
    )
    floor = _define(
        [head]
        + [f"    u_{n} = mul({n}, -1)" for n in mutated]
        + [f"    y = cat([{', '.join(read)}])"]
        + [f"    {n}.copy_(u_{n})" for n in mutated]
        + [f"    return y{views or ','}"]
    )
    return Case(
        group="orchestration",
        name=f"{aliases} aliases, {mutations} mutations, {arguments} arguments",
        function=function,
        inputs=lambda: tuple(_vector() for _ in names),
        floor=floor,
        arguments=arguments,
    )


def mutation_step(mutations: int, arguments: int) -> Case:
    """Training: non-leaf inputs that require grad are mutated, so the write has a gradient."""
    names = _names("x", arguments)
    mutated = names[:mutations]
    updates = ", ".join(f"u_{n}" for n in mutated)
    rest = " + ".join(names[mutations:])
    parameters = ", ".join(names)
    function = _define(
        [f"def case({parameters}):"]
        + [f"    {n}.mul_(-1)" for n in mutated]
        + [f"    return {rest} + 1"]
    )
    reads = names[mutations:]
    sums = [f"    y = add({reads[0]}, {reads[1] if len(reads) > 1 else 1})"]
    sums += [f"    y = add(y, {n})" for n in reads[2:]]
    sums += ["    y = add(y, 1)"] if len(reads) > 1 else []
    forward = _define(
        [f"def case(ctx, {parameters}):"]
        + [f"    u_{n} = mul({n}, -1)" for n in mutated]
        + sums
        + [f"    return {updates}, y"]
    )

    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise AssertionError("this row runs the forward only")

    step = type(
        "Step",
        (torch.autograd.Function,),
        {"forward": staticmethod(forward), "backward": staticmethod(backward)},
    )
    apply = floor_apply(step)

    def floor(*inputs: Tensor) -> Any:
        *updated, y = apply(*inputs)
        for old, new in zip(inputs, updated, strict=False):
            old.copy_(new)
        return (y,)

    return Case(
        group="mutation step",
        name=f"{mutations} mutations, {arguments} arguments",
        function=function,
        inputs=lambda: tuple(_leaf(_vector()) for _ in names),
        floor=floor,
        fresh=lambda leaves: (*(x * 1 for x in leaves[:mutations]), *leaves[mutations:]),
        arguments=arguments,
    )


def backward_prologue(saved: int) -> Case:
    """Backward only: `saved` tensors arrive beside one tangent."""
    names = _names("x", saved)
    parameters = ", ".join(names)
    function = _define(
        [f"def case(w, {parameters}):", "    return " + " + ".join(f"w * {n}" for n in names)]
    )
    forward = _define(
        [f"def case(ctx, w, {parameters}):", f"    y = mul(w, {names[0]})"]
        + [f"    y = add(y, mul(w, {n}))" for n in names[1:]]
        + [f"    ctx.save_for_backward({parameters})", "    return y"]
    )
    backward = _define(
        [
            "def case(ctx, grad):",
            f"    {parameters}, = ctx.saved_tensors",
            f"    y = mul(grad, {names[-1]})",
        ]
        + [f"    y = add(y, mul(grad, {n}))" for n in reversed(names[:-1])]
        + [f"    return y{', None' * saved}"]
    )
    step = type(
        "Step",
        (torch.autograd.Function,),
        {"forward": staticmethod(forward), "backward": staticmethod(backward)},
    )
    return Case(
        group="backward prologue",
        name=f"{saved} saved tensors",
        function=function,
        inputs=lambda: (_leaf(_vector()), *(_vector() for _ in names)),
        floor=floor_apply(step),
        direction=Direction.BACKWARD,
        tangent=_vector,
        arguments=saved,
    )


TABLES: Sequence[Case] = (
    orchestration(arguments=5, aliases=0, mutations=0),
    orchestration(arguments=5, aliases=2, mutations=0),
    orchestration(arguments=10, aliases=0, mutations=2),
    orchestration(arguments=10, aliases=3, mutations=1),
    orchestration(arguments=20, aliases=5, mutations=3),
    mutation_step(mutations=1, arguments=2),
    mutation_step(mutations=2, arguments=4),
    mutation_step(mutations=5, arguments=10),
    backward_prologue(5),
    backward_prologue(10),
    backward_prologue(20),
    backward_prologue(50),
)
