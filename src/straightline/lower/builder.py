"""What a rule makes computes with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from straightline.ir.dtypes import DType, computed_in
from straightline.ir.index import ONE, ZERO, Axis, Index, index
from straightline.ir.nodes import Buffer, Compute, Expr, Require, cast, fold_types
from straightline.lower import scalar, types
from straightline.lower.tensor import (
    Coords,
    Shape,
    Tensor,
    Unsupported,
    broadcast,
    contiguous,
    of_buffer,
)
from straightline.lower.types import Number, Operand, Real

Element: TypeAlias = Callable[[Coords], Expr]
Part: TypeAlias = Callable[[Coords, Coords], Expr | tuple[Expr, ...]]


@dataclass(frozen=True)
class Spec:
    """What an operation's result is, as torch described it."""

    shape: Shape
    dtype: DType
    strides: tuple[Index, ...]


@dataclass(frozen=True)
class Failure:
    """The error that eager raises: its type, by name, and what it says. Where the text depends on
    data, running the operation as it is raises it.
    """

    error: str
    message: str


@dataclass
class Names:
    """Names of buffers, each given once. Those of the graph's nodes are taken from the start."""

    taken: set[str] = field(default_factory=set)

    def fresh(self, wish: str) -> str:
        name, count = wish, 1
        while name in self.taken:
            name, count = f"{wish}_{count}", count + 1
        self.taken.add(name)
        return name


