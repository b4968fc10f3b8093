"""Loads and stores, one element or one in each lane; never one that the kernel does not ask for."""

from __future__ import annotations

from collections.abc import Hashable

from straightline.codegen.llvm.context import Context, Vector
from straightline.codegen.llvm.indices import number, slope, term_depth
from straightline.codegen.llvm.plan import offset
from straightline.codegen.llvm.scopes import Value, constant
from straightline.codegen.llvm.text import At, memory, register, sequence, suffix
from straightline.ir import index as ix
from straightline.ir.dtypes import DType, b1, i64
from straightline.ir.index import Index
from straightline.ir.nodes import Buffer, Load


def load(ctx: Context, expr: Load, mask: Value | None) -> Value:
    buffer, flat = expr.buffer, offset(expr.buffer, expr.coords)
    dtype = buffer.dtype
    step = slope(ctx, flat)
    tags: frozenset[Hashable] = frozenset({buffer.name}) & ctx.written
    least = ctx.scopes.depth if buffer.name in ctx.written else ctx.scopes.barrier()
    if mask is not None:
        least, tags = max(least, mask.depth), tags | mask.tags
    vector = ctx.vector
    if vector is None or step is ix.ZERO:
        pointer = _pointer(ctx, buffer, flat, first=False)
        least, tags = max(least, pointer.depth), tags | pointer.tags
        if mask is None or mask.lanes == 1:
            where = mask.name if mask else None
            name = _one(ctx.scopes.at(least), dtype, pointer.name, where)
            return Value(dtype, 1, (name,), least, tags)
        return _one_for_some(ctx, dtype, pointer.name, mask, least, tags)
    position = ctx.axes[vector.axis]
    least, tags = max(least, position.depth), tags | position.tags
    if step in (ix.ONE, ix.index(-1)):
        forward = step is ix.ONE
        pointer = _pointer(ctx, buffer, flat, first=True)
        least, tags = max(least, pointer.depth), tags | pointer.tags
        at = ctx.scopes.at(least, vector.lanes)
        masks = _masks(ctx, at, vector, mask)
        starts = [_start(forward, part, vector) for part in range(vector.count)]
        parts = tuple(
            _row(at, dtype, _moved(at, dtype, pointer.name, start), some, forward)
            for start, some in zip(starts, masks, strict=True)
        )
    else:
        pointer, far = _apart(ctx, buffer, flat, step, vector)
        least, tags = max(least, pointer.depth, far.depth), tags | pointer.tags | far.tags
        at = ctx.scopes.at(least, vector.lanes)
        masks = _masks(ctx, at, vector, mask)
        parts = tuple(
            _gathered(at, dtype, _each(at, dtype, pointer.name, distance), some)
            for distance, some in zip(far.parts, masks, strict=True)
        )
    return Value(dtype, vector.lanes, parts, least, tags)


def store(
    ctx: Context, buffer: Buffer, coords: tuple[Index, ...], value: Value, mask: Value | None
) -> None:
    flat = offset(buffer, coords)
    dtype, vector = buffer.dtype, ctx.vector
    if vector is None:
        pointer = _pointer(ctx, buffer, flat, first=False)
        _put_one(ctx.scopes.here(), dtype, pointer.name, value.name, mask.name if mask else None)
    else:
        step = slope(ctx, flat)
        at = ctx.scopes.here(vector.lanes)
        masks = _unknown(ctx, at, _masks(ctx, at, vector, mask))
        values = ctx.scopes.spread(value, vector.lanes, vector.count)
        if step in (ix.ONE, ix.index(-1)):
            forward = step is ix.ONE
            pointer = _pointer(ctx, buffer, flat, first=True)
            for u, name in enumerate(values):
                place = _moved(at, dtype, pointer.name, _start(forward, u, vector))
                _put_row(at, dtype, place, name, masks[u], forward)
        else:
            pointer, far = _apart(ctx, buffer, flat, step, vector)
            for distance, name, some in zip(far.parts, values, masks, strict=True):
                _scatter(at, dtype, _each(at, dtype, pointer.name, distance), name, some)
    ctx.scopes.forget(buffer.name)


def _masks(ctx: Context, at: At, vector: Vector, mask: Value | None) -> tuple[str | None, ...]:
    """The lanes that touch memory, for each part; None where all do."""
    if mask is None:
        return vector.active
    names = ctx.scopes.spread(mask, vector.lanes, vector.count)
    return tuple(
        name if active is None else at.binary("and", "i1", name, active)
        for name, active in zip(names, vector.active, strict=True)
    )


def _unknown(ctx: Context, at: At, masks: tuple[str | None, ...]) -> tuple[str | None, ...]:
    """The same masks, of which LLVM does not know which lanes they are.

    Of a narrowed vector with one lane known to be stored, LLVM 22 stores what was there before it
    was narrowed, over what lies behind.
    """
    if all(mask is None for mask in masks):
        return masks
    (true,) = ctx.scopes.spread(_opaque(ctx), at.lanes, 1)
    return tuple(mask and at.binary("and", "i1", mask, true) for mask in masks)


