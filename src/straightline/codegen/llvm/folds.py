"""Folds: where they are held while they run, and how the lanes become one value at the end."""

from __future__ import annotations

from straightline.codegen.combine import combined, taken
from straightline.codegen.llvm.context import Context, Running
from straightline.codegen.llvm.plan import Slots
from straightline.codegen.llvm.scopes import Value
from straightline.codegen.llvm.text import At, number, register, sequence, splat
from straightline.codegen.llvm.values import value
from straightline.codegen.math.expand import expand
from straightline.ir import index as ix
from straightline.ir import nodes
from straightline.ir.dtypes import DType
from straightline.ir.nodes import Accumulate, Expr, Fold, Folded, Op, op
from straightline.ir.ops import identity


def declare(ctx: Context, fold: Fold, slots: Slots) -> None:
    """It starts, at its identity; `slots` are what the statements behind will take values into."""
    counts: dict[int, int] = {}
    for _, lanes, count in slots or {(fold, *ctx.shape)}:
        counts[lanes] = max(count, counts.get(lanes, 0))
    ctx.folds[fold] = Running(
        len(ctx.loops),
        {lanes: identities(ctx, fold, lanes, count) for lanes, count in sorted(counts.items())},
    )


def identities(ctx: Context, fold: Fold, lanes: int, count: int) -> list[list[str]]:
    return [
        [splat(register(dtype), number(dtype, _start(ctx, fold, k)), lanes)] * count
        for k, dtype in enumerate(fold.dtypes)
    ]


def sums_floats(ctx: Context, fold: Fold) -> bool:
    """Whether it is a sum that may be taken in any order."""
    return fold.combine == "sum" and fold.dtypes[0].is_float and fold not in ctx.plan.running


def _start(ctx: Context, fold: Fold, component: int) -> bool | int | float:
    """Negative zero and a number come to that number: the first addition costs nothing. At the end
    zero is added, which is the identity proper.
    """
    return -0.0 if sums_floats(ctx, fold) else identity(fold.combine, fold.dtypes[0], component)


def accumulate(ctx: Context, st: Accumulate) -> None:
    fold, (lanes, count) = st.fold, ctx.shape
    for each in (*st.values, *((st.mask,) if st.mask is not None else ())):
        value(ctx, each)
    slot = ctx.folds[fold].slots[lanes]
    old = [tuple(parts[:count]) for parts in slot]
    ctx.scopes.forget(fold)
    for k, dtype in enumerate(fold.dtypes):
        _bind(ctx, nodes.Running(fold, k), dtype, lanes, old[k], fold)
    left = tuple(nodes.Running(fold, k) for k in range(len(fold.dtypes)))
    new = [value(ctx, expr) for expr in _taken(ctx, fold, left, st.values)]
    results = [ctx.scopes.spread(each, lanes, count) for each in new]
    at = ctx.scopes.here(lanes)
    masks = _masks(ctx, st.mask)
    results = [
        tuple(
            taken_in if mask is None else at.select(mask, register(dtype), taken_in, kept)
            for mask, taken_in, kept in zip(masks, after, before, strict=True)
        )
        for dtype, after, before in zip(fold.dtypes, results, old, strict=True)
    ]
    ctx.scopes.forget(fold)
    for k, (dtype, parts) in enumerate(zip(fold.dtypes, results, strict=True)):
        slot[k][:count] = parts
        _bind(ctx, nodes.Running(fold, k), dtype, lanes, tuple(parts), fold)


def _taken(
    ctx: Context, fold: Fold, left: tuple[Expr, ...], values: tuple[Expr, ...]
) -> tuple[Expr, ...]:
    """A product goes into a sum of floats by a fused multiply-add."""
    match values:
        case (Op("mul", dtype, (a, b)),) if (
            sums_floats(ctx, fold) and dtype.is_float and ctx.scopes.function.target.fma
        ):
            return (op("fma", a, b, left[0]),)
        case _:
            return _expanded(ctx, taken(fold.combine, left, values, _rises(ctx, fold, values)))


def _expanded(ctx: Context, exprs: tuple[Expr, ...]) -> tuple[Expr, ...]:
    return tuple(expand(expr, ctx.scopes.function.target.scalef) for expr in exprs)


