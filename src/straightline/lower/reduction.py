"""Many elements folded into one, and running folds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from straightline.ir.dtypes import DType, b1, bf16, computed_in, f16, f32, f64, i64
from straightline.ir.index import ONE, ZERO, Index, add, at_least, mul, product, sub
from straightline.ir.nodes import Const, Expr, Position, cast
from straightline.lower import scalar as s
from straightline.lower.builder import Builder, number_of
from straightline.lower.scalar import call
from straightline.lower.table import Rule, Table
from straightline.lower.tensor import Coords, Shape, Tensor, contiguous
from straightline.lower.types import Number
from straightline.lower.views import dimension

RULES = Table()

Dims = int | Sequence[int] | None


def reduced(x: Tensor, dims: Dims) -> tuple[int, ...]:
    """The dimensions that are folded, in order: all, if none is named."""
    if dims is None or (not isinstance(dims, int) and not dims):
        return tuple(range(x.dims))
    named = [dims] if isinstance(dims, int) else dims
    return tuple(sorted({dimension(dim, x.dims) for dim in named})) if x.dims else ()


class Folding:
    """How the points of a tensor divide into those of the result and the parts of each fold."""

    def __init__(self, x: Tensor, dims: Dims) -> None:
        self.over = reduced(x, dims)
        self.sizes: Shape = tuple(x.shape[dim] for dim in self.over)
        self.kept: Shape = tuple(
            ONE if dim in self.over else size for dim, size in enumerate(x.shape)
        )
        self.count: Index = product(self.sizes)
        self._dims = x.dims

    def point(self, coords: Coords, parts: Coords) -> Coords:
        """Where in the tensor: `coords` in a result that keeps its dimensions, or drops them."""
        if len(coords) == self._dims:
            rest = [c for dim, c in enumerate(coords) if dim not in self.over]
        else:
            rest = list(coords)
        inside = dict(zip(self.over, parts, strict=True))
        return tuple(inside[dim] if dim in inside else rest.pop(0) for dim in range(self._dims))

    def keep(self, coords: Coords) -> Coords:
        """Where in a tensor of shape `kept`, for a point of the tensor or of the result."""
        if len(coords) == self._dims:
            return tuple(ZERO if dim in self.over else c for dim, c in enumerate(coords))
        rest = list(coords)
        return tuple(ZERO if dim in self.over else rest.pop(0) for dim in range(self._dims))


def fold(
    b: Builder,
    x: Tensor,
    dims: Dims,
    combine: str,
    value: Callable[[Expr], Expr],
    dtype: DType,
    at: int = 0,
) -> Tensor:
    """Result `at`: the fold of `value` of each element taken to `dtype`."""
    folding = Folding(x, dims)

    def part(coords: Coords, parts: Coords) -> Expr:
        return value(cast(x.load(folding.point(coords, parts)), dtype))

    return b.reduce(b.spec(at).shape, folding.sizes, combine, part, out=(at,))[0]


def same(x: Expr) -> Expr:
    return x


# -- sums and products -----------------------------------------------------------------------------


def total(combine: str) -> Rule:
    """The rule of a sum or product: in the result's type, narrow ones in `f32`."""

    def rule(b: Builder, x: Tensor, dim: Dims = None, keepdim: bool = False, **_: object) -> Tensor:
        return fold(b, x, dim, combine, same, computed_in(b.dtype))

    return rule


RULES.add(total("sum"), "sum", "sum.dim_IntList")
RULES.add(total("product"), "prod", "prod.dim_int")


@RULES.rule("nansum")
def nansum(b: Builder, x: Tensor, dim: Dims = None, keepdim: bool = False, **_: object) -> Tensor:
    def value(v: Expr) -> Expr:
        return s.where(s.is_nan(v), 0, v)

    return fold(b, x, dim, "sum", value, computed_in(b.dtype))


@RULES.rule("mean", "mean.dim")
def mean(b: Builder, x: Tensor, dim: Dims = None, keepdim: bool = False, **_: object) -> Tensor:
    folding = Folding(x, dim)
    summed, count = sum_of(b, x, folding, computed_in(b.dtype)), folding.count
    return b.out(
        lambda coords: s.div(summed.load(folding.keep(coords)), s.number(count, summed.dtype))
    )


def sum_of(b: Builder, x: Tensor, folding: Folding, dtype: DType, name: str = "sum") -> Tensor:
    """The sum of the elements, in a tensor that keeps the dimensions."""

    def part(coords: Coords, parts: Coords) -> Expr:
        return cast(x.load(folding.point(coords, parts)), dtype)

    return b.reduce(folding.kept, folding.sizes, "sum", part, name=name)[0]


# -- truth -----------------------------------------------------------------------------------------


