"""Index expressions as instructions on `i64`."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from straightline.codegen.llvm.context import Context
from straightline.codegen.llvm.scopes import Value, constant, depth_of, tags_of, widest
from straightline.codegen.llvm.text import At, integer, sequence
from straightline.ir import index as ix
from straightline.ir.dtypes import i64
from straightline.ir.index import Atom, Axis, Div, Given, Index, Mod, Product, Size

Rule = Callable[..., str]


def number(ctx: Context, index: Index, first: bool = False) -> Value:
    """Its value, in each lane its own where it changes along the vector; `first`: the one of the
    first lane. Numbers computed from data in it are known already.
    """
    if index.is_constant:
        return constant(i64, index.constant)
    first = first and ctx.vector is not None and ctx.vector.axis in index.axes
    key = (index, first)
    found = ctx.scopes.known(key)
    if found is None:
        found = ctx.scopes.remember(key, _sum(ctx, index, first))
    return found


def slope(ctx: Context, index: Index) -> Index | None:
    """What it grows by from one lane to the next; None where that changes or is not known."""
    if ctx.vector is None:
        return ix.ZERO
    for atom in index.atoms:
        if isinstance(atom, Given) and _given(ctx, atom).lanes > 1:
            return None
    return ix.slope(index, ctx.vector.axis)


def term_depth(ctx: Context, product: Product, first: bool) -> int:
    return depth_of(_atom(ctx, atom, first) for atom in product)


def _sum(ctx: Context, index: Index, first: bool) -> Value:
    if len(index.terms) == 1 and not index.constant:
        ((product, count),) = index.terms
        return _product(ctx, product, count, first)
    terms = [number(ctx, Index((term,), 0), first) for term in index.terms]
    terms.sort(key=lambda value: (value.lanes, value.depth))
    if index.constant:
        terms.append(constant(i64, index.constant))
    return reduce(lambda a, b: _arithmetic(ctx, "add", a, b), terms)


def _product(ctx: Context, product: Product, count: int, first: bool) -> Value:
    factors = [_atom(ctx, atom, first) for atom in product]
    factors.sort(key=lambda value: (value.lanes, value.depth))
    result = reduce(lambda a, b: _arithmetic(ctx, "mul", a, b), factors)
    return result if count == 1 else _arithmetic(ctx, "mul", result, constant(i64, count))


def _arithmetic(ctx: Context, instruction: str, a: Value, b: Value) -> Value:
    return _made(ctx, (a, b), lambda at, x, y: at.binary(instruction, "i64", x, y))


def _made(ctx: Context, args: tuple[Value, ...], rule: Rule) -> Value:
    lanes, count = widest(args)
    at = ctx.scopes.at(depth_of(args), lanes)
    spread = [ctx.scopes.spread(arg, lanes, count) for arg in args]
    parts = tuple(rule(at, *part) for part in zip(*spread, strict=True))
    return Value(i64, lanes, parts, depth_of(args), tags_of(args))


def _atom(ctx: Context, atom: Atom, first: bool) -> Value:
    match atom:
        case Size():
            return _size(ctx, atom)
        case Axis():
            return _axis(ctx, atom, first)
        case Given():
            return _given(ctx, atom)
        case Div(top, bottom) | Mod(top, bottom):
            key = (atom, first)
            found = ctx.scopes.known(key)
            if found is None:
                found = ctx.scopes.remember(key, _divided(ctx, atom, top, bottom, first))
            return found


def _size(ctx: Context, size: Size) -> Value:
    found = ctx.scopes.known(size)
    if found is None:
        at = ctx.scopes.at(0)
        place = at.do(f"getelementptr i64, ptr %sizes, i64 {ctx.kernel.sizes.index(size)}")
        name = at.do(f"load i64, ptr {place}, align 8")
        found = ctx.scopes.remember(size, Value(i64, 1, (name,)))
    return found


def _axis(ctx: Context, axis: Axis, first: bool) -> Value:
    position = ctx.axes[axis]
    vector = ctx.vector
    if vector is None or axis is not vector.axis or first:
        return position
    key = (axis, "lanes")
    found = ctx.scopes.known(key)
    if found is None:
        at = ctx.scopes.at(position.depth, vector.lanes)
        (start,) = ctx.scopes.spread(position, vector.lanes, 1)
        parts = tuple(
            at.binary("add", "i64", start, sequence("i64", range(begin, begin + vector.lanes)))
            for begin in range(0, vector.count * vector.lanes, vector.lanes)
        )
        value = Value(i64, vector.lanes, parts, position.depth, position.tags)
        found = ctx.scopes.remember(key, value)
    return found


def _given(ctx: Context, atom: Given) -> Value:
    found = ctx.scopes.known(atom.value)
    if found is None:
        raise ValueError(f"{atom} is not computed yet")
    return found


# -- division --------------------------------------------------------------------------------------


def _divided(ctx: Context, atom: Div | Mod, top: Index, bottom: Index, first: bool) -> Value:
    """Rounded down. The divisor may be wrong where the result is not used: it is made positive."""
    rest = isinstance(atom, Mod)
    natural = ix.at_least(top, 0)
    small = natural and _below_31_bits(top) and _below_31_bits(bottom)
    divisor = number(ctx, bottom, first)
    if not ix.at_least(bottom, 1):
        one = constant(i64, 1)
        divisor = _made(ctx, (divisor, one), lambda at, x, y: at.call("llvm.smax", "i64", x, y))

    def rule(at: At, x: str, y: str) -> str:
        if small and at.lanes > 1:
            return _small(at, x, y, rest)
        return _natural(at, x, y, rest) if natural else _any(at, x, y, rest)

    return _made(ctx, (number(ctx, top, first), divisor), rule)


def _below_31_bits(index: Index) -> bool:
    most = ix.bounds(index)[1]
    return most is not None and most < 1 << 31


def _small(at: At, x: str, y: str, rest: bool) -> str:
    """Numbers of 31 bits in lanes: by a constant in 32 bits, else in f64, whose quotients truncate
    to the right one.
    """
    top = at.convert("trunc", "i64", x, "i32")
    by = integer(y)
    if by is not None:
        word = "urem" if rest else "udiv"
        return at.convert("zext", "i32", at.binary(word, "i32", top, at.const("i32", by)), "i64")
    bottom = at.convert("trunc", "i64", y, "i32")
    wide = [at.convert("sitofp", "i32", part, "double") for part in (top, bottom)]
    quotient = at.convert("fptosi", "double", at.binary("fdiv", "double", *wide), "i32")
    if rest:
        quotient = at.binary("sub", "i32", top, at.binary("mul", "i32", quotient, bottom))
    return at.convert("zext", "i32", quotient, "i64")


def _natural(at: At, x: str, y: str, rest: bool) -> str:
    return at.binary("urem" if rest else "udiv", "i64", x, y)


def _any(at: At, x: str, y: str, rest: bool) -> str:
    left = at.binary("srem", "i64", x, y)
    below = at.compare("icmp slt", "i64", left, at.const("i64", 0))
    if rest:
        return at.select(below, "i64", at.binary("add", "i64", left, y), left)
    quotient = at.binary("sdiv", "i64", x, y)
    less = at.binary("sub", "i64", quotient, at.const("i64", 1))
    return at.select(below, "i64", less, quotient)
