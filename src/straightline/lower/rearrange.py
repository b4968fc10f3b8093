"""Copies of elements to other places, and tensors put together: maps with masked loads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from straightline.ir.index import ONE, ZERO, Given, Index, add, floordiv, index, mod, product, sub
from straightline.ir.nodes import Const, Expr, Position, cast, op
from straightline.lower import scalar as s
from straightline.lower.builder import Builder
from straightline.lower.table import Result, Table
from straightline.lower.tensor import Coords, Tensor, both, view
from straightline.lower.types import Number
from straightline.lower.views import VIEWS, Size, dimension, divided, place, reshaped, start_of

RULES = Table()


@RULES.rule("cat", "concatenate")
def cat(b: Builder, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    dims = len(b.shape)
    # Of one dimension and no elements: passed over, whatever the others' shapes are.
    kept = [t for t in tensors if t.dims == dims and not (dims > 1 and t.shape == (ZERO,))]
    at = dimension(dim, dims)

    def element(coords: Coords) -> Expr:
        parts, start = [], ZERO
        for tensor in kept:
            end = add(start, tensor.shape[at])
            parts.append((end, tensor, (*coords[:at], sub(coords[at], start), *coords[at + 1 :])))
            start = end
        return _first_below(b, coords[at], parts)

    return b.out(element)


def _first_below(
    b: Builder, position: Index, parts: Sequence[tuple[Index, Tensor, Coords]]
) -> Expr:
    """The element of the first part whose end is beyond `position`."""
    result: Expr = Const(b.dtype, s.rounded(0, b.dtype))
    begin = ZERO
    for order, (end, tensor, where) in enumerate(parts):
        inside = None if order == len(parts) - 1 else s.below(position, end)
        if order:
            inside = both(s.at_or_above(position, begin), inside)
        value = cast(tensor.load(where, inside), b.dtype)
        result = value if inside is None or not order else s.where(inside, value, result)
        begin = end
    return result


@RULES.rule("stack")
def stack(b: Builder, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    at = dimension(dim, len(b.shape))

    def element(coords: Coords) -> Expr:
        rest = (*coords[:at], *coords[at + 1 :])
        parts = [(index(order + 1), tensor, rest) for order, tensor in enumerate(tensors)]
        return _first_below(b, coords[at], parts)

    return b.out(element)


@RULES.rule("constant_pad_nd")
def constant_pad(b: Builder, x: Tensor, pad: Sequence[Size], value: Number = 0) -> Tensor:
    """`pad` is of the last dimension first: before it, behind it."""

    def element(coords: Coords) -> Expr:
        where, mask = list(coords), None
        for order in range(len(pad) // 2):
            at = x.dims - 1 - order
            before, behind = index(pad[2 * order]), index(pad[2 * order + 1])
            where[at] = sub(coords[at], before)
            if before is not ZERO:
                mask = both(mask, s.at_or_above(where[at], ZERO))
            if behind is not ZERO:
                mask = both(mask, s.below(where[at], x.shape[at]))
        loaded = x.load(tuple(where), mask)
        return loaded if mask is None else s.where(mask, loaded, s.number(value, b.dtype))

    return b.out(element)


@RULES.rule("flip")
def flip(b: Builder, x: Tensor, dims: Sequence[int]) -> Tensor:
    turned = {dimension(dim, x.dims) for dim in dims}

    def where(coords: Coords) -> Coords:
        return tuple(
            sub(sub(size, 1), c) if dim in turned else c
            for dim, (c, size) in enumerate(zip(coords, x.shape, strict=True))
        )

    return b.out(view(x, b.shape, where).load)


@RULES.rule("roll")
def roll(b: Builder, x: Tensor, shifts: Sequence[Size], dims: Sequence[int] = ()) -> Tensor:
    if ZERO in x.shape:
        return b.out(x.load)
    if not dims:
        flat = reshaped(x, (product(x.shape),))
        turned = _rolled(flat, {0: index(shifts[0])})
        return b.out(reshaped(turned, x.shape).load)
    by: dict[int, Index] = {}
    for shift, dim in zip(shifts, dims, strict=True):
        at = dimension(dim, x.dims)
        by[at] = add(by.get(at, ZERO), shift)
    return b.out(_rolled(x, by).load)


def _rolled(x: Tensor, by: dict[int, Index]) -> Tensor:
    def where(coords: Coords) -> Coords:
        return tuple(
            divided(sub(c, by[dim]), size)[1] if dim in by else c
            for dim, (c, size) in enumerate(zip(coords, x.shape, strict=True))
        )

    return view(x, x.shape, where)


@RULES.rule("repeat")
def repeat(b: Builder, x: Tensor, repeats: Sequence[Size]) -> Tensor:
    def element(coords: Coords) -> Expr:
        own = coords[len(coords) - x.dims :]
        return x.load(tuple(divided(c, n)[1] for c, n in zip(own, x.shape, strict=True)))

    if ZERO in b.shape:
        return b.out(lambda _: Const(b.dtype, s.rounded(0, b.dtype)))
    return b.out(element)


def triangle(keep: str) -> Callable[..., Tensor]:
    """What is not kept is zero, and is not read."""

    def rule(b: Builder, x: Tensor, diagonal: Size = 0) -> Tensor:
        def element(coords: Coords) -> Expr:
            side = sub(sub(coords[-1], coords[-2]), diagonal)
            return x.load(coords, op(keep, Position(side), Position(ZERO)))

        return b.out(element)

    return rule


RULES.add(triangle("le"), "tril")
RULES.add(triangle("ge"), "triu")


@RULES.rule("slice_scatter")
def slice_scatter(
    b: Builder,
    x: Tensor,
    source: Tensor,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: Size = 1,
) -> Tensor:
    at = dimension(dim, x.dims)
    begin = start_of(start, x.shape[at])

    def element(coords: Coords) -> Expr:
        way = sub(coords[at], begin)
        there = floordiv(way, index(step))
        inside = both(s.at_or_above(way, ZERO), s.below(there, source.shape[at]))
        if index(step) is not ONE:
            on_step = op("eq", Position(mod(way, index(step))), Position(ZERO))
            inside = both(inside, on_step)
        assert inside is not None
        return _instead(x, source, coords, (*coords[:at], there, *coords[at + 1 :]), inside)

    return b.out(element)


def _instead(x: Tensor, source: Tensor, coords: Coords, there: Coords, inside: Expr) -> Expr:
    """The source's element where `inside`, else that of `x`; each is read only where it counts."""
    new = cast(source.load(there, inside), x.dtype)
    return s.where(inside, new, x.load(coords, s.invert(inside)))


