"""Activations and their backward, by eager's vector formulas."""

from __future__ import annotations

import math
from collections.abc import Callable

from straightline.ir.dtypes import computed_in
from straightline.ir.index import Index, add, floordiv, sub
from straightline.ir.nodes import Const, Expr, cast
from straightline.lower import scalar as s
from straightline.lower.builder import Builder, number_of
from straightline.lower.choice import clamp
from straightline.lower.pointwise import elementwise
from straightline.lower.scalar import call, where
from straightline.lower.table import Rule, Table
from straightline.lower.tensor import Coords, Tensor
from straightline.lower.types import Number
from straightline.lower.views import dimension

RULES = Table()


def logistic(x: Expr) -> Expr:
    """The sigmoid as eager writes it out within other formulas."""
    return s.div(1.0, s.add(1.0, s.exp(s.neg(x))))


def square(x: Expr) -> Expr:
    return s.mul(x, x)


def one_less_square(x: Expr) -> Expr:
    return s.fma(s.neg(x), x, 1.0)


def parametric(function: Callable[..., Expr]) -> Rule:
    """The rule of a formula of one tensor and numbers, which come behind it."""

    def rule(b: Builder, x: Tensor, *numbers: Number) -> Tensor:
        return b.pointwise(lambda v: function(v, *map(number_of, numbers)), x)

    return rule


def parametric_backward(function: Callable[..., Expr]) -> Rule:
    """The rule of a formula of a gradient, a tensor, and numbers."""

    def rule(b: Builder, gradient: Tensor, x: Tensor, *numbers: Number) -> Tensor:
        return b.pointwise(lambda g, v: function(g, v, *map(number_of, numbers)), gradient, x)

    return rule


# -- rectifiers ------------------------------------------------------------------------------------


@RULES.rule("relu")
def relu(b: Builder, x: Tensor) -> Tensor:
    return clamp(b, x, 0)


@RULES.rule("hardtanh")
def hardtanh(b: Builder, x: Tensor, min_val: Number = -1, max_val: Number = 1) -> Tensor:
    return clamp(b, x, min_val, max_val)


@RULES.rule("relu6")
def relu6(b: Builder, x: Tensor) -> Tensor:
    return clamp(b, x, 0, 6)


def hardtanh_backward(g: Expr, x: Expr, low: float = -1, high: float = 1) -> Expr:
    return where(s.both(s.gt(x, low), s.lt(x, high)), g, 0.0)


RULES.add(parametric_backward(hardtanh_backward), "hardtanh_backward")


@RULES.rule("threshold")
def threshold(b: Builder, x: Tensor, bound: Number, value: Number) -> Tensor:
    def function(v: Expr) -> Expr:
        return where(s.le(v, b.read(bound, (), b.dtype)), b.read(value, (), b.dtype), v)

    return b.pointwise(function, x)


@RULES.rule("threshold_backward")
def threshold_backward(b: Builder, gradient: Tensor, x: Tensor, bound: Number) -> Tensor:
    def function(g: Expr, v: Expr) -> Expr:
        return where(s.le(v, b.read(bound, (), b.dtype)), 0, g)

    return b.pointwise(function, gradient, x)


def leaky_relu(x: Expr, slope: float = 0.01) -> Expr:
    return where(s.gt(x, 0.0), x, s.mul(x, slope))


def leaky_relu_backward(g: Expr, x: Expr, slope: float, *_: object) -> Expr:
    return where(s.gt(x, 0.0), g, s.mul(g, slope))


RULES.add(parametric(leaky_relu), "leaky_relu")
RULES.add(parametric_backward(leaky_relu_backward), "leaky_relu_backward")


@RULES.rule("_prelu_kernel")
def prelu(b: Builder, x: Tensor, weight: Tensor) -> Tensor:
    return b.pointwise(lambda v, w: where(s.gt(v, 0.0), v, s.mul(w, v)), x, weight)


