"""Normalisation by channels of an input of (N, C, ...): group and batch, with their backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from straightline.ir.dtypes import DType, computed_in, f32
from straightline.ir.index import ZERO, Index, add, floordiv, index, mod, mul, product
from straightline.ir.nodes import Expr, cast
from straightline.lower import scalar as s
from straightline.lower.builder import Builder, Element
from straightline.lower.normalisation import (
    Standard,
    affine,
    reciprocal_deviation,
    standard_backward,
)
from straightline.lower.reduction import Folding, Moments
from straightline.lower.table import Table
from straightline.lower.tensor import Coords, Shape, Tensor
from straightline.lower.views import Size, reshaped

RULES = Table()


def computed_tensor(shape: Shape, dtype: DType, value: Element) -> Tensor:
    """A tensor whose elements are computed where they are read, whatever the mask."""

    def load(coords: Coords, mask: Expr | None = None) -> Expr:
        return value(coords)

    return Tensor(shape, dtype, load)


# -- groups ----------------------------------------------------------------------------------------


class Groups:
    """An input as (N, groups, channels of each, positions)."""

    def __init__(self, x: Tensor, groups: Size) -> None:
        self.count = index(groups)
        self.each = floordiv(x.shape[1], self.count)
        self.positions = product(x.shape[2:])
        self.batch = x.shape[0]
        self.shape = (self.batch, self.count, self.each, self.positions)

    def split(self, x: Tensor) -> Tensor:
        return reshaped(x, self.shape)

    def channel(self, coords: Coords) -> tuple[Index]:
        """The channel of a point of the split input."""
        return (add(mul(coords[1], self.each), coords[2]),)

    def of_channel(self, channel: Index) -> tuple[Index, Index]:
        """Its group, and its place in there."""
        return floordiv(channel, self.each), mod(channel, self.each)


@RULES.rule("native_group_norm")
def group_norm(
    b: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    n: Size,
    c: Size,
    hxw: Size,
    group: Size,
    eps: float,
) -> list[Tensor]:
    dtype = computed_in(x.dtype)
    groups = Groups(x, group)
    split = groups.split(x)
    moments = Moments(b, split, Folding(split, (2, 3)), dtype)
    rstd = b.map(moments.folding.kept, reciprocal_deviation(moments, eps), "rstd")
    standard = Standard(split, moments.mean, rstd, moments.folding.keep, dtype)

    def element(at: Coords) -> Expr:
        return affine(standard.at(at), weight, bias, groups.channel(at), dtype)

    return [
        b.out(reshaped(computed_tensor(groups.shape, dtype, element), x.shape).load),
        b.out(lambda at: moments.mean.load((*at, ZERO, ZERO)), 1),
        b.out(lambda at: rstd.load((*at, ZERO, ZERO)), 2),
    ]


@RULES.rule("native_group_norm_backward")
def group_norm_backward(
    b: Builder,
    gradient: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    n: Size,
    c: Size,
    hxw: Size,
    group: Size,
    output_mask: Sequence[bool],
) -> list[Tensor | None]:
    dtype = computed_in(x.dtype)
    groups = Groups(x, group)
    split, slope = groups.split(x), groups.split(gradient)
    # Eager describes these two as (N, groups); their elements lie alike.
    mean, rstd = (reshaped(t, (groups.batch, groups.count)) for t in (mean, rstd))
    standard = Standard(split, mean, rstd, lambda at: at[:2], dtype)

    def weighted(at: Coords) -> Expr:
        return affine(cast(slope.load(at), dtype), weight, None, groups.channel(at), dtype)

    def columns(at: int, value: Element) -> Tensor:
        def part(coords: Coords, parts: Coords) -> Expr:
            return value((parts[0], *groups.of_channel(coords[0]), parts[1]))

        sizes = (groups.batch, groups.positions)
        return b.reduce(b.spec(at).shape, sizes, "sum", part, out=(at,))[0]

    results: list[Tensor | None] = [None, None, None]
    if output_mask[0]:
        element = standard_backward(b, standard, Folding(split, (2, 3)), weighted)
        results[0] = b.out(reshaped(computed_tensor(groups.shape, dtype, element), x.shape).load)
    if output_mask[1]:
        results[1] = columns(1, lambda at: s.mul(cast(slope.load(at), dtype), standard.at(at)))
    if output_mask[2]:
        results[2] = columns(2, lambda at: cast(slope.load(at), dtype))
    return results


# -- batches ---------------------------------------------------------------------------------------


def _channel(coords: Coords) -> Coords:
    return (coords[1],)


def _all_but_channels(x: Tensor) -> Folding:
    return Folding(x, [dim for dim in range(x.dims) if dim != 1])


def _across(channel: Index, x: Tensor) -> Coords:
    """Where a number of a channel stands in a tensor that keeps all dimensions."""
    return (ZERO, channel, *[ZERO] * (x.dims - 2))


def _by_running(
    b: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    eps: float,
) -> Tensor:
    dtype = computed_in(x.dtype)
    rstd = b.map(variance.shape, _running_rstd(variance, eps, dtype), "rstd")
    standard = Standard(x, mean, rstd, _channel, dtype)
    return b.out(lambda c: affine(standard.at(c), weight, bias, _channel(c), dtype))


def _running_rstd(variance: Tensor, eps: float, dtype: DType) -> Element:
    return lambda c: s.div(1.0, s.sqrt(s.add(cast(variance.load(c), dtype), eps)))


def _by_batch(
    b: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    running: tuple[Tensor, Tensor] | None,
    momentum: float,
    new_at: int,
) -> list[Tensor]:
    """The output, the mean and one over the deviation of the batch, and what becomes of the running
    mean and variance: results `new_at` and the one behind.
    """
    dtype = computed_in(x.dtype)
    moments = Moments(b, x, _all_but_channels(x), dtype)
    rstd = b.map(moments.folding.kept, reciprocal_deviation(moments, eps), "rstd")
    standard = Standard(x, moments.mean, rstd, moments.folding.keep, dtype)

    def by_channel(value: Element) -> Element:
        return lambda c: value(_across(c[0], x))

    results = [
        b.out(lambda c: affine(standard.at(c), weight, bias, _channel(c), dtype)),
        b.out(by_channel(moments.mean.load), 1),
        b.out(by_channel(rstd.load), 2),
    ]
    if running is None:
        return results

    def moved(old: Tensor, new: Element) -> Element:
        def element(c: Coords) -> Expr:
            kept = s.mul(1.0 - momentum, cast(old.load(c), dtype))
            return s.add(s.mul(momentum, new(_across(c[0], x))), kept)

        return element

    mean, variance = running
    return [
        *results,
        b.out(moved(mean, moments.mean.load), new_at),
        b.out(moved(variance, lambda c: moments.variance(c, 1.0)), new_at + 1),
    ]


def _nothing(b: Builder, *positions: int) -> list[Tensor]:
    """Results that eager leaves without elements."""
    return [b.out(lambda _: s.number(0, f32), at) for at in positions]


@RULES.rule("_native_batch_norm_legit_functional")
def batch_norm_functional(
    b: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> list[Tensor]:
    running = running_mean, running_var
    if training:
        return _by_batch(b, x, weight, bias, eps, running, momentum, 3)
    out = _by_running(b, x, weight, bias, *running, eps)
    kept = [b.out(t.load, at) for at, t in ((3, running_mean), (4, running_var))]
    return [out, *_nothing(b, 1, 2), *kept]


@RULES.rule("_native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    b: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> list[Tensor]:
    return _by_batch(b, x, weight, bias, eps, None, momentum, 3)


@RULES.rule("_native_batch_norm_legit_no_training")
def batch_norm_no_training(
    b: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> list[Tensor]:
    out = _by_running(b, x, weight, bias, running_mean, running_var, eps)
    return [out, *_nothing(b, 1, 2)]


@RULES.rule("_batch_norm_with_update_functional")
def batch_norm_with_update(
    b: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> list[Tensor]:
    """The fourth result is memory that other devices' kernels keep."""
    running = running_mean, running_var
    made = _by_batch(b, x, weight, bias, eps, running, momentum, 4)
    return [*made[:3], *_nothing(b, 3), *made[3:]]