class Builder:
    """Collects the computes of one operation, named `name`, whose results are `specs`.

    `codes` takes up the failures that its computes check for: the status of each is its position
    there, counted from one.
    """

    def __init__(
        self,
        name: str,
        specs: Sequence[Spec | None],
        names: Names,
        codes: list[tuple[str, Failure]],
    ) -> None:
        self.name = name
        self.specs = tuple(specs)
        self.computes: list[Compute] = []
        self.results: dict[int, Tensor] = {}
        self._names = names
        self._codes = codes
        self._requires: list[Require] = []

    # -- what is asked for ---------------------------------------------------------------------

    def spec(self, at: int = 0) -> Spec:
        """Of result `at`, which has to be a dense tensor."""
        found = self.specs[at]
        assert found is not None
        return found

    @property
    def shape(self) -> Shape:
        return self.spec().shape

    @property
    def dtype(self) -> DType:
        return self.spec().dtype

    # -- computes ------------------------------------------------------------------------------

    def out(self, value: Element, at: int = 0) -> Tensor:
        """Result `at`, element by element, cast to its type."""
        spec = self.spec(at)
        buffer = self._result(at)
        self._compute((buffer,), spec.shape, lambda coords: (cast(value(coords), spec.dtype),))
        return self._made(at, buffer)

    def map(
        self, shape: Sequence[Index], value: Element, name: str = "", dtype: DType | None = None
    ) -> Tensor:
        """A tensor between the operands and the results: its type is that of `value`, unless told.

        It is not rounded to the types of either.
        """
        axes, coords = _axes("i", shape)
        made = value(coords)
        made = made if dtype is None else cast(made, dtype)
        buffer = self._between(name, shape, made.dtype)
        self.computes.append(Compute((buffer,), axes, (made,), requires=self._required()))
        return of_buffer(buffer)

    def reduce(
        self,
        kept: Sequence[Index],
        over: Sequence[Index],
        combine: str,
        value: Part,
        *,
        out: Sequence[int | None] | None = None,
        name: str = "",
    ) -> tuple[Tensor, ...]:
        """For each point of `kept`, the fold of `value(point, part)` for all parts in `over`.

        A tensor for each component of the fold; those for which `out` says a result are that
        result, and those for which it says None are not wanted.
        """
        axes, coords = _axes("i", kept)
        parts, inner = _axes("r", over or (ONE,))
        values = value(coords, inner[: len(over)])
        values = values if isinstance(values, tuple) else (values,)
        return self._folded(axes, values, combine, out, name, over=parts)

    def scan(
        self,
        shape: Sequence[Index],
        dim: int,
        combine: str,
        value: Callable[[Coords], Expr | tuple[Expr, ...]],
        *,
        out: Sequence[int | None] | None = None,
        name: str = "",
    ) -> tuple[Tensor, ...]:
        """The fold of `value` along `dim` up to each point, that point included."""
        axes, coords = _axes("i", shape)
        values = value(coords)
        values = values if isinstance(values, tuple) else (values,)
        return self._folded(axes, values, combine, out, name, along=axes[dim])

    def require(self, condition: Expr, failure: Failure) -> None:
        """Each point of the compute that is being described has to meet `condition`."""
        if (self.name, failure) not in self._codes:
            self._codes.append((self.name, failure))
        code = self._codes.index((self.name, failure)) + 1
        self._requires.append(Require(condition, code))

    # -- operands ------------------------------------------------------------------------------

    def read(
        self, operand: Operand, coords: Coords, dtype: DType | None = None, exact: bool = False
    ) -> Expr:
        """`operand`, broadcast to `coords`, as eager takes it into an operation on `dtype` (its
        own, unless told): rounded to that, then in the type that arithmetic on it happens in.

        An operand without dimensions, if `exact`, is not rounded to the narrow type between.
        """
        if isinstance(operand, Tensor):
            value = operand.load(broadcast(coords, operand.shape))
            dtype = dtype or operand.dtype
            if not (exact and not operand.dims):
                value = cast(value, dtype)
            return cast(value, computed_in(dtype))
        dtype = dtype or types.of_number(operand)
        if not exact and not isinstance(operand, Index | Real):
            operand = scalar.rounded(operand, dtype)
        value = scalar.number(operand, computed_in(dtype))
        return scalar.narrow(value, dtype) if isinstance(operand, Real) and not exact else value

    def pointwise(
        self,
        function: Callable[..., Expr],
        *operands: Operand,
        dtype: DType | None = None,
        at: int = 0,
    ) -> Tensor:
        """Result `at`: `function` of the operands, taken to `dtype` (the result's, unless told)."""
        dtype = dtype or self.spec(at).dtype

        def element(coords: Coords) -> Expr:
            return function(*(self.read(operand, coords, dtype) for operand in operands))

        return self.out(element, at)

    # -- within --------------------------------------------------------------------------------

    def _compute(
        self,
        buffers: tuple[Buffer | None, ...],
        shape: Sequence[Index],
        value: Callable[[Coords], tuple[Expr, ...]],
    ) -> None:
        axes, coords = _axes("i", shape)
        values = value(coords)
        self.computes.append(Compute(buffers, axes, values, requires=self._required()))

    def _folded(
        self,
        axes: tuple[Axis, ...],
        values: tuple[Expr, ...],
        combine: str,
        out: Sequence[int | None] | None,
        name: str,
        over: tuple[Axis, ...] = (),
        along: Axis | None = None,
    ) -> tuple[Tensor, ...]:
        shape = tuple(axis.extent for axis in axes)
        components = fold_types(combine, values[0].dtype)
        buffers: list[Buffer | None] = []
        casts: list[tuple[int, Tensor]] = []
        results: list[Tensor] = []
        for position, dtype in enumerate(components):
            at = position if out is None else out[position]
            if at is None:
                buffers.append(None)
                continue
            if out is not None and self.spec(at).dtype is dtype:
                buffers.append(self._result(at))
                results.append(self._made(at, buffers[-1]))
                continue
            buffers.append(self._between(name, shape, dtype))
            between = of_buffer(_present(buffers[-1]))
            if out is None:
                results.append(between)
            else:
                casts.append((at, between))
        self.computes.append(
            Compute(tuple(buffers), axes, values, over, along, combine, self._required())
        )
        results += [self.out(between.load, at) for at, between in casts]
        return tuple(results)

    def _result(self, at: int) -> Buffer:
        spec = self.spec(at)
        name = self.name if len(self.specs) == 1 else self._names.fresh(f"{self.name}_{at}")
        return Buffer(name, spec.dtype, spec.shape, spec.strides)

    def _between(self, name: str, shape: Sequence[Index], dtype: DType) -> Buffer:
        wish = f"{self.name}_{name}" if name else f"{self.name}_between"
        return Buffer(self._names.fresh(wish), dtype, tuple(shape), contiguous(shape))

    def _made(self, at: int, buffer: Buffer | None) -> Tensor:
        self.results[at] = of_buffer(_present(buffer))
        return self.results[at]

    def _required(self) -> tuple[Require, ...]:
        required, self._requires = tuple(self._requires), []
        return required


def _present(buffer: Buffer | None) -> Buffer:
    assert buffer is not None
    return buffer


def _axes(letter: str, shape: Sequence[Index]) -> tuple[tuple[Axis, ...], Coords]:
    """Axes over a shape, and the point that they are at."""
    axes = tuple(Axis(f"{letter}{dim}", size) for dim, size in enumerate(shape))
    return axes, tuple(ZERO if axis.extent is ONE else index(axis) for axis in axes)


def number_of(value: Number) -> float:
    """A Python number; Unsupported for one that depends on sizes."""
    if isinstance(value, Index) and value.is_constant:
        return value.constant
    if isinstance(value, Index | Real):
        raise Unsupported("a size where a number is wanted")
    return value
