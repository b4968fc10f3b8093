"""Elements chosen by numbers in other tensors."""

from __future__ import annotations

from collections.abc import Sequence

from straightline.ir.dtypes import computed_in, i64
from straightline.ir.index import ONE, ZERO, Given, Index, add, floordiv, index, mod, product, sub
from straightline.ir.nodes import Const, Expr, Position, cast, op
from straightline.lower import scalar as s
from straightline.lower.builder import Builder, Failure
from straightline.lower.scalar import where
from straightline.lower.table import Table
from straightline.lower.tensor import Coords, Tensor, Unsupported, both, broadcast
from straightline.lower.types import common
from straightline.lower.views import Size, dimension, place, reshaped, start_of

RULES = Table()

# What eager says of the one that is out of range depends on it.
OUT_OF_RANGE = Failure("IndexError", "index out of range in self")
OUT_OF_BOUNDS = Failure("IndexError", "index is out of bounds")
GATHERED_OUT_OF_BOUNDS = Failure("RuntimeError", "index is out of bounds")


def chosen(b: Builder, at: Expr, size: Index, failure: Failure, wrap: bool = False) -> Index:
    """A number from data as a coordinate below `size`, which it is required to be. Negative ones
    count from the end, if they `wrap`.
    """
    at = cast(at, i64)
    bound = Position(size) if not size.is_constant else Const(i64, size.constant)
    low = s.neg(bound) if wrap else Const(i64, 0)
    b.require(s.both(s.ge(at, low), s.lt(at, bound)), failure)
    if wrap:
        at = where(s.lt(at, 0), s.add(at, bound), at)
    return index(Given(at, 0, size.constant - 1 if size.is_constant else None))


