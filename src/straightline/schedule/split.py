"""Large folds with few results in two steps, so that threads can share the first one.

The number of parts does not depend on the number of threads: the sum is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace as changed

from straightline.ir.dtypes import i64
from straightline.ir.index import ZERO, Axis, Index, add, floordiv, index, mod, mul
from straightline.ir.nodes import (
    Buffer,
    Compute,
    Const,
    Expr,
    Load,
    Position,
    Require,
    op,
)
from straightline.ir.ops import SELECT, identity
from straightline.ir.rewrite import guarded, replace
from straightline.schedule import cost
from straightline.schedule.fuel import Fuel
from straightline.schedule.group import Kind, alone
from straightline.schedule.program import External, Program, Step
from straightline.schedule.unit import item

PARTS = 32
"""Parts of a fold: enough for the threads of a large machine, few enough to be added up at once."""

ENOUGH = 8
"""Results that threads can share as they are: a fold that others follow in one kernel stays so."""

LARGE = 1 << 18
"""Elements from which on a fold is worth two kernels."""

LANES = 64
"""Results next to one another that one thread makes together, where a fold runs across memory."""


def split(program: Program, fuel: Fuel) -> Program:
    """The program with such folds in two steps."""
    steps: list[Step] = []
    for step in program.steps:
        steps += (step,) if isinstance(step, External) else _split(step, fuel)
    return Program(tuple(steps), program.needed)


def _split(compute: Compute, fuel: Fuel) -> Iterator[Compute]:
    axis = _axis(compute)
    if axis is None or not fuel.take(compute.buffers[0].name, "split", f"along {axis.extent}"):
        yield compute
        return
    parts = Axis("part", index(PARTS))
    size = floordiv(add(axis.extent, PARTS - 1), PARTS)
    within = Axis("within", size)
    where = add(mul(parts, size), within)
    first = _part(compute, axis, parts, within, where)
    yield first
    coords = tuple(map(index, (parts, *compute.axes)))
    yield changed(
        compute,
        values=tuple(Load(buffer, coords) for buffer in first.buffers),
        over=(parts,),
        requires=(),
    )


def _axis(compute: Compute) -> Axis | None:
    """The axis to split; None where the fold is small, or has results enough."""
    if not compute.over or compute.combine is None or len(compute.values) > 2:
        return None
    results = cost.points(compute.axes)
    across = alone(item(compute)).kind is Kind.COLUMN
    shares = results // LANES if across else results
    if shares >= ENOUGH or results * cost.points(compute.over) < LARGE:
        return None
    longest = max(compute.over, key=lambda axis: cost.amount(axis.extent))
    return longest if cost.amount(longest.extent) >= 4 * PARTS else None


def _part(compute: Compute, axis: Axis, parts: Axis, within: Axis, where: Index) -> Compute:
    assert compute.combine is not None
    inside = _inside(where, axis)

    def moved(expr: Expr, otherwise: bool | int | float) -> Expr:
        value = replace(expr, {axis: where})
        if inside is None:
            return value
        return op(SELECT, inside, guarded(value, inside), Const(expr.dtype, otherwise))

    values = tuple(
        moved(value, identity(compute.combine, value.dtype, component))
        for component, value in enumerate(compute.values)
    )
    axes = (parts, *compute.axes)
    over = tuple(within if each is axis else each for each in compute.over)
    return changed(
        compute,
        results=tuple(_between(compute, component, axes) for component in range(len(values))),
        axes=axes,
        values=values,
        over=over,
        requires=tuple(Require(moved(r.condition, True), r.code) for r in compute.requires),
    )


def _inside(where: Index, axis: Axis) -> Expr | None:
    """The mask of the positions that there are; None where the parts are even."""
    if mod(axis.extent, PARTS) is ZERO:
        return None
    extent = axis.extent
    limit: Expr = Const(i64, extent.constant) if extent.is_constant else Position(extent)
    return op("lt", Position(where), limit)


def _between(compute: Compute, component: int, axes: tuple[Axis, ...]) -> Buffer:
    shape = tuple(axis.extent for axis in axes)
    strides: list[Index] = []
    reach = index(1)
    for extent in reversed(shape):
        strides.insert(0, reach)
        reach = mul(reach, extent)
    name = f"{compute.buffers[0].name}_part{component or ''}"
    return Buffer(name, compute.values[component].dtype, shape, tuple(strides))
