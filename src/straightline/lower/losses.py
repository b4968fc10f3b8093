"""Losses and their backward."""

from __future__ import annotations

from collections.abc import Callable

from straightline.ir.dtypes import DType, computed_in, i64
from straightline.ir.index import ZERO, Given, Index, index, product
from straightline.ir.nodes import Const, Expr, Position, cast
from straightline.lower import scalar as s
from straightline.lower.builder import Builder, Element, Failure, number_of
from straightline.lower.reduction import Folding
from straightline.lower.scalar import where
from straightline.lower.table import Rule, Table
from straightline.lower.tensor import Coords, Shape, Tensor, broadcast
from straightline.lower.types import Number
from straightline.lower.views import Size

RULES = Table()

NONE, MEAN, SUM = 0, 1, 2


# -- of two tensors --------------------------------------------------------------------------------


def spread_over(x: Tensor, y: Tensor) -> Shape:
    """The shape that the two are broadcast to."""
    longer, shorter = (x, y) if x.dims >= y.dims else (y, x)
    ahead = longer.dims - shorter.dims
    return longer.shape[:ahead] + tuple(
        m if n == index(1) else n for n, m in zip(longer.shape[ahead:], shorter.shape, strict=True)
    )


def reduced(b: Builder, shape: Shape, value: Element, dtype: DType, reduction: int) -> Tensor:
    """The result of a loss: its elements, or their sum or mean. Eager rounds the elements to their
    type before it adds them.
    """
    if reduction == NONE:
        return b.out(value)
    whole = Folding(Tensor(shape, dtype, lambda c, mask=None: value(c)), None)
    narrow = b.dtype

    def part(coords: Coords, parts: Coords) -> Expr:
        return s.narrow(value(whole.point(coords, parts)), narrow)

    (total,) = b.reduce(whole.kept, whole.sizes, "sum", part, name="sum")
    if reduction == SUM:
        return b.out(lambda c: total.load(whole.keep(c)))
    count = s.number(whole.count, dtype)
    return b.out(lambda c: s.div(total.load(whole.keep(c)), count))


def loss(function: Callable[..., Expr]) -> Rule:
    """The rule of a loss of an input and a target: `function` of how eager rounds between its
    steps, of them, and of numbers.
    """

    def rule(b: Builder, x: Tensor, y: Tensor, reduction: int = MEAN, *numbers: Number) -> Tensor:
        dtype = computed_in(b.dtype)

        def step(value: Expr) -> Expr:
            return s.narrow(value, b.dtype)

        def element(coords: Coords) -> Expr:
            left, right = (cast(t.load(broadcast(coords, t.shape)), dtype) for t in (x, y))
            return function(step, left, right, *map(number_of, numbers))

        return reduced(b, spread_over(x, y), element, dtype, reduction)

    return rule


def loss_backward(function: Callable[..., Expr]) -> Rule:
    """The rule of its gradient: `function` of the scaled incoming one, input, target, numbers."""

    def rule(
        b: Builder, gradient: Tensor, x: Tensor, y: Tensor, reduction: int, *numbers: Number
    ) -> Tensor:
        dtype = computed_in(b.dtype)
        share = share_of(product(spread_over(x, y)), dtype) if reduction == MEAN else 1.0

        def element(coords: Coords) -> Expr:
            g, left, right = (
                cast(t.load(broadcast(coords, t.shape)), dtype) for t in (gradient, x, y)
            )
            return function(g, left, right, share, *map(number_of, numbers))

        return b.out(element)

    return rule


def share_of(count: Index, dtype: DType) -> s.Value:
    """What one element is of a mean of so many."""
    if count.is_constant:
        return 1.0 / count.constant
    return s.div(1.0, s.number(count, dtype))


Step = Callable[[Expr], Expr]


def squared(step: Step, x: Expr, y: Expr) -> Expr:
    difference = step(s.sub(x, y))
    return s.mul(difference, difference)


def squared_backward(g: Expr, x: Expr, y: Expr, share: s.Value) -> Expr:
    return s.mul(s.mul(share, s.mul(2.0, s.sub(x, y))), g)


def smooth(_: Step, x: Expr, y: Expr, beta: float = 1.0) -> Expr:
    z = s.absolute(s.sub(x, y))
    near = s.div(s.mul(s.mul(0.5, z), z), beta)
    half = s.rounded(0.5 * s.rounded(beta, z.dtype), z.dtype)
    return where(s.lt(z, beta), near, s.sub(z, half)) if beta else z


