"""Maps put into what reads them: recomputed where that is cheaper than memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace as changed

from straightline.ir.dtypes import b1
from straightline.ir.nodes import Compute, Const, Expr, Load, Require, op, walk
from straightline.ir.ops import SELECT
from straightline.ir.rewrite import guarded, replace
from straightline.schedule import cost
from straightline.schedule.fuel import Fuel
from straightline.schedule.program import External, Program, Step, loads, reads, roots

CHEAP = 4
"""A value of this cost is computed again rather than kept: about what a store and a load take."""

LARGEST = 600
"""Nodes of an expression beyond which nothing more is put into it: compile time is linear in it."""


def inline(program: Program, fuel: Fuel) -> Program:
    """The program with maps inlined into all that read them, where that pays."""
    uses = _uses(program)
    outside = set(program.needed).union(*(reads(s) for s in program.steps if _external(s)))
    inlined: dict[str, Compute] = {}
    steps: list[Step] = []
    for position, step in enumerate(program.steps):
        if isinstance(step, External):
            steps.append(step)
            continue
        compute = put_in(step, inlined)
        name = compute.buffers[0].name
        rest = program.steps[position + 1 :]
        why = _why(compute, uses[name], rest) if name not in outside else None
        if why is not None and fuel.take(name, "inlined", why):
            inlined[name] = compute
        else:
            steps.append(compute)
    return Program(tuple(steps), program.needed)


def _external(step: Step) -> bool:
    return isinstance(step, External)


def _uses(program: Program) -> Counter[str]:
    """How many places each buffer is read at."""
    return Counter(
        load.buffer.name
        for step in program.steps
        if isinstance(step, Compute)
        for load in loads(*roots(step))
    )


def is_map(compute: Compute) -> bool:
    return not compute.over and compute.along is None


def _why(compute: Compute, uses: int, rest: tuple[Step, ...]) -> str | None:
    """The reason to inline it; None when there is none."""
    if not is_map(compute) or len(compute.results) != 1 or uses == 0:
        return None
    price = cost.arithmetic(*compute.values)
    if price <= CHEAP:
        return f"cheap: {price}"
    if uses > 1 or sum(1 for _ in walk(*compute.values)) > LARGEST:
        return None
    name = compute.buffers[0].name
    reader = next((s for s in rest if isinstance(s, Compute) and name in reads(s)), None)
    if reader is None:
        return None
    if cost.points((*reader.axes, *reader.over)) > cost.points(compute.axes):
        return None
    return "read at one place"


def put_in(compute: Compute, inlined: Mapping[str, Compute]) -> Compute:
    """`compute` with loads of these buffers as what they are computed from."""
    met: list[tuple[Compute, Load]] = []

    def value_of(load: Load) -> Expr | None:
        source = inlined.get(load.buffer.name)
        if source is None:
            return None
        met.append((source, load))
        value = replace(source.values[0], dict(zip(source.axes, load.coords, strict=True)))
        return value if load.mask is None else under(value, load.mask)

    if not inlined.keys() & reads(compute):
        return compute
    values = tuple(replace(value, {}, value_of) for value in compute.values)
    requires = tuple(
        Require(replace(each.condition, {}, value_of), each.code) for each in compute.requires
    )
    carried = [require for source, load in met for require in _carried(source, load)]
    origins = dict.fromkeys(name for source, _ in met for name in source.origins)
    return changed(
        compute,
        values=values,
        requires=(*dict.fromkeys(carried), *requires),
        origins=(*origins, *compute.origins),
    )


def _carried(source: Compute, load: Load) -> list[Require]:
    """What the reader of an inlined value has to meet in its place."""
    axes = dict(zip(source.axes, load.coords, strict=True))
    found = []
    for each in source.requires:
        condition = replace(each.condition, axes)
        if load.mask is not None:
            condition = op("or", op("not", load.mask), guarded(condition, load.mask))
        found.append(Require(condition, each.code))
    return found


def under(value: Expr, mask: Expr) -> Expr:
    """`value` where `mask` holds and zero elsewhere, where it reads nothing."""
    return where_true(mask, guarded(value, mask))


def where_true(mask: Expr | None, value: Expr) -> Expr:
    """`value` where `mask` holds and zero elsewhere."""
    if mask is None:
        return value
    zero = Const(value.dtype, 0.0 if value.dtype.is_float else value.dtype is not b1 and 0)
    return op(SELECT, mask, value, zero)