def _opaque(ctx: Context) -> Value:
    """True, although it could be otherwise as far as LLVM can see."""
    found = ctx.scopes.known("opaque")
    if found is None:
        at = ctx.scopes.at(0)
        number = at.do("ptrtoint ptr %buffers to i64")
        found = Value(b1, 1, (at.compare("icmp ne", "i64", number, "0"),))
        ctx.scopes.remember("opaque", found)
    return found


# -- addresses -------------------------------------------------------------------------------------


def _pointer(ctx: Context, buffer: Buffer, flat: Index, first: bool) -> Value:
    """The address of an element; `first`: of the first lane's.

    It is summed from the outermost loop inward, so that each adds to what is known outside.
    """
    found = _base(ctx, buffer)
    by_depth: dict[int, list[tuple[ix.Product, int]]] = {}
    for term in flat.terms:
        by_depth.setdefault(term_depth(ctx, term[0], first), []).append(term)
    so_far = ix.ZERO
    for depth in sorted(by_depth):
        part = Index(tuple(by_depth[depth]), 0)
        so_far = ix.add(so_far, part)
        found = _behind(ctx, found, number(ctx, part, first), (buffer.name, so_far, first))
    if not flat.constant:
        return found
    return _behind(ctx, found, constant(i64, flat.constant), (buffer.name, flat, first))


def _behind(ctx: Context, pointer: Value, elements: Value, key: Hashable) -> Value:
    known = ctx.scopes.known(key)
    if known is not None:
        return known
    depth = max(pointer.depth, elements.depth)
    name = _step(ctx.scopes.at(depth), pointer.dtype, pointer.name, elements.name)
    tags = pointer.tags | elements.tags
    return ctx.scopes.remember(key, Value(pointer.dtype, 1, (name,), depth, tags))


def _base(ctx: Context, buffer: Buffer) -> Value:
    found = ctx.scopes.known(buffer.name)
    if found is None:
        at = ctx.scopes.at(0)
        place = at.do(f"getelementptr ptr, ptr %buffers, i64 {ctx.plan.place(buffer)}")
        name = at.do(f"load ptr, ptr {place}, align 8")
        found = ctx.scopes.remember(buffer.name, Value(buffer.dtype, 1, (name,)))
    return found


def _step(at: At, dtype: DType, pointer: str, elements: str) -> str:
    return at.do(f"getelementptr {memory(dtype)}, ptr {pointer}, i64 {elements}")


def _start(forward: bool, part: int, vector: Vector) -> int:
    """Where a part's lanes begin in memory, seen from the first lane of all."""
    return part * vector.lanes if forward else -(part + 1) * vector.lanes + 1


def _moved(at: At, dtype: DType, pointer: str, elements: int) -> str:
    return _step(at, dtype, pointer, str(elements)) if elements else pointer


def _apart(
    ctx: Context, buffer: Buffer, flat: Index, step: Index | None, vector: Vector
) -> tuple[Value, Value]:
    """An address, and how many elements behind it each lane's lies."""
    lanes = vector.lanes
    if step is not None and step.is_constant:
        starts = range(0, vector.count * lanes, lanes)
        by = step.constant
        far = tuple(sequence("i64", [by * lane for lane in range(u, u + lanes)]) for u in starts)
        return _pointer(ctx, buffer, flat, first=True), Value(i64, lanes, far)
    varies = [term for term in flat.terms if number(ctx, Index((term,), 0)).lanes > 1]
    same = tuple(term for term in flat.terms if term not in varies)
    pointer = _pointer(ctx, buffer, Index(same, flat.constant), first=False)
    moving = number(ctx, Index(tuple(varies), 0))
    parts = ctx.scopes.spread(moving, lanes, vector.count)
    return pointer, Value(i64, lanes, parts, moving.depth, moving.tags)


def _each(at: At, dtype: DType, pointer: str, distance: str) -> str:
    """An address for each lane."""
    return at.do(f"getelementptr {memory(dtype)}, ptr {pointer}, <{at.lanes} x i64> {distance}")


# -- one element -----------------------------------------------------------------------------------


def _one(at: At, dtype: DType, pointer: str, mask: str | None) -> str:
    """Under a mask it takes a branch."""
    element = memory(dtype)
    if mask is None:
        return _into(at, dtype, at.do(f"load {element}, ptr {pointer}, align {dtype.bytes}"))
    before, then, after = (at.function.label(word) for word in ("if", "then", "after"))
    at.block(before)
    at.perform(f"br i1 {mask}, label %{then}, label %{after}")
    at.lines.append(f"{then}:")
    name = at.do(f"load {element}, ptr {pointer}, align {dtype.bytes}")
    at.block(after)
    zero = "0.0" if dtype.is_float and dtype.bits > 16 else "0"
    return _into(at, dtype, at.do(f"phi {element} [{zero}, %{before}], [{name}, %{then}]"))