def smooth_backward(g: Expr, x: Expr, y: Expr, share: s.Value, beta: float) -> Expr:
    z = s.sub(x, y)
    inside = s.div(s.mul(s.mul(share, z), g), beta) if beta else Const(g.dtype, 0.0)
    high = where(s.ge(z, beta), s.mul(share, g), inside)
    return where(s.le(z, -beta), s.neg(s.mul(share, g)), high)


def huber(step: Step, x: Expr, y: Expr, delta: float = 1.0) -> Expr:
    z = step(s.absolute(s.sub(x, y)))
    bound = step(s.number(delta, z.dtype))
    far = s.mul(bound, step(s.sub(z, step(s.mul(0.5, bound)))))
    return where(s.lt(z, bound), s.mul(step(s.mul(0.5, z)), z), far)


def huber_backward(g: Expr, x: Expr, y: Expr, share: s.Value, delta: float) -> Expr:
    z = s.sub(x, y)
    inside = s.mul(s.mul(share, z), g)
    high = where(s.ge(z, delta), s.mul(s.mul(share, g), delta), inside)
    return where(s.le(z, -delta), s.neg(s.mul(s.mul(share, g), delta)), high)


RULES.add(loss(squared), "mse_loss")
RULES.add(loss_backward(squared_backward), "mse_loss_backward")
RULES.add(loss(smooth), "smooth_l1_loss")
RULES.add(loss_backward(smooth_backward), "smooth_l1_loss_backward")
RULES.add(loss(huber), "huber_loss")
RULES.add(loss_backward(huber_backward), "huber_loss_backward")


def soft_margin(step: Step, x: Expr, y: Expr) -> Expr:
    return s.log1p(step(s.exp(step(s.mul(step(s.neg(y)), x)))))


RULES.add(loss(soft_margin), "soft_margin_loss")


# -- of chances ------------------------------------------------------------------------------------

NO_CHANCE = Failure("RuntimeError", "all elements of input should be between 0 and 1")


