"""Expressions as instructions: each computed once, where `scopes` says."""

from __future__ import annotations

from straightline.codegen.llvm import indices, memory
from straightline.codegen.llvm.context import Context
from straightline.codegen.llvm.ops import operation
from straightline.codegen.llvm.scopes import Value, depth_of, tags_of, widest
from straightline.ir.index import Given, Index
from straightline.ir.nodes import Const, Expr, Folded, Load, Op, Position, Running, operands


def value(ctx: Context, expr: Expr) -> Value:
    """`expr` computed, and all it is made of."""
    stack = [(expr, False)]
    while stack:
        node, ready = stack.pop()
        if ctx.scopes.known(node) is not None:
            continue
        if ready:
            ctx.scopes.remember(node, _made(ctx, node))
        else:
            stack.append((node, True))
            stack.extend((operand, False) for operand in operands(node))
    return known(ctx, expr)


def prepare(ctx: Context, *indexes: Index) -> None:
    """Computes the numbers in index expressions that come from data."""
    for index in indexes:
        for atom in index.atoms:
            if isinstance(atom, Given):
                value(ctx, atom.value)


def known(ctx: Context, expr: Expr) -> Value:
    found = ctx.scopes.known(expr)
    if found is None:
        raise ValueError(f"{expr} is not computed yet")
    return found


def _made(ctx: Context, expr: Expr) -> Value:
    match expr:
        case Op():
            return _operation(ctx, expr)
        case Load(mask=mask):
            return memory.load(ctx, expr, None if mask is None else known(ctx, mask))
        case Position(index):
            return indices.number(ctx, index)
        case Folded(fold):
            raise ValueError(f"fold {fold} is read before it is complete")
        case Running(fold):
            raise ValueError(f"fold {fold} is read before it takes a value in")
        case Const():
            raise AssertionError("constants are always known")


def _operation(ctx: Context, expr: Op) -> Value:
    args = [known(ctx, arg) for arg in expr.args]
    lanes, count = widest(args)
    depth = depth_of(args)
    at = ctx.scopes.at(depth, lanes)
    spread = [ctx.scopes.spread(arg, lanes, count) for arg in args]
    old = args[0].dtype
    parts = tuple(
        operation(at, expr.name, expr.dtype, old, part) for part in zip(*spread, strict=True)
    )
    return Value(expr.dtype, lanes, parts, depth, tags_of(args))
