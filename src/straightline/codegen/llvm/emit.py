"""Kernels as LLVM IR text.

A kernel is `i64 name(ptr buffers, ptr sizes, i64 lo, i64 hi)`: addresses in the order of
`kernel.buffers` and behind them those of `plan.passed_scratch`, numbers in the order of
`kernel.sizes`, and the positions `[lo, hi)` of the outermost loop to run where the body is one
PARALLEL or VECTOR loop. It returns the status: 0, or the code of the check that failed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import reduce

from straightline.codegen.llvm import folds, memory
from straightline.codegen.llvm.context import Context
from straightline.codegen.llvm.loops import loop
from straightline.codegen.llvm.plan import elements, plan
from straightline.codegen.llvm.scopes import Scopes, Value
from straightline.codegen.llvm.text import Function, Lines, flat
from straightline.codegen.llvm.text import memory as memory_type
from straightline.codegen.llvm.values import prepare, value
from straightline.codegen.math.expand import expand_kernel
from straightline.codegen.target import Target
from straightline.ir.nodes import (
    Accumulate,
    Buffer,
    Check,
    Declare,
    Fold,
    How,
    Kernel,
    Load,
    Loop,
    Statement,
    Store,
)


def emit(kernels: Iterable[Kernel], target: Target) -> str:
    """A module with one function for each kernel. Math functions are expanded first."""
    declarations: dict[str, str] = {}
    functions = []
    for kernel in kernels:
        function = Function(target)
        functions.append(_function(expand_kernel(kernel, target.scalef), function))
        declarations.update(function.declarations)
    width = f'"prefer-vector-width"="{target.bits}" "min-legal-vector-width"="{target.bits}"'
    attributes = f"attributes #0 = {{ nounwind {width if target.is_x86 else ''} }}"
    head = f'target triple = "{target.triple}"'
    declared = "\n".join(sorted(declarations.values()))
    return "\n\n".join([head, *functions, declared, attributes]) + "\n"


def takes_range(kernel: Kernel) -> bool:
    """Whether it runs the positions `[lo, hi)` it is told."""
    match kernel.body:
        case (Loop(how=How.PARALLEL | How.VECTOR),):
            return True
        case _:
            return False


def _function(kernel: Kernel, function: Function) -> str:
    entry: Lines = []
    scopes = Scopes(function, entry)
    written = frozenset(kernel.outputs) | {buffer.name for buffer in kernel.scratch}
    ctx = Context(kernel, plan(kernel, function.target), scopes, written)
    for buffer in ctx.plan.on_stack:
        _on_stack(ctx, buffer)
    match kernel.body:
        case (Loop() as only,) if takes_range(kernel):
            loop(ctx, only, statements, ("%lo", "%hi"))
        case body:
            statements(ctx, body)
    entry.append("  ret i64 0")
    head = f'define i64 @"{kernel.name}"(ptr %buffers, ptr %sizes, i64 %lo, i64 %hi) #0 {{'
    return "\n".join([head, "start:", *flat(entry), "}"])


def _on_stack(ctx: Context, buffer: Buffer) -> None:
    kind = f"[{elements(buffer)} x {memory_type(buffer.dtype)}]"
    name = ctx.scopes.at(0).do(f"alloca {kind}, align 64")
    ctx.scopes.remember(buffer.name, Value(buffer.dtype, 1, (name,)))


def statements(ctx: Context, body: tuple[Statement, ...]) -> None:
    """The statements of a body, each fold of it completed behind the last that adds to it."""
    inside, shape = ctx.inside, ctx.shape
    last: dict[Fold, int] = {}
    slots: dict[Fold, set[tuple[Fold, int, int]]] = {}
    for at, st in enumerate(body):
        if isinstance(st, Declare):
            last[st.fold], slots[st.fold] = at, set()
    for at, st in enumerate(body if last else ()):
        for slot in ctx.plan.touched((st,), shape, inside):
            if slot[0] in last:
                last[slot[0]] = at
                slots[slot[0]].add(slot)
    for at, st in enumerate(body):
        match st:
            case Loop():
                loop(ctx, st, statements)
            case Declare(fold):
                folds.declare(ctx, fold, frozenset(slots[fold]))
            case Accumulate():
                folds.accumulate(ctx, st)
            case Store(buffer, coords, expr, mask):
                made = value(ctx, expr)
                where = None if mask is None else value(ctx, mask)
                prepare(ctx, *coords)
                memory.store(ctx, buffer, coords, made, where)
                if mask is None:
                    _forward(ctx, st, made)
            case Check(condition, code):
                _check(ctx, value(ctx, condition), code)
        for fold in [fold for fold, end in last.items() if end == at]:
            folds.finish(ctx, fold)


def _forward(ctx: Context, st: Store, value: Value) -> None:
    """What was stored needs no load, until something else is."""
    changing = {st.buffer.name, ctx.vector.axis} if ctx.vector else {st.buffer.name}
    known = replace(value, depth=ctx.scopes.depth, tags=value.tags | changing)
    ctx.scopes.remember(Load(st.buffer, st.coords), known)


def _check(ctx: Context, condition: Value, code: int) -> None:
    """What comes below must not be moved above it, also not out of the loop."""
    scalar = ctx.scopes.here()
    if condition.lanes > 1:
        assert ctx.vector is not None
        at = ctx.scopes.here(condition.lanes)
        true = at.const("i1", "true")
        met = [
            part if active is None else at.select(active, "i1", part, true)
            for part, active in zip(condition.parts, ctx.vector.active, strict=True)
        ]
        name = reduce(lambda a, b: at.binary("and", "i1", a, b), met)
        called = f"llvm.vector.reduce.and.v{at.lanes}i1"
        at.declare(f"i1 @{called}(<{at.lanes} x i1>)")
        name = at.do(f"call i1 @{called}(<{at.lanes} x i1> {name})")
    else:
        name = condition.name
    holds, fails = scalar.function.label("holds"), scalar.function.label("fails")
    scalar.perform(f"br i1 {name}, label %{holds}, label %{fails}")
    scalar.lines.extend((f"{fails}:", f"  ret i64 {code}", f"{holds}:"))
    ctx.scopes.chain[-1].closed = True
