"""Facts about torch's operations, for code that reads graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import fx
from torch._C import _dispatch_get_all_op_names
from torch._library.utils import is_builtin
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from straightline.torch_private.allocation import empty_strided


def is_operator(target: object) -> TypeGuard[Any]:
    """`target` is one overload of a registered operation."""
    return isinstance(target, OpOverload)


def writes(target: object) -> bool:
    """Some argument of the operation is written to."""
    return isinstance(target, OpOverload) and target._schema.is_mutable


def written_arguments(target: object) -> tuple[int | str, ...]:
    """Positions and names of the arguments that an operation writes to."""
    if not isinstance(target, OpOverload):
        return ()
    return tuple(
        key
        for position, argument in enumerate(target._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
        for key in (position, argument.name)
    )


def written_types(target: object) -> list[str]:
    """Types of the arguments that an operation, or any of its overloads, writes to."""
    if isinstance(target, OpOverloadPacket):
        overloads = [getattr(target, name) for name in target.overloads()]
    else:
        overloads = [target] if isinstance(target, OpOverload) else []
    return [
        str(argument.real_type)
        for overload in overloads
        for argument in overload._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


def written_nodes(node: fx.Node) -> list[fx.Node]:
    """Values that a graph's operation writes to."""
    positions = written_arguments(node.target)
    return [
        argument
        for position, argument in enumerate(node.args)
        if position in positions and isinstance(argument, fx.Node)
    ]


def is_view(target: object) -> bool | None:
    """The operation returns a view of its argument; None when that is not known."""
    return target.is_view if isinstance(target, OpOverload) else None


def memory_of(node: fx.Node) -> fx.Node:
    """The node whose memory a node's value is, through views, their items and writes in place."""
    while (source := _aliased(node)) is not None:
        node = source
    return node


def _aliased(node: fx.Node) -> fx.Node | None:
    """What a node's value shares its memory with, one operation back."""
    if node.op != "call_function":
        return None
    if name(node.target) == "getitem":
        source = node.args[0]
        return _aliased(source) if isinstance(source, fx.Node) else None
    if not isinstance(node.target, OpOverload):
        return None
    schema = node.target._schema
    if all(result.alias_info is None for result in schema.returns):
        return None
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None:
            passed = node.args[position : position + 1] or (node.kwargs.get(argument.name),)
            return passed[0] if isinstance(passed[0], fx.Node) else None
    return None


def is_random(target: object) -> bool:
    """The operation draws from a generator."""
    return isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def is_repeatable(target: object) -> bool:
    """The operation gives the same for the same arguments.

    Only torch's own are known to: a custom one may draw random numbers or keep a state of its own.
    """
    return isinstance(target, OpOverload) and is_builtin(target) and not is_random(target)


def checks_only(target: object) -> bool:
    """The operation's only effect is an error: it may run again, and at any time."""
    return isinstance(target, OpOverload) and target.name() == "aten::_linalg_check_errors"


def allocates_only(target: object) -> bool:
    """The operation's values are not defined (`empty` and its like)."""
    return isinstance(target, OpOverload) and target.name().startswith(
        ("aten::empty", "aten::new_empty")
    )


def name(target: object) -> str:
    """`aten::mul.Tensor` for an operation, else the Python name."""
    if isinstance(target, OpOverload):
        return str(target.name())
    if target is empty_strided:
        return "empty_strided"
    return str(getattr(target, "__name__", None) or type(target).__name__)


def find(public_name: str) -> Any:
    """The operation that `name` gave this name."""
    namespace, _, rest = public_name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


def all_of_aten() -> set[str]:
    """The names of torch's own operations, as `add.Tensor`."""
    names = _dispatch_get_all_op_names()
    return {name.removeprefix("aten::") for name in names if name.startswith("aten::")}


def path(target: object) -> str | None:
    """`torch.ops.aten.mul.Tensor`, for what can be reached in this way."""
    if isinstance(target, OpOverload):
        return f"torch.ops.{target}"
    if isinstance(target, HigherOrderOperator):
        known = target.name()
        found: object = getattr(torch.ops.higher_order, known, None)
        return f"torch.ops.higher_order.{known}" if found is target else None
    return None


def builtin(target: Any) -> Callable[..., Any]:
    """What to call: the builtin beneath an overload's Python `__call__`, where there is one.

    Operations over script objects choose their implementation in Python, and graphs are the
    arguments of higher-order ones: those are called as they are.
    """
    if type(target) is OpOverload:
        return target._op
    return target  # type: ignore[no-any-return] # graphs call nothing else