def _rises(ctx: Context, fold: Fold, values: tuple[Expr, ...]) -> bool:
    """Whether the fold sees positions in order: it runs in one loop, and they grow in it."""
    match values:
        case (_, nodes.Position(index)):
            around = ctx.loops[ctx.folds[fold].loops :]
            return len(around) == 1 and ix.at_least(ix.slope(index, around[0]) or -1, 0)
        case _:
            return False


def _masks(ctx: Context, mask: Expr | None) -> tuple[str | None, ...]:
    """The lanes that take part, for each part; None where all do."""
    lanes, count = ctx.shape
    active = ctx.vector.active if ctx.vector else (None,)
    if mask is None:
        return active
    names = ctx.scopes.spread(value(ctx, mask), lanes, count)
    at = ctx.scopes.here(lanes)
    return tuple(
        name if some is None else at.binary("and", "i1", name, some)
        for name, some in zip(names, active, strict=True)
    )


def _bind(
    ctx: Context, leaf: Expr, dtype: DType, lanes: int, parts: tuple[str, ...], tag: object
) -> None:
    ctx.scopes.remember(leaf, Value(dtype, lanes, parts, ctx.scopes.depth, frozenset({tag})))


# -- completing ------------------------------------------------------------------------------------

_Partial = tuple[int, list[str]]


def finish(ctx: Context, fold: Fold) -> None:
    """No more values come: what it came to is known from here on."""
    slots = ctx.folds[fold].slots
    own, _ = ctx.shape
    if own > 1:
        results = [tuple(parts) for parts in slots[own]]
    else:
        total = None
        for lanes, components in sorted(slots.items(), reverse=True):
            partials = [list(parts) for parts in zip(*components, strict=True)]
            one = _narrowed(ctx, fold, _tree(ctx, fold, partials, lanes), lanes)
            total = one if total is None else _merged(ctx, fold, total, one, 1)
        assert total is not None
        results = [(name,) for name in total]
    if sums_floats(ctx, fold):
        at, base = ctx.scopes.here(own), register(fold.dtypes[0])
        zero = at.const(base, number(fold.dtypes[0], 0))
        results = [tuple(at.binary("fadd", base, part, zero) for part in results[0])]
    for k, (dtype, parts) in enumerate(zip(fold.dtypes, results, strict=True)):
        ctx.scopes.remember(Folded(fold, k), Value(dtype, own, parts, ctx.scopes.depth))


def _tree(ctx: Context, fold: Fold, partials: list[list[str]], lanes: int) -> list[str]:
    """Neighbours in pairs, until one is left."""
    while len(partials) > 1:
        pairs = [partials[i : i + 2] for i in range(0, len(partials), 2)]
        partials = [
            _merged(ctx, fold, pair[0], pair[1], lanes) if len(pair) == 2 else pair[0]
            for pair in pairs
        ]
    return partials[0]


def _narrowed(ctx: Context, fold: Fold, partial: list[str], lanes: int) -> list[str]:
    """The upper half of the lanes into the lower, until one lane is left."""
    while lanes > 1:
        half = lanes // 2
        at = ctx.scopes.here(lanes)
        low = _half(at, fold, partial, 0)
        high = _half(at, fold, partial, half)
        partial = _merged(ctx, fold, low, high, half)
        lanes = half
    return partial


def _half(at: At, fold: Fold, partial: list[str], start: int) -> list[str]:
    """Half of the lanes of each component."""
    count = at.lanes // 2
    order = f"<{count} x i32> {sequence('i32', range(start, start + count))}"
    halves = []
    for dtype, name in zip(fold.dtypes, partial, strict=True):
        kind = at.type(register(dtype))
        if count == 1:
            halves.append(at.do(f"extractelement {kind} {name}, i64 {start}"))
        else:
            halves.append(at.do(f"shufflevector {kind} {name}, {kind} poison, {order}"))
    return halves


def _merged(ctx: Context, fold: Fold, left: list[str], right: list[str], lanes: int) -> list[str]:
    sides = []
    for word, names in (("left", left), ("right", right)):
        side = Fold(word, fold.combine, fold.dtypes)
        leaves = tuple(nodes.Running(side, k) for k in range(len(fold.dtypes)))
        for leaf, dtype, name in zip(leaves, fold.dtypes, names, strict=True):
            _bind(ctx, leaf, dtype, lanes, (name,), "merged")
        sides.append(leaves)
    results = [value(ctx, expr) for expr in _expanded(ctx, combined(fold.combine, *sides))]
    names = [ctx.scopes.spread(result, lanes, 1)[0] for result in results]
    ctx.scopes.forget("merged")
    return names