@RULES.rule("_prelu_kernel_backward")
def prelu_backward(b: Builder, gradient: Tensor, x: Tensor, weight: Tensor) -> list[Tensor]:
    def to_x(g: Expr, v: Expr, w: Expr) -> Expr:
        return where(s.gt(v, 0.0), g, s.mul(w, g))

    def to_weight(g: Expr, v: Expr, w: Expr) -> Expr:
        return where(s.gt(v, 0.0), 0.0, s.mul(v, g))

    return [
        b.pointwise(function, gradient, x, weight, at=at)
        for at, function in enumerate((to_x, to_weight))
    ]


# -- exponential ones ------------------------------------------------------------------------------


def elu(x: Expr, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Expr:
    low = s.rounded(s.rounded(alpha, x.dtype) * s.rounded(scale, x.dtype), x.dtype)
    negative = s.mul(call("expm1", s.mul(x, input_scale)), low)
    return where(s.lt(x, 0.0), negative, s.mul(x, scale))


RULES.add(parametric(elu), "elu")
RULES.add(parametric(lambda x, alpha=1.0: elu(x, alpha, 1, 1.0 / alpha)), "celu")
RULES.add(
    parametric(
        lambda x: elu(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)
    ),
    "selu",
)


@RULES.rule("elu_backward")
def elu_backward(
    b: Builder,
    gradient: Tensor,
    alpha: Number,
    scale: Number,
    input_scale: Number,
    is_result: bool,
    x: Tensor,
) -> Tensor:
    def function(g: Expr, v: Expr) -> Expr:
        times, way = number_of(scale), number_of(input_scale)
        low = s.rounded(s.rounded(number_of(alpha), g.dtype) * s.rounded(times, g.dtype), g.dtype)
        if is_result:
            negative = s.mul(s.mul(g, way), s.add(v, low))
        else:
            negative = s.mul(s.mul(s.mul(g, way), low), s.exp(s.mul(v, way)))
        return where(s.gt(v, 0.0), s.mul(g, times), negative)

    return b.pointwise(function, gradient, x)


def silu(x: Expr) -> Expr:
    return s.div(x, s.add(1.0, s.exp(s.neg(x))))


def silu_backward(g: Expr, x: Expr) -> Expr:
    sigmoid = logistic(x)
    return s.mul(s.mul(g, sigmoid), s.fma(x, s.sub(1.0, sigmoid), 1.0))


def tanh_of_softplus(x: Expr) -> Expr:
    return call("tanh", s.log1p(s.exp(x)))


def mish_backward(g: Expr, x: Expr) -> Expr:
    bent = tanh_of_softplus(x)
    return s.mul(g, s.fma(s.mul(x, logistic(x)), one_less_square(bent), bent))


RULES.add(elementwise(silu), "silu")
RULES.add(elementwise(silu_backward), "silu_backward")
RULES.add(elementwise(lambda x: s.mul(x, tanh_of_softplus(x))), "mish")
RULES.add(elementwise(mish_backward), "mish_backward")
RULES.add(elementwise(lambda g, y: s.mul(s.mul(g, s.sub(1.0, y)), y)), "sigmoid_backward")
RULES.add(elementwise(lambda g, y: s.mul(g, one_less_square(y))), "tanh_backward")


def softplus(x: Expr, beta: float = 1, bound: float = 20) -> Expr:
    scaled = s.mul(x, beta)
    return where(s.gt(scaled, bound), x, s.div(s.log1p(s.exp(scaled)), beta))


def softplus_backward(g: Expr, x: Expr, beta: float, bound: float) -> Expr:
    scaled = s.mul(x, beta)
    z = s.exp(scaled)
    return where(s.gt(scaled, bound), g, s.div(s.mul(g, z), s.add(z, 1.0)))


RULES.add(parametric(softplus), "softplus")
RULES.add(parametric_backward(softplus_backward), "softplus_backward")


@RULES.rule("log_sigmoid_forward")
def log_sigmoid(b: Builder, x: Tensor) -> list[Tensor]:
    """The second result is what the backward of eager reads."""

    def part(v: Expr) -> Expr:
        return s.exp(s.neg(s.absolute(v)))

    return [
        b.pointwise(lambda v: s.sub(s.minimum(v, 0.0), s.log1p(part(v))), x),
        b.pointwise(part, x, at=1),
    ]


@RULES.rule("log_sigmoid_backward")
def log_sigmoid_backward(b: Builder, gradient: Tensor, x: Tensor, buffer: Tensor) -> Tensor:
    def function(g: Expr, v: Expr, z: Expr) -> Expr:
        negative = s.lt(v, 0.0)
        most = where(negative, 1.0, Const(g.dtype, 0.0))
        sign = where(negative, 1.0, Const(g.dtype, -1.0))
        return s.mul(s.sub(most, s.mul(sign, s.div(z, s.add(1.0, z)))), g)

    return b.pointwise(function, gradient, x, buffer)


# -- gelu ------------------------------------------------------------------------------------------

CUBE = 0.044715
BY_TANH = math.sqrt(2.0) * (2.0 / math.sqrt(math.pi)) * 0.5
DENSITY = (2.0 / math.sqrt(math.pi)) * math.sqrt(0.5) * 0.5


def gelu_inner(x: Expr) -> Expr:
    cube = s.mul(s.mul(x, x), x)
    return call("tanh", s.mul(BY_TANH, s.fma(CUBE, cube, x)))


def gelu_tanh(x: Expr) -> Expr:
    return s.mul(s.mul(0.5, x), s.add(1.0, gelu_inner(x)))


def gelu_erf(x: Expr) -> Expr:
    return s.mul(s.mul(x, 0.5), s.add(1.0, call("erf", s.mul(x, math.sqrt(0.5)))))


@RULES.rule("gelu")
def gelu(b: Builder, x: Tensor, *, approximate: str = "none") -> Tensor:
    return b.pointwise(gelu_tanh if approximate == "tanh" else gelu_erf, x)


def gelu_tanh_backward(g: Expr, x: Expr) -> Expr:
    inner = gelu_inner(x)
    three = s.rounded(3.0 * s.rounded(CUBE, x.dtype), x.dtype)
    slope = s.mul(BY_TANH, s.fma(three, square(x), 1.0))
    left = s.mul(0.5, s.add(1.0, inner))
    return s.mul(g, s.fma(s.mul(s.mul(0.5, x), one_less_square(inner)), slope, left))


def gelu_erf_backward(g: Expr, x: Expr) -> Expr:
    below = s.mul(0.5, s.add(1.0, call("erf", s.mul(x, math.sqrt(0.5)))))
    density = s.mul(DENSITY, s.exp(s.mul(square(x), -0.5)))
    return s.mul(g, s.fma(x, density, below))


@RULES.rule("gelu_backward")
def gelu_backward(b: Builder, gradient: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    function = gelu_tanh_backward if approximate == "tanh" else gelu_erf_backward
    return b.pointwise(function, gradient, x)


# -- straight pieces -------------------------------------------------------------------------------


def ramp(x: Expr) -> Expr:
    return s.minimum(s.maximum(s.add(x, 3.0), 0.0), 6.0)


def hardsigmoid_backward(g: Expr, x: Expr) -> Expr:
    return where(s.both(s.gt(x, -3.0), s.lt(x, 3.0)), s.mul(g, 1.0 / 6.0), 0.0)


def hardswish_backward(g: Expr, x: Expr) -> Expr:
    between = s.mul(g, s.add(s.div(x, 3.0), 0.5))
    return where(s.le(x, -3.0), 0.0, where(s.ge(x, 3.0), g, between))


RULES.add(elementwise(lambda x: s.div(ramp(x), 6.0)), "hardsigmoid")
RULES.add(elementwise(hardsigmoid_backward), "hardsigmoid_backward")
RULES.add(elementwise(lambda x: s.div(s.mul(x, ramp(x)), 6.0)), "hardswish")
RULES.add(elementwise(hardswish_backward), "hardswish_backward")


@RULES.rule("hardshrink")
def hardshrink(b: Builder, x: Tensor, lambd: Number = 0.5) -> Tensor:
    return b.pointwise(lambda v: where(_within(b, v, lambd), 0.0, v), x)


def _within(b: Builder, x: Expr, lambd: Number) -> Expr:
    bound = s.rounded(number_of(lambd), b.dtype)
    return s.both(s.ge(x, -bound), s.le(x, bound))


@RULES.rule("hardshrink_backward", "softshrink_backward")
def shrink_backward(b: Builder, gradient: Tensor, x: Tensor, lambd: Number) -> Tensor:
    return b.pointwise(lambda g, v: where(_within(b, v, lambd), 0.0, g), gradient, x)


def softshrink(x: Expr, bound: float = 0.5) -> Expr:
    """Zero between, where NaN stays NaN."""
    between = where(s.lt(x, -bound), s.add(x, bound), where(s.is_nan(x), x, 0.0))
    return where(s.gt(x, bound), s.sub(x, bound), between)


RULES.add(parametric(softshrink), "softshrink")


# -- gates -----------------------------------------------------------------------------------------


def _halves(x: Tensor, dim: int) -> tuple[int, Index]:
    at = dimension(dim, x.dims)
    return at, floordiv(x.shape[at], 2)


def _moved(coords: Coords, dim: int, by: Index) -> Coords:
    return (*coords[:dim], add(coords[dim], by), *coords[dim + 1 :])


@RULES.rule("glu")
def glu(b: Builder, x: Tensor, dim: int = -1) -> Tensor:
    at, half = _halves(x, dim)

    def element(coords: Coords) -> Expr:
        value = cast(x.load(coords), computed_in(b.dtype))
        gate = cast(x.load(_moved(coords, at, half)), computed_in(b.dtype))
        return s.mul(value, logistic(gate))

    return b.out(element)


@RULES.rule("glu_backward")
def glu_backward(b: Builder, gradient: Tensor, x: Tensor, dim: int) -> Tensor:
    at, half = _halves(x, dim)
    dtype = computed_in(b.dtype)

    def element(coords: Coords) -> Expr:
        first = s.below(coords[at], half)
        back = _moved(coords, at, sub(0, half))
        g = s.where(first, gradient.load(coords, first), gradient.load(back, s.invert(first)))
        own = cast(x.load(coords), dtype)
        gate_of_own = cast(x.load(_moved(coords, at, half), first), dtype)
        value_of_own = cast(x.load(back, s.invert(first)), dtype)
        sigmoid = s.narrow(call("sigmoid", where(first, gate_of_own, own)), b.dtype)
        g = cast(g, dtype)
        to_gate = s.mul(s.mul(s.mul(s.sub(1.0, sigmoid), sigmoid), value_of_own), g)
        return where(first, s.mul(sigmoid, g), to_gate)

    return b.out(element)


@RULES.rule("logit_backward")
def logit_backward(b: Builder, gradient: Tensor, x: Tensor, eps: float | None = None) -> Tensor:
    def function(g: Expr, v: Expr) -> Expr:
        rest = s.narrow(s.sub(1.0, v), b.dtype)
        slope = s.div(g, s.narrow(s.mul(v, rest), b.dtype))
        if eps is None or eps < 0:
            return where(s.both(s.ge(v, 0.0), s.le(v, 1.0)), slope, math.nan)
        low = s.rounded(eps, b.dtype)
        high = s.rounded(1.0 - low, b.dtype)
        return where(s.both(s.ge(v, low), s.le(v, high)), slope, 0.0)

    return b.pointwise(function, gradient, x)