def _one_for_some(
    ctx: Context,
    dtype: DType,
    pointer: str,
    mask: Value,
    depth: int,
    tags: frozenset[Hashable],
) -> Value:
    """One element, in those lanes that ask for it."""
    assert ctx.vector is not None
    lanes = ctx.vector.lanes
    at = ctx.scopes.at(depth, lanes)
    asked = [some for some in _masks(ctx, at, ctx.vector, mask) if some is not None]
    some = asked[0]
    for other in asked[1:]:
        some = at.binary("or", "i1", some, other)
    name = f"llvm.vector.reduce.or.v{lanes}i1"
    at.declare(f"i1 @{name}(<{lanes} x i1>)")
    anyone = at.do(f"call i1 @{name}(<{lanes} x i1> {some})")
    one = Value(dtype, 1, (_one(at.over(1), dtype, pointer, anyone),), depth, tags)
    (everywhere,) = ctx.scopes.spread(one, lanes, 1)
    base = register(dtype)
    zero = "zeroinitializer"
    parts = tuple(at.select(lane, base, everywhere, zero) for lane in asked)
    return Value(dtype, lanes, parts, depth, tags)


def _put_one(at: At, dtype: DType, pointer: str, value: str, mask: str | None) -> None:
    element = memory(dtype)
    if mask is not None:
        then, after = at.function.label("then"), at.function.label("after")
        at.perform(f"br i1 {mask}, label %{then}, label %{after}")
        at.lines.append(f"{then}:")
    name = _out_of(at, dtype, value)
    at.perform(f"store {element} {name}, ptr {pointer}, align {dtype.bytes}")
    if mask is not None:
        at.block(after)


# -- one in each lane ------------------------------------------------------------------------------


def _row(at: At, dtype: DType, pointer: str, mask: str | None, forward: bool) -> str:
    """Neighbours in memory, from the last lane to the first unless `forward`."""
    element, lanes = memory(dtype), at.lanes
    kind = at.type(element)
    if mask is None:
        name = at.do(f"load {kind}, ptr {pointer}, align {dtype.bytes}")
    else:
        mask = mask if forward else _reversed(at, "i1", mask)
        called = f"llvm.masked.load.{suffix(element, lanes)}.p0"
        at.declare(f"{kind} @{called}(ptr, <{lanes} x i1>, {kind})")
        name = at.do(
            f"call {kind} @{called}(ptr align {dtype.bytes} {pointer}, <{lanes} x i1> {mask}, "
            f"{kind} zeroinitializer)"
        )
    return _into(at, dtype, name if forward else _reversed(at, element, name))


def _put_row(
    at: At, dtype: DType, pointer: str, value: str, mask: str | None, forward: bool
) -> None:
    element, lanes = memory(dtype), at.lanes
    kind = at.type(element)
    name = _out_of(at, dtype, value)
    name = name if forward else _reversed(at, element, name)
    if mask is None:
        at.perform(f"store {kind} {name}, ptr {pointer}, align {dtype.bytes}")
        return
    mask = mask if forward else _reversed(at, "i1", mask)
    called = f"llvm.masked.store.{suffix(element, lanes)}.p0"
    at.declare(f"void @{called}({kind}, ptr, <{lanes} x i1>)")
    at.perform(
        f"call void @{called}({kind} {name}, ptr align {dtype.bytes} {pointer}, "
        f"<{lanes} x i1> {mask})"
    )


def _reversed(at: At, base: str, value: str) -> str:
    kind, order = at.type(base), sequence("i32", range(at.lanes - 1, -1, -1))
    return at.do(f"shufflevector {kind} {value}, {kind} poison, <{at.lanes} x i32> {order}")


def _gathered(at: At, dtype: DType, pointers: str, mask: str | None) -> str:
    element, lanes = memory(dtype), at.lanes
    kind = at.type(element)
    mask = mask or at.const("i1", "true")
    called = f"llvm.masked.gather.{suffix(element, lanes)}.v{lanes}p0"
    at.declare(f"{kind} @{called}(<{lanes} x ptr>, <{lanes} x i1>, {kind})")
    name = at.do(
        f"call {kind} @{called}(<{lanes} x ptr> align {dtype.bytes} {pointers}, "
        f"<{lanes} x i1> {mask}, {kind} zeroinitializer)"
    )
    return _into(at, dtype, name)


def _scatter(at: At, dtype: DType, pointers: str, value: str, mask: str | None) -> None:
    element, lanes = memory(dtype), at.lanes
    kind = at.type(element)
    mask = mask or at.const("i1", "true")
    called = f"llvm.masked.scatter.{suffix(element, lanes)}.v{lanes}p0"
    at.declare(f"void @{called}({kind}, <{lanes} x ptr>, <{lanes} x i1>)")
    at.perform(
        f"call void @{called}({kind} {_out_of(at, dtype, value)}, "
        f"<{lanes} x ptr> align {dtype.bytes} {pointers}, <{lanes} x i1> {mask})"
    )


def _into(at: At, dtype: DType, name: str) -> str:
    """From its type in memory to the one in registers."""
    return at.compare("icmp ne", "i8", name, at.const("i8", 0)) if dtype is b1 else name


def _out_of(at: At, dtype: DType, name: str) -> str:
    return at.convert("zext", "i1", name, "i8") if dtype is b1 else name