@RULES.rule("_batch_norm_no_update")
def batch_norm_no_update(
    b: Builder,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> list[Tensor]:
    if running_mean is None or running_var is None:
        return [*_by_batch(b, x, weight, bias, eps, None, momentum, 4), *_nothing(b, 3)]
    out = _by_running(b, x, weight, bias, running_mean, running_var, eps)
    return [out, *_nothing(b, 1, 2, 3)]


@RULES.rule("native_batch_norm_backward", "batch_norm_backward")
def batch_norm_backward(
    b: Builder,
    gradient: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_rstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: Tensor | None = None,
) -> list[Tensor | None]:
    dtype = computed_in(x.dtype)
    folding = _all_but_channels(x)
    if train:
        assert save_mean is not None
        assert save_rstd is not None
        mean, rstd = save_mean, save_rstd
    else:
        assert running_mean is not None
        assert running_var is not None
        mean = running_mean
        rstd = b.map(running_var.shape, _running_rstd(running_var, eps, dtype), "rstd")
    standard = Standard(x, mean, rstd, _channel, dtype)

    def slope(coords: Coords) -> Expr:
        return cast(gradient.load(coords), dtype)

    def weighted(coords: Coords) -> Expr:
        return affine(slope(coords), weight, None, _channel(coords), dtype)

    def columns(at: int, value: Element) -> Tensor:
        def part(coords: Coords, parts: Coords) -> Expr:
            return value(folding.point(coords, parts))

        return b.reduce(b.spec(at).shape, folding.sizes, "sum", part, out=(at,))[0]

    results: list[Tensor | None] = [None, None, None]
    if output_mask[0]:
        element: Callable[[Coords], Expr] = (
            standard_backward(b, standard, folding, weighted)
            if train
            else lambda c: s.mul(weighted(c), standard.deviation(c))
        )
        results[0] = b.out(element)
    if output_mask[1]:
        results[1] = columns(1, lambda c: s.mul(slope(c), standard.at(c)))
    if output_mask[2]:
        results[2] = columns(2, slope)
    return results