@RULES.rule("embedding")
def embedding(
    b: Builder,
    weight: Tensor,
    indices: Tensor,
    padding_idx: Size = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    def element(coords: Coords) -> Expr:
        row = chosen(b, indices.load(coords[:-1]), weight.shape[0], OUT_OF_RANGE)
        return weight.load((row, coords[-1]))

    return b.out(element)


@RULES.rule("index_select")
def index_select(b: Builder, x: Tensor, dim: int, indices: Tensor) -> Tensor:
    if not x.dims:
        return b.out(lambda _: x.load(()))
    at = dimension(dim, x.dims)

    def element(coords: Coords) -> Expr:
        where_at = indices.load((coords[at],) if indices.dims else ())
        position = chosen(b, where_at, x.shape[at], OUT_OF_RANGE)
        return x.load((*coords[:at], position, *coords[at + 1 :]))

    return b.out(element)


@RULES.rule("gather")
def gather(
    b: Builder, x: Tensor, dim: int, indices: Tensor, *, sparse_grad: bool = False
) -> Tensor:
    def element(coords: Coords) -> Expr:
        if not x.dims:
            chosen(b, indices.load(coords), ONE, GATHERED_OUT_OF_BOUNDS)
            return x.load(())
        at = dimension(dim, x.dims)
        position = chosen(
            b, indices.load(coords if indices.dims else ()), x.shape[at], GATHERED_OUT_OF_BOUNDS
        )
        if not indices.dims:
            return x.load((position,))
        return x.load((*coords[:at], position, *coords[at + 1 :]))

    return b.out(element)


@RULES.rule("take")
def take(b: Builder, x: Tensor, indices: Tensor) -> Tensor:
    count = product(x.shape)
    flat = reshaped(x, (count,))

    def element(coords: Coords) -> Expr:
        return flat.load((chosen(b, indices.load(coords), count, OUT_OF_BOUNDS, wrap=True),))

    return b.out(element)


@RULES.rule("index.Tensor", "_unsafe_index.Tensor")
def index_tensor(b: Builder, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """Chosen dimensions become those of the indices, broadcast together: in their place if they
    stand side by side, else in front.
    """
    given = {dim: t for dim, t in enumerate(indices) if t is not None}
    if any(not t.dtype.is_integer for t in given.values()):
        raise Unsupported("its result's size depends on data")
    wide = max(t.dims for t in given.values())
    dims = list(given)
    together = dims == list(range(dims[0], dims[-1] + 1))
    front = dims[0] if together else 0

    def element(coords: Coords) -> Expr:
        inner = coords[front : front + wide]
        rest = list(coords[:front] + coords[front + wide :])
        point = []
        for dim in range(x.dims):
            if dim in given:
                at = given[dim].load(broadcast(inner, given[dim].shape))
                point.append(chosen(b, at, x.shape[dim], OUT_OF_BOUNDS, wrap=True))
            else:
                point.append(rest.pop(0))
        return x.load(tuple(point))

    return b.out(element)


@RULES.rule("bucketize.Tensor")
def bucketize(
    b: Builder, x: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """How many of the boundaries, which ascend, are below each element, or at it, if `right`: the
    number is found bit by bit.
    """
    (size,) = boundaries.shape
    if not size.is_constant:
        raise Unsupported("a number of boundaries that is not known")
    count = size.constant
    dtype = computed_in(common(x, boundaries))

    def element(coords: Coords) -> Expr:
        value = cast(x.load(coords), dtype)
        found: Expr = Const(i64, 0)
        for bit in reversed(range(count.bit_length())):
            wider = s.add(found, 1 << bit)
            known = s.le(wider, count)
            last = index(Given(where(known, s.sub(wider, 1), 0), 0, count - 1))
            bound = cast(boundaries.load((last,), known), dtype)
            # NaN stands above all boundaries.
            outside = s.gt(bound, value) if right else s.ge(bound, value)
            found = where(s.both(known, s.invert(outside)), wider, found)
        return found

    return b.out(element)


# -- backward of parts -----------------------------------------------------------------------------


@RULES.rule("slice_backward")
def slice_backward(
    b: Builder,
    gradient: Tensor,
    input_sizes: Sequence[Size],
    dim: int,
    start: Size,
    end: Size,
    step: Size,
) -> Tensor:
    at = dimension(dim, gradient.dims)
    begin = start_of(start, b.shape[at])

    def element(coords: Coords) -> Expr:
        way = sub(coords[at], begin)
        there = floordiv(way, index(step))
        inside = both(
            None if begin is ZERO else s.at_or_above(way, ZERO),
            s.below(there, gradient.shape[at]),
        )
        if index(step) is not ONE:
            inside = both(inside, op("eq", Position(mod(way, index(step))), Position(ZERO)))
        return gradient.load((*coords[:at], there, *coords[at + 1 :]), inside)

    return b.out(element)


@RULES.rule("select_backward")
def select_backward(
    b: Builder, gradient: Tensor, input_sizes: Sequence[Size], dim: int, at: Size
) -> Tensor:
    where_at = dimension(dim, len(b.shape))
    position = place(at, b.shape[where_at])

    def element(coords: Coords) -> Expr:
        inside = op("eq", Position(coords[where_at]), Position(position))
        return gradient.load((*coords[:where_at], *coords[where_at + 1 :]), inside)

    return b.out(element)


@RULES.rule("diagonal_backward")
def diagonal_backward(
    b: Builder,
    gradient: Tensor,
    input_sizes: Sequence[Size],
    offset: int = 0,
    dim1: int = 0,
    dim2: int = 1,
) -> Tensor:
    dims = len(b.shape)
    first, second = dimension(dim1, dims), dimension(dim2, dims)

    def element(coords: Coords) -> Expr:
        way = add(sub(coords[second], coords[first]), -offset)
        inside = op("eq", Position(way), Position(ZERO))
        rest = [c for dim, c in enumerate(coords) if dim not in (first, second)]
        along = sub(coords[first], max(-offset, 0))
        return gradient.load((*rest, along), inside)

    return b.out(element)


@RULES.rule("native_dropout_backward")
def dropout_backward(b: Builder, gradient: Tensor, mask: Tensor, scale: float) -> Tensor:
    def element(coords: Coords) -> Expr:
        dtype = computed_in(b.dtype)
        kept = cast(mask.load(coords), dtype)
        own = s.narrow(s.mul(cast(gradient.load(coords), dtype), kept), b.dtype)
        return s.mul(own, scale)

    return b.out(element)
