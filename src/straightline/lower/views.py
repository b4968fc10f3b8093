"""Views: other coordinates for elements that are there already. No rule makes a compute."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from straightline.ir.dtypes import DType, b1, bf16, f16
from straightline.ir.index import (
    ONE,
    ZERO,
    Index,
    add,
    at_least,
    floordiv,
    index,
    mod,
    mul,
    product,
    sub,
)
from straightline.ir.nodes import Buffer, Expr, op
from straightline.lower.builder import Builder
from straightline.lower.table import Table
from straightline.lower.tensor import (
    Coords,
    Shape,
    Tensor,
    Unsupported,
    contiguous,
    of_buffer,
    view,
)
from straightline.lower.types import from_torch

VIEWS = Table()

Size = int | Index


def dimension(dim: int, dims: int) -> int:
    """A dimension counted from the front."""
    return dim % dims if dims else 0


@VIEWS.rule("alias", "detach", "lift_fresh", "view_as", "_reshape_alias_copy", "expand_as")
def same(b: Builder, x: Tensor, *_: object) -> Tensor:
    return Tensor(b.shape, x.dtype, x.load, x.buffer, x.memory)


# -- by logical order ------------------------------------------------------------------------------


@VIEWS.rule("view", "_unsafe_view", "reshape", "_reshape_alias")
def reshape(b: Builder, x: Tensor, *_: object) -> Tensor:
    return reshaped(x, b.shape)


def reshaped(x: Tensor, shape: Shape) -> Tensor:
    """The same elements in the same logical order."""
    if shape == x.shape:
        return x
    if ZERO in shape:
        return view(x, shape, lambda _: (ZERO,) * x.dims)
    groups = list(_groups(x.shape, shape))

    def where(coords: Coords) -> Coords:
        found: list[Index] = []
        for old, new in groups:
            sizes = [x.shape[dim] for dim in old]
            within = contiguous([shape[dim] for dim in new])
            flat = add(*(mul(coords[dim], step) for dim, step in zip(new, within, strict=True)))
            found += unflattened(flat, sizes)
        return tuple(found)

    return view(x, shape, where)


def unflattened(flat: Index, sizes: Sequence[Index]) -> list[Index]:
    """The coordinates of position `flat` in a contiguous tensor of these sizes."""
    steps = contiguous(sizes)
    first = next((dim for dim, size in enumerate(sizes) if size is not ONE), None)
    found = []
    for dim, (size, step) in enumerate(zip(sizes, steps, strict=True)):
        if size is ONE:
            found.append(ZERO)
        elif dim == first:
            found.append(divided(flat, step)[0])
        else:
            found.append(divided(divided(flat, step)[0], size)[1])
    return found


def divided(top: Index, bottom: Index) -> tuple[Index, Index]:
    """Quotient and rest."""
    if not at_least(bottom, 1):
        raise Unsupported("a division by a size that may be zero")
    return floordiv(top, bottom), mod(top, bottom)


def _groups(old: Shape, new: Shape) -> list[tuple[range, range]]:
    """Runs of dimensions that hold the same elements in the same order: the shorter they are, the
    fewer divisions there are.
    """
    groups: list[tuple[range, range]] = []
    ends: dict[Index, int] = {}
    for position in range(len(new)):
        ends.setdefault(product(new[: position + 1]), position + 1)
    start, begin = 0, 0
    for position in range(len(old)):
        end = ends.get(product(old[: position + 1]))
        if end is not None and end > begin:
            groups.append((range(start, position + 1), range(begin, end)))
            start, begin = position + 1, end
    if start < len(old) or begin < len(new):
        groups.append((range(start, len(old)), range(begin, len(new))))
    return groups


# -- by dimension ----------------------------------------------------------------------------------


@VIEWS.rule("permute")
def permute(b: Builder, x: Tensor, dims: Sequence[int]) -> Tensor:
    order = [dimension(dim, x.dims) for dim in dims]

    def where(coords: Coords) -> Coords:
        return tuple(coords[order.index(dim)] for dim in range(x.dims))

    return view(x, b.shape, where)


@VIEWS.rule("t", "numpy_T", "mT", "adjoint")
def t(b: Builder, x: Tensor) -> Tensor:
    return transpose(b, x, 0, 1) if x.dims == 2 else same(b, x)


@VIEWS.rule("transpose.int")
def transpose(b: Builder, x: Tensor, dim0: int, dim1: int) -> Tensor:
    order = list(range(x.dims))
    if order:
        first, second = dimension(dim0, x.dims), dimension(dim1, x.dims)
        order[first], order[second] = order[second], order[first]
    return permute(b, x, order)


@VIEWS.rule("expand")
def expand(b: Builder, x: Tensor, size: Sequence[Size], *, implicit: bool = False) -> Tensor:
    return expanded(x, b.shape)


def expanded(x: Tensor, shape: Shape) -> Tensor:
    """Broadcast to `shape`."""
    fixed = [
        n is ONE and m is not ONE
        for n, m in zip(x.shape, shape[len(shape) - x.dims :], strict=True)
    ]

    def where(coords: Coords) -> Coords:
        own = coords[len(coords) - x.dims :]
        return tuple(ZERO if f else c for c, f in zip(own, fixed, strict=True))

    return view(x, shape, where)


@VIEWS.rule("squeeze", "squeeze.dim", "squeeze.dims")
def squeeze(b: Builder, x: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    return reshaped(x, b.shape)


@VIEWS.rule("unsqueeze")
def unsqueeze(b: Builder, x: Tensor, dim: int) -> Tensor:
    at = dimension(dim, x.dims + 1)
    return view(x, b.shape, lambda coords: coords[:at] + coords[at + 1 :])


@VIEWS.rule("diagonal")
def diagonal(b: Builder, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    first, second = dimension(dim1, x.dims), dimension(dim2, x.dims)

    def where(coords: Coords) -> Coords:
        rest = list(coords[:-1])
        at = {first: add(coords[-1], max(-offset, 0)), second: add(coords[-1], max(offset, 0))}
        return tuple(at[dim] if dim in at else rest.pop(0) for dim in range(x.dims))

    return view(x, b.shape, where)


# -- parts -----------------------------------------------------------------------------------------


def start_of(position: Size | None, size: Index) -> Index:
    """Where a slice begins: negative numbers count from the end. Beyond the end there is nothing
    to be read, wherever that is said to begin.
    """
    if position is None:
        return ZERO
    begin = index(position)
    if at_least(begin, 0):
        return begin
    if not begin.is_constant:
        raise Unsupported("a slice that begins at a size that may be negative")
    begin = add(size, begin)
    if at_least(begin, 0):
        return begin
    if begin.is_constant:
        return ZERO
    raise Unsupported("a slice that may begin before its tensor")


def place(position: Size, size: Index) -> Index:
    """A coordinate, where negative numbers count from the end."""
    at = index(position)
    if at_least(at, 0):
        return at
    if at.is_constant:
        return add(size, at)
    raise Unsupported("a position that may be negative")


def _stepped(x: Tensor, shape: Shape, dim: int, start: Index, step: Size = 1) -> Tensor:
    def where(coords: Coords) -> Coords:
        at = add(start, mul(coords[dim], step))
        return (*coords[:dim], at, *coords[dim + 1 :])

    return view(x, shape, where)


@VIEWS.rule("slice.Tensor")
def slice_(
    b: Builder,
    x: Tensor,
    dim: int = 0,
    start: Size | None = None,
    end: Size | None = None,
    step: Size = 1,
) -> Tensor:
    at = dimension(dim, x.dims)
    return _stepped(x, b.shape, at, start_of(start, x.shape[at]), step)


@VIEWS.rule("narrow")
def narrow(b: Builder, x: Tensor, dim: int, start: Size, length: Size) -> Tensor:
    return slice_(b, x, dim, start)


@VIEWS.rule("select.int")
def select(b: Builder, x: Tensor, dim: int, at: Size) -> Tensor:
    where = dimension(dim, x.dims)
    position = place(at, x.shape[where])
    return view(x, b.shape, lambda c: (*c[:where], position, *c[where:]))


@VIEWS.rule(
    "split.Tensor", "split.sizes", "split_with_sizes", "chunk", "unsafe_chunk",
    "unsafe_split.Tensor", "unsafe_split_with_sizes",
)  # fmt: skip
def split(b: Builder, x: Tensor, sizes: object, dim: int = 0) -> list[Tensor]:
    at = dimension(dim, x.dims)
    parts, start = [], ZERO
    for position in range(len(b.specs)):
        shape = b.spec(position).shape
        parts.append(_stepped(x, shape, at, start))
        start = add(start, shape[at])
    return parts


@VIEWS.rule("unbind.int")
def unbind(b: Builder, x: Tensor, dim: int = 0) -> list[Tensor]:
    where = dimension(dim, x.dims)

    def part(at: int) -> Tensor:
        return view(x, b.spec(at).shape, lambda c: (*c[:where], index(at), *c[where:]))

    return [part(at) for at in range(len(b.specs))]


@VIEWS.rule("unfold")
def unfold(b: Builder, x: Tensor, dim: int, size: int, step: int) -> Tensor:
    if not x.dims:
        return view(x, b.shape, lambda _: ())
    at = dimension(dim, x.dims)

    def where(coords: Coords) -> Coords:
        inside = add(mul(coords[at], step), coords[-1])
        return (*coords[:at], inside, *coords[at + 1 : -1])

    return view(x, b.shape, where)


# -- by memory -------------------------------------------------------------------------------------


@VIEWS.rule("as_strided")
def as_strided(
    b: Builder,
    x: Tensor,
    size: Sequence[Size],
    stride: Sequence[Size],
    storage_offset: Size | None = None,
) -> Tensor:
    """Elements by where they lie: only of memory all of which one tensor is, in known order."""
    memory = x.memory
    if memory is None or memory.offset is None or (storage_offset is None and x.buffer is None):
        raise Unsupported("as_strided of memory whose beginning is not known")
    begin = ZERO if storage_offset is None else sub(index(storage_offset), memory.offset)
    order = _dense_order(memory.buffer)
    if order is None:
        raise Unsupported("as_strided of memory that is not dense")
    sizes = memory.buffer.shape
    last = add(begin, *(mul(sub(n, 1), index(s)) for n, s in zip(b.shape, stride, strict=True)))
    if not at_least(begin, 0) or not at_least(sub(sub(product(sizes), 1), last), 0):
        raise Unsupported("as_strided that reaches beyond its tensor")

    def where(coords: Coords) -> Coords:
        flat = add(begin, *(mul(c, index(s)) for c, s in zip(coords, stride, strict=True)))
        found = unflattened(flat, [sizes[dim] for dim in order])
        return tuple(found[order.index(dim)] for dim in range(len(sizes)))

    return view(of_buffer(memory.buffer, memory.offset), b.shape, where)


def _dense_order(buffer: Buffer) -> list[int] | None:
    """The dimensions from the one with the longest strides to that with the shortest, if the
    elements fill their memory.
    """
    left = list(range(len(buffer.shape)))
    order: list[int] = []
    step = ONE
    while left:
        for dim in reversed(left):
            if buffer.shape[dim] is ONE or buffer.strides[dim] is step:
                break
        else:
            return None
        left.remove(dim)
        order.insert(0, dim)
        step = mul(step, buffer.shape[dim])
    return order


@VIEWS.rule("view.dtype")
def view_dtype(b: Builder, x: Tensor, dtype: torch.dtype) -> Tensor:
    """The same bits as another type of that width."""
    new = from_torch(dtype)
    if new is x.dtype:
        return same(b, x)
    if new.bits != x.dtype.bits or _without_bits(new) or _without_bits(x.dtype):
        raise Unsupported("the bits of one type as another of another width")

    def load(coords: Coords, mask: Expr | None = None) -> Expr:
        return op("bitcast", x.load(coords, mask), dtype=new)

    return Tensor(b.shape, new, load)


def _without_bits(dtype: DType) -> bool:
    return dtype in (b1, bf16, f16)