@RULES.rule("binary_cross_entropy")
def binary_cross_entropy(
    b: Builder, x: Tensor, y: Tensor, weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    dtype = computed_in(b.dtype)

    def element(coords: Coords) -> Expr:
        chance, target = (cast(t.load(coords), dtype) for t in (x, y))
        b.require(s.both(s.ge(chance, 0.0), s.le(chance, 1.0)), NO_CHANCE)
        of_one = s.maximum(s.log(chance), -100.0)
        of_zero = s.maximum(s.log1p(s.neg(chance)), -100.0)
        value = s.sub(s.mul(s.sub(target, 1.0), of_zero), s.mul(target, of_one))
        value = s.narrow(value, b.dtype)
        if weight is None:
            return value
        return s.mul(value, cast(weight.load(broadcast(coords, weight.shape)), dtype))

    return reduced(b, x.shape, element, dtype, reduction)


@RULES.rule("binary_cross_entropy_backward")
def binary_cross_entropy_backward(
    b: Builder,
    gradient: Tensor,
    x: Tensor,
    y: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    dtype = computed_in(b.dtype)

    def element(coords: Coords) -> Expr:
        g, chance, target = (
            cast(t.load(broadcast(coords, t.shape)), dtype) for t in (gradient, x, y)
        )
        spread = s.maximum(s.mul(s.sub(1.0, chance), chance), 1e-12)
        value = s.div(s.mul(g, s.sub(chance, target)), spread)
        if weight is not None:
            other = cast(weight.load(broadcast(coords, weight.shape)), dtype)
            value = s.mul(s.narrow(value, b.dtype), other)
        if reduction == MEAN:
            value = s.div(s.narrow(value, b.dtype), s.number(product(x.shape), dtype))
        return value

    return b.out(element)


@RULES.rule("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    b: Builder,
    x: Tensor,
    y: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    """Eager makes it of several operations, each of which rounds."""
    dtype = computed_in(b.dtype)

    def step(value: Expr) -> Expr:
        return s.narrow(value, b.dtype)

    def element(coords: Coords) -> Expr:
        logit, target = (cast(t.load(broadcast(coords, t.shape)), dtype) for t in (x, y))
        likely = step(s.sub(s.minimum(logit, 0.0), s.log1p(s.exp(s.neg(s.absolute(logit))))))
        if pos_weight is not None:
            factor = cast(pos_weight.load(broadcast(coords, pos_weight.shape)), dtype)
            factor = step(s.add(step(s.mul(step(s.sub(factor, 1.0)), target)), 1.0))
            likely = step(s.mul(likely, factor))
        value = step(s.sub(step(s.mul(step(s.sub(1.0, target)), logit)), likely))
        if weight is None:
            return value
        return s.mul(value, cast(weight.load(broadcast(coords, weight.shape)), dtype))

    return reduced(b, spread_over(x, y), element, dtype, reduction)


# -- of classes ------------------------------------------------------------------------------------

NO_CLASS = Failure("IndexError", "Target is out of bounds.")


class Classes:
    """The log-chances that targets choose: `x` has its classes in dimension 1, or alone."""

    def __init__(
        self, b: Builder, x: Tensor, target: Tensor, weight: Tensor | None, ignored: Size
    ) -> None:
        self.b, self.x, self.target, self.weight = b, x, target, weight
        self.at = 0 if x.dims == 1 else 1
        self.count = x.shape[self.at]
        self.ignored = s.number(ignored, i64)
        self.dtype = computed_in(x.dtype)

    def chosen(self, coords: Coords) -> Expr:
        """The class of a target."""
        return cast(self.target.load(broadcast(coords, self.target.shape)), i64)

    def counts(self, chosen: Expr) -> Expr:
        return s.ne(chosen, self.ignored)

    def checked(self, chosen: Expr) -> Index:
        """The class as a coordinate; one that is ignored as the first."""
        known = s.both(s.ge(chosen, 0), s.lt(chosen, Position(self.count)))
        self.b.require(s.either(known, s.invert(self.counts(chosen))), NO_CLASS)
        inside = where(s.both(known, self.counts(chosen)), chosen, 0)
        most = self.count.constant - 1 if self.count.is_constant else None
        return index(Given(inside, 0, most))

    def weight_at(self, position: Index) -> Expr:
        if self.weight is None:
            return Const(self.dtype, 1.0)
        return cast(self.weight.load((position,)), self.dtype)

    def term(self, coords: Coords) -> tuple[Expr, Expr]:
        """The loss of a target and its weight, zeros for one that is ignored."""
        chosen = self.chosen(coords)
        counts, position = self.counts(chosen), self.checked(chosen)
        point = (*coords[: self.at], position, *coords[self.at :])
        weight = self.weight_at(position)
        value = s.mul(s.neg(weight), cast(self.x.load(point, counts), self.dtype))
        zero = Const(self.dtype, 0.0)
        return where(counts, value, zero), where(counts, weight, zero)


@RULES.rule("nll_loss_forward", "nll_loss2d_forward")
def nll_loss(
    b: Builder, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: Size
) -> list[Tensor]:
    classes = Classes(b, x, target, weight, ignored)
    dtype = classes.dtype
    if reduction == NONE:
        # Of the second result eager says nothing but its shape.
        return [b.out(lambda c: classes.term(c)[0]), b.out(lambda _: Const(dtype, 0.0), 1)]
    shape = target.shape if x.dims > 1 else ()
    whole = Folding(Tensor(shape, dtype, target.load), None)

    def total(component: int, name: str) -> Tensor:
        def part(coords: Coords, parts: Coords) -> Expr:
            return classes.term(whole.point(coords, parts))[component]

        return b.reduce(whole.kept, whole.sizes, "sum", part, name=name)[0]

    at = (ZERO,) * len(shape)
    summed, weights = total(0, "sum"), total(1, "weight")
    if reduction == SUM:
        out = b.out(lambda _: summed.load(at))
    else:
        out = b.out(lambda _: s.div(summed.load(at), weights.load(at)))
    return [out, b.out(lambda _: weights.load(at), 1)]


@RULES.rule("nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(
    b: Builder,
    gradient: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignored: Size,
    total_weight: Tensor,
) -> Tensor:
    classes = Classes(b, x, target, weight, ignored)
    dtype = classes.dtype

    def element(coords: Coords) -> Expr:
        point = coords[: classes.at] + coords[classes.at + 1 :]
        chosen = classes.chosen(point)
        mine = s.both(s.eq(chosen, Position(coords[classes.at])), classes.counts(chosen))
        classes.checked(chosen)
        g = cast(gradient.load(broadcast(point, gradient.shape)), dtype)
        value = s.mul(s.neg(classes.weight_at(coords[classes.at])), g)
        if reduction == MEAN:
            value = s.div(value, cast(total_weight.load(()), dtype))
        return where(mine, value, 0.0)

    return b.out(element)