@RULES.rule("select_scatter")
def select_scatter(b: Builder, x: Tensor, source: Tensor, dim: int, at: Size) -> Tensor:
    where = dimension(dim, x.dims)
    position = place(at, x.shape[where])

    def element(coords: Coords) -> Expr:
        inside = op("eq", Position(coords[where]), Position(position))
        return _instead(x, source, coords, (*coords[:where], *coords[where + 1 :]), inside)

    return b.out(element)


@RULES.rule("diagonal_scatter")
def diagonal_scatter(
    b: Builder, x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    first, second = dimension(dim1, x.dims), dimension(dim2, x.dims)

    def element(coords: Coords) -> Expr:
        way = add(sub(coords[second], coords[first]), -offset)
        inside = op("eq", Position(way), Position(ZERO))
        rest = [c for dim, c in enumerate(coords) if dim not in (first, second)]
        along = sub(coords[first], max(-offset, 0))
        return _instead(x, source, coords, (*rest, along), inside)

    return b.out(element)


@RULES.rule("diag_embed")
def diag_embed(b: Builder, x: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    dims = len(b.shape)
    first, second = dimension(dim1, dims), dimension(dim2, dims)

    def element(coords: Coords) -> Expr:
        way = add(sub(coords[second], coords[first]), -offset)
        inside = op("eq", Position(way), Position(ZERO))
        rest = [c for dim, c in enumerate(coords) if dim not in (first, second)]
        return x.load((*rest, sub(coords[first], max(-offset, 0))), inside)

    return b.out(element)


@RULES.rule("rot90")
def rot90(b: Builder, x: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    first, second = (dimension(dim, x.dims) for dim in dims)
    turns = k % 4

    def where(coords: Coords) -> Coords:
        row, column = coords[first], coords[second]
        at = list(coords)
        if turns % 2:
            row, column = column, row
        at[first] = sub(sub(x.shape[first], 1), row) if turns in (2, 3) else row
        at[second] = sub(sub(x.shape[second], 1), column) if turns in (1, 2) else column
        return tuple(at)

    return b.out(view(x, b.shape, where).load)


@RULES.rule("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(b: Builder, x: Tensor, padding: Sequence[Size]) -> Tensor:
    def inside(at: Index, size: Index) -> Expr:
        position = s.absolute(Position(at))
        last = Position(sub(size, 1))
        return s.sub(last, s.absolute(s.sub(last, position)))

    return _padded(b, x, padding, inside)


@RULES.rule("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(b: Builder, x: Tensor, padding: Sequence[Size]) -> Tensor:
    def inside(at: Index, size: Index) -> Expr:
        return s.minimum(s.maximum(Position(at), 0), Position(sub(size, 1)))

    return _padded(b, x, padding, inside)


def _padded(
    b: Builder, x: Tensor, padding: Sequence[Size], inside: Callable[[Index, Index], Expr]
) -> Tensor:
    """Each element of the border is one of `x`: that at `inside` of its place and the size."""

    def element(coords: Coords) -> Expr:
        where = list(coords)
        for order in range(len(padding) // 2):
            dim = x.dims - 1 - order
            before, behind = index(padding[2 * order]), index(padding[2 * order + 1])
            if before is ZERO and behind is ZERO:
                continue
            size = x.shape[dim]
            most = size.constant - 1 if size.is_constant else None
            value = inside(sub(coords[dim], before), size)
            where[dim] = index(Given(value, 0, most))
        return x.load(tuple(where))

    return b.out(element)


def copied(name: str, view_name: str) -> None:
    """The rule of an operation that copies what a view shows."""
    viewing = VIEWS[f"aten.{view_name}"]

    def rule(b: Builder, x: Tensor, *args: object, **kwargs: object) -> Result:
        made = viewing(b, x, *args, **kwargs)
        several = [made] if isinstance(made, Tensor) else made
        results = [b.out(t.load, at) for at, t in enumerate(several) if t is not None]
        return results[0] if isinstance(made, Tensor) else results

    RULES.add(rule, name)


for _name, _view in (
    ("view_copy", "view.default"), ("permute_copy", "permute.default"),
    ("transpose_copy.int", "transpose.int"), ("t_copy", "t.default"),
    ("expand_copy", "expand.default"), ("slice_copy.Tensor", "slice.Tensor"),
    ("select_copy.int", "select.int"), ("squeeze_copy", "squeeze.default"),
    ("squeeze_copy.dim", "squeeze.dim"), ("squeeze_copy.dims", "squeeze.dims"),
    ("unsqueeze_copy", "unsqueeze.default"), ("diagonal_copy", "diagonal.default"),
    ("unfold_copy", "unfold.default"), ("alias_copy", "alias.default"),
    ("detach_copy", "detach.default"), ("as_strided_copy", "as_strided.default"),
    ("narrow_copy", "narrow.default"), ("split_copy.Tensor", "split.Tensor"),
    ("split_with_sizes_copy", "split_with_sizes.default"), ("unbind_copy.int", "unbind.int"),
):  # fmt: skip
    copied(_name, _view)