def quantifier(combine: str) -> Rule:
    def rule(b: Builder, x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
        return fold(b, x, dim, combine, same, b1)

    return rule


RULES.add(quantifier("any"), "any", "any.dim", "any.dims")
RULES.add(quantifier("all"), "all", "all.dim", "all.dims")


@RULES.rule("count_nonzero.dim_IntList", "count_nonzero")
def count_nonzero(b: Builder, x: Tensor, dim: Dims = None) -> Tensor:
    return fold(b, x, dim, "sum", lambda v: cast(v, i64), b1)


# -- extremes --------------------------------------------------------------------------------------


def extreme(combine: str) -> Rule:
    def rule(b: Builder, x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
        return fold(b, x, dim, combine, same, computed_in(b.dtype))

    return rule


RULES.add(extreme("max"), "amax", "max")
RULES.add(extreme("min"), "amin", "min")


@RULES.rule("aminmax")
def aminmax(
    b: Builder, x: Tensor, *, dim: int | None = None, keepdim: bool = False
) -> list[Tensor]:
    dtype = computed_in(b.dtype)
    return [fold(b, x, dim, combine, same, dtype, at) for at, combine in ((0, "min"), (1, "max"))]


def with_position(
    b: Builder, x: Tensor, dims: Dims, combine: str, out: Sequence[int | None]
) -> tuple[Tensor, ...]:
    """The extreme element, and its position among those folded, in logical order."""
    folding = Folding(x, dims)
    steps = contiguous(folding.sizes)
    dtype = computed_in(x.dtype)

    def part(coords: Coords, parts: Coords) -> tuple[Expr, Expr]:
        position = add(ZERO, *(mul(c, step) for c, step in zip(parts, steps, strict=True)))
        return cast(x.load(folding.point(coords, parts)), dtype), Position(position)

    at = next(position for position in out if position is not None)
    return b.reduce(b.spec(at).shape, folding.sizes, combine, part, out=out)


def with_indices(combine: str) -> Rule:
    def rule(b: Builder, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, ...]:
        with_position(b, x, dim, combine, (0, 1))
        return b.results[0], b.results[1]

    return rule


RULES.add(with_indices("argmax"), "max.dim")
RULES.add(with_indices("argmin"), "min.dim")


def position_of(combine: str) -> Rule:
    def rule(b: Builder, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        return with_position(b, x, dim, combine, (None, 0))[0]

    return rule


RULES.add(position_of("argmax"), "argmax")
RULES.add(position_of("argmin"), "argmin")


# -- spread ----------------------------------------------------------------------------------------


class Moments:
    """The mean, and the sum of squared differences from it: two passes over the elements."""

    def __init__(self, b: Builder, x: Tensor, folding: Folding, dtype: DType) -> None:
        self.folding, self.dtype = folding, dtype
        self.count = s.number(folding.count, dtype)
        summed = sum_of(b, x, folding, dtype)
        self.mean = b.map(
            folding.kept, lambda coords: s.div(summed.load(coords), self.count), "mean"
        )

        def part(coords: Coords, parts: Coords) -> Expr:
            point = folding.point(coords, parts)
            difference = s.sub(cast(x.load(point), dtype), self.mean.load(coords))
            return s.mul(difference, difference)

        (self.squares,) = b.reduce(folding.kept, folding.sizes, "sum", part, name="squares")

    def variance(self, coords: Coords, correction: float = 0) -> Expr:
        """Of the elements folded into this point of the result, or with this one."""
        squares = self.squares.load(self.folding.keep(coords))
        if correction == 0:
            return s.div(squares, self.count)
        return s.div(squares, s.maximum(s.sub(self.count, float(correction)), 0.0))

    def mean_at(self, coords: Coords) -> Expr:
        return self.mean.load(self.folding.keep(coords))


def spread(
    b: Builder, x: Tensor, dim: Dims, lost: float, function: Callable[[Expr], Expr]
) -> tuple[Tensor, ...]:
    """`function` of the variance, with `lost` degrees of freedom; the mean too, where it is
    wanted.
    """
    moments = Moments(b, x, Folding(x, dim), computed_in(b.dtype))
    first = b.out(lambda coords: function(moments.variance(coords, lost)), 0)
    return (first,) if len(b.specs) == 1 else (first, b.out(moments.mean_at, 1))


def by_correction(function: Callable[[Expr], Expr]) -> Rule:
    def rule(
        b: Builder,
        x: Tensor,
        dim: Dims = None,
        *,
        correction: Number | None = None,
        keepdim: bool = False,
    ) -> tuple[Tensor, ...]:
        lost = 1.0 if correction is None else number_of(correction)
        return spread(b, x, dim, lost, function)

    return rule


def by_flag(function: Callable[[Expr], Expr]) -> Rule:
    def rule(b: Builder, x: Tensor, unbiased: bool = True) -> tuple[Tensor, ...]:
        return spread(b, x, None, float(unbiased), function)

    return rule


def by_flag_and_dim(function: Callable[[Expr], Expr]) -> Rule:
    def rule(
        b: Builder, x: Tensor, dim: Dims, unbiased: bool = True, keepdim: bool = False
    ) -> tuple[Tensor, ...]:
        return spread(b, x, dim, float(unbiased), function)

    return rule


for _name, _function in (("var", same), ("std", s.sqrt)):
    for _both in (_name, f"{_name}_mean"):
        RULES.add(by_correction(_function), f"{_both}.correction")
        RULES.add(by_flag(_function), _both)
        RULES.add(by_flag_and_dim(_function), f"{_both}.dim")


# -- norms -----------------------------------------------------------------------------------------


@RULES.rule("linalg_vector_norm")
def vector_norm(
    b: Builder, x: Tensor, ord: Number = 2, dim: Dims = None, keepdim: bool = False, **_: object
) -> Tensor:
    dtype, power = computed_in(b.dtype), number_of(ord)
    folding = Folding(x, dim)

    def norm(combine: str, value: Callable[[Expr], Expr], after: Callable[[Expr], Expr]) -> Tensor:
        def part(coords: Coords, parts: Coords) -> Expr:
            return value(cast(x.load(folding.point(coords, parts)), dtype))

        (folded,) = b.reduce(folding.kept, folding.sizes, combine, part, name=combine)
        return b.out(lambda coords: after(folded.load(folding.keep(coords))))

    if power == math.inf:
        return norm("max", s.absolute, s.absolute)
    if power == -math.inf:
        return norm("min", s.absolute, same)
    if power == 0:
        return norm("sum", lambda v: cast(s.ne(v, 0.0), dtype), same)
    if power == 1:
        return norm("sum", s.absolute, same)
    if power == 2:
        return norm("sum", lambda v: s.mul(v, v), s.sqrt)
    return norm(
        "sum",
        lambda v: call("pow", s.absolute(v), power),
        lambda v: call("pow", v, 1.0 / power),
    )


@RULES.rule("norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype")
def norm(
    b: Builder, x: Tensor, p: Number | None, dim: Dims, keepdim: bool = False, **_: object
) -> Tensor:
    return vector_norm(b, x, 2 if p is None else p, dim)


@RULES.rule("norm.Scalar")
def norm_of_all(b: Builder, x: Tensor, p: Number = 2) -> Tensor:
    return vector_norm(b, x, p)


@RULES.rule("trace")
def trace(b: Builder, x: Tensor) -> Tensor:
    dtype = computed_in(b.dtype)
    rows, columns = x.shape

    def part(_: Coords, parts: Coords) -> Expr:
        # The diagonal is as long as the shorter side.
        inside = None if at_least(sub(columns, rows), 0) else s.below(parts[0], columns)
        return cast(x.load((parts[0], parts[0]), inside), dtype)

    return b.reduce((), (rows,), "sum", part, out=(0,))[0]


@RULES.rule("logsumexp")
def logsumexp(b: Builder, x: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    dtype, folding = computed_in(b.dtype), Folding(x, dim)
    largest = largest_of(b, x, folding, dtype)
    # Infinite ones are not subtracted: that would be NaN.
    finite = b.map(
        folding.kept,
        lambda c: s.where(
            s.eq(s.absolute(largest.load(c)), math.inf), Const(dtype, 0.0), largest.load(c)
        ),
        "shift",
    )
    summed = sum_of_exponentials(b, x, folding, dtype, finite)

    def element(coords: Coords) -> Expr:
        at = folding.keep(coords)
        return s.add(s.log(summed.load(at)), finite.load(at))

    return b.out(element)


def largest_of(b: Builder, x: Tensor, folding: Folding, dtype: DType) -> Tensor:
    def part(coords: Coords, parts: Coords) -> Expr:
        return cast(x.load(folding.point(coords, parts)), dtype)

    return b.reduce(folding.kept, folding.sizes, "max", part, name="max")[0]


def sum_of_exponentials(
    b: Builder, x: Tensor, folding: Folding, dtype: DType, shift: Tensor
) -> Tensor:
    """Of the elements, each less the `shift` of its fold."""

    def part(coords: Coords, parts: Coords) -> Expr:
        value = cast(x.load(folding.point(coords, parts)), dtype)
        return s.exp(s.sub(value, shift.load(coords)))

    return b.reduce(folding.kept, folding.sizes, "sum", part, name="sum")[0]


# -- scans -----------------------------------------------------------------------------------------

# Eager's accumulators: twice the width of what is stored.
ACCUMULATED_IN = {f32: f64, bf16: f32, f16: f32}


def running(combine: str) -> Rule:
    def rule(b: Builder, x: Tensor, dim: int, **_: object) -> Tensor:
        if not x.dims:
            return b.out(x.load)
        dtype = ACCUMULATED_IN.get(b.dtype, b.dtype)
        return b.scan(
            b.shape,
            dimension(dim, x.dims),
            combine,
            # Rounded to the result's type first, as eager casts its operand.
            lambda coords: cast(cast(x.load(coords), b.dtype), dtype),
            out=(0,),
        )[0]

    return rule


RULES.add(running("sum"), "cumsum")
RULES.add(running("product"), "cumprod")


@RULES.rule("logcumsumexp")
def logcumsumexp(b: Builder, x: Tensor, dim: int) -> Tensor:
    if not x.dims:
        return b.out(x.load)
    dtype = ACCUMULATED_IN.get(b.dtype, b.dtype)
    largest, summed = b.scan(
        b.shape, dimension(dim, x.dims), "logsumexp", lambda coords: cast(x.load(coords), dtype)
    )

    def element(coords: Coords) -> Expr:
        return s.add(s.log(summed.load(coords)), largest.load(coords))

    return b.out(element)
