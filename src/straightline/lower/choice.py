"""Comparisons, bits, choices between operands, and casts."""

from __future__ import annotations

from collections.abc import Callable

from straightline.ir.nodes import Expr
from straightline.lower import scalar as s
from straightline.lower.binary import plus_product, truth_and, truth_or
from straightline.lower.builder import Builder
from straightline.lower.pointwise import elementwise, named
from straightline.lower.scalar import where
from straightline.lower.table import Rule, Table
from straightline.lower.tensor import Coords, Tensor, broadcast
from straightline.lower.types import Number, Operand, common

RULES = Table()


# -- comparisons, bits -----------------------------------------------------------------------------


def comparison(operation: str) -> Rule:
    def rule(b: Builder, x: Operand, y: Operand) -> Tensor:
        return b.pointwise(named(operation), x, y, dtype=common(x, y))

    return rule


for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    RULES.add(comparison(_name), f"{_name}.Tensor", f"{_name}.Scalar")


def logical(function: Callable[[Expr, Expr], Expr]) -> Rule:
    def rule(b: Builder, x: Tensor, y: Tensor) -> Tensor:
        def element(coords: Coords) -> Expr:
            return function(s.truth(b.read(x, coords)), s.truth(b.read(y, coords)))

        return b.out(element)

    return rule


RULES.add(logical(s.both), "logical_and")
RULES.add(logical(s.either), "logical_or")
RULES.add(logical(named("xor")), "logical_xor")

for _name, _operation in (
    ("bitwise_and", "and"), ("bitwise_or", "or"), ("bitwise_xor", "xor"),
    ("bitwise_left_shift", "shl"), ("bitwise_right_shift", "shr"),
):  # fmt: skip
    RULES.add(
        elementwise(named(_operation)), f"{_name}.Tensor", f"{_name}.Scalar_Tensor",
        f"{_name}.Tensor_Scalar" if "shift" in _name else f"{_name}.Scalar",
    )  # fmt: skip
for _name, _operation in (
    ("__and__", "and"), ("__or__", "or"), ("__xor__", "xor"), ("__lshift__", "shl"),
    ("__rshift__", "shr"),
):  # fmt: skip
    RULES.add(elementwise(named(_operation)), f"{_name}.Tensor", f"{_name}.Scalar")


# -- three operands --------------------------------------------------------------------------------


@RULES.rule("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def select(b: Builder, condition: Tensor, x: Operand, y: Operand) -> Tensor:
    def element(coords: Coords) -> Expr:
        chosen = s.truth(b.read(condition, coords))
        return where(chosen, b.read(x, coords, b.dtype), b.read(y, coords, b.dtype))

    return b.out(element)


@RULES.rule("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(b: Builder, x: Tensor, mask: Tensor, value: Operand) -> Tensor:
    return select(b, mask, value, x)


@RULES.rule("clamp", "clamp.Tensor", "clip")
def clamp(b: Builder, x: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """NaN stays, in the bounds too, and so does a zero that equals a bound; the upper bound wins
    over a lower one above it.
    """

    def element(coords: Coords) -> Expr:
        value = b.read(x, coords, b.dtype)
        if min is not None:
            value = truth_or(b.read(min, coords, b.dtype), value)
        return value if max is None else truth_and(b.read(max, coords, b.dtype), value)

    return b.out(element)


@RULES.rule("clamp_min", "clamp_min.Tensor")
def clamp_min(b: Builder, x: Tensor, min: Operand) -> Tensor:
    return clamp(b, x, min)


@RULES.rule("clamp_max", "clamp_max.Tensor")
def clamp_max(b: Builder, x: Tensor, max: Operand) -> Tensor:
    return clamp(b, x, None, max)


@RULES.rule("lerp.Scalar", "lerp.Tensor")
def lerp(b: Builder, x: Tensor, end: Tensor, weight: Operand) -> Tensor:
    """From the nearer end, so that a weight of 1 gives `end` itself."""

    def element(coords: Coords) -> Expr:
        first, last = b.read(x, coords, b.dtype), b.read(end, coords, b.dtype)
        part = b.read(weight, coords, b.dtype, exact=not isinstance(weight, Tensor))
        near = s.lt(s.absolute(part), 0.5)
        part = where(near, part, s.sub(part, 1.0))
        return s.fma(part, s.sub(last, first), where(near, first, last))

    return b.out(element)


@RULES.rule("addcmul")
def addcmul(b: Builder, x: Tensor, y: Tensor, z: Tensor, *, value: Number = 1) -> Tensor:
    def function(first: Expr, left: Expr, right: Expr) -> Expr:
        factor = s.number(value, first.dtype)
        return plus_product(first, s.mul(factor, left), right)

    return b.pointwise(function, x, y, z)


@RULES.rule("addcdiv")
def addcdiv(b: Builder, x: Tensor, y: Tensor, z: Tensor, *, value: Number = 1) -> Tensor:
    def function(first: Expr, left: Expr, right: Expr) -> Expr:
        factor = s.number(value, first.dtype)
        return s.add(first, s.div(s.mul(factor, left), right))

    return b.pointwise(function, x, y, z)


# -- types -----------------------------------------------------------------------------------------


@RULES.rule("_to_copy", "clone", "lift_fresh_copy", "positive")
def to_copy(b: Builder, x: Tensor, *_: object, **__: object) -> Tensor:
    """Cast at once, not by way of the type that arithmetic happens in."""
    return b.out(x.load)


@RULES.rule("copy")
def copy(b: Builder, x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return b.out(lambda coords: source.load(broadcast(coords, source.shape)))
