"""The loop IR as text: `parse(show(kernel)) == kernel`, and so for computes.

    kernel scale
    size n: 2..
    input x: f32[n, 8] strides [8, 1]
    output y: f32[n] strides [1]

    parallel i < n:
        fold total = sum(f32)
        vector j < 8:
            $0 = mul(x[i, j], 2.0:f32)
            total <- add($0, exp($0)) if lt(position(j), 5:i64)
        y[i] = folded(total)

A name such as `$0` stands for its expression: where that is used more than once, or long. It is
no statement, and says nothing of when or how often something is computed.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Iterable, Iterator

from straightline.ir.index import Axis, Div, Given, Index, Mod, Size
from straightline.ir.nodes import (
    Accumulate,
    Buffer,
    Check,
    Compute,
    Const,
    Declare,
    Expr,
    Folded,
    Kernel,
    Load,
    Loop,
    Op,
    Position,
    Running,
    Statement,
    Store,
    expressions,
    indices,
    operands,
    statements,
    walk,
)
from straightline.ir.ops import OPERATIONS, Result
from straightline.ir.parse import ParseError, parse, parse_compute
from straightline.ir.plain import buffers_of, sizes_of

__all__ = ["ParseError", "parse", "parse_compute", "show", "show_compute", "show_expression"]

# An expression whose text is longer gets a name.
LONG = 80


def show(kernel: Kernel) -> str:
    lines = [f"kernel {kernel.name}", *_sizes(kernel.sizes)]
    lines += [_buffer(_role(b.name in kernel.outputs), b) for b in kernel.buffers]
    lines += [_buffer("scratch", buffer) for buffer in kernel.scratch]
    lines += ["", *_Bodies().body(kernel.body, {}, frozenset())]
    return "\n".join(lines) + "\n"


def show_compute(compute: Compute) -> str:
    conditions = [require.condition for require in compute.requires]
    roots = [*compute.values, *conditions]
    buffers = buffers_of(compute)
    axes = (*compute.axes, *compute.over)
    lines = ["compute", *_sizes(sizes_of(buffers, axes, roots))]
    lines += [_buffer(_role(buffer in compute.buffers), buffer) for buffer in buffers]
    lines.append(f"axes {_extents(compute.axes)}".rstrip())
    if compute.over:
        lines.append(f"over {_extents(compute.over)}")
    if compute.along is not None:
        lines.append(f"along {compute.along.name}")
    if compute.combine is not None:
        lines.append(f"combine {compute.combine}")
    lines += [f"result {'none' if b is None else b.name}" for b in compute.results]
    lines.append("")
    names = _Bodies()
    texts: dict[Expr, str] = {}
    for require in compute.requires:
        lines += names.lets((require.condition,), roots, texts)
        lines.append(f"require {texts[require.condition]} else {require.code}")
    for value in compute.values:
        lines += names.lets((value,), roots, texts)
        lines.append(f"value {texts[value]}")
    return "\n".join(lines) + "\n"


def show_expression(expr: Expr) -> str:
    """One expression, after the names in it."""
    texts: dict[Expr, str] = {}
    lines = _Bodies().lets((expr,), (expr,), texts)
    return "\n".join((*lines, texts[expr]))


def _sizes(sizes: Iterable[Size]) -> Iterator[str]:
    for size in sizes:
        yield f"size {size.name}: {size.low}..{'' if size.high is None else size.high}"


def _role(output: bool) -> str:
    return "output" if output else "input"


def _buffer(role: str, buffer: Buffer) -> str:
    shape, strides = _list(buffer.shape), _list(buffer.strides)
    return f"{role} {buffer.name}: {buffer.dtype}[{shape}] strides [{strides}]"


def _list(values: Iterable[Index]) -> str:
    return ", ".join(index_text(value, {}) for value in values)


def _extents(axes: Iterable[Axis]) -> str:
    return ", ".join(f"{axis.name} < {index_text(axis.extent, {})}" for axis in axes)


# -- indices and constants -------------------------------------------------------------------------


def index_text(value: Index, texts: dict[Expr, str]) -> str:
    """`texts` has those of the computed numbers in it."""
    parts: list[str] = []
    for product, count in value.terms:
        factors = [_atom(atom, texts) for atom in product]
        if abs(count) != 1:
            factors.insert(0, str(abs(count)))
        parts += ["-" if count < 0 else "+", "*".join(factors)]
    if value.constant or not parts:
        parts += ["-" if value.constant < 0 else "+", str(abs(value.constant))]
    sign, first, *rest = parts
    return " ".join(["-" * (sign == "-") + first, *rest])


def _atom(atom: Size | Axis | Div | Mod | Given, texts: dict[Expr, str]) -> str:
    match atom:
        case Size(name) | Axis(name):
            return name
        case Div(top, bottom):
            return f"({index_text(top, texts)} // {index_text(bottom, texts)})"
        case Mod(top, bottom):
            return f"({index_text(top, texts)} % {index_text(bottom, texts)})"
        case Given(value, low, high):
            ends = ["" if end is None else str(end) for end in (low, high)]
            return f"<{texts[value]} in {ends[0]}..{ends[1]}>"


def _number(value: bool | int | float) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and math.isnan(value):
        (bits,) = struct.unpack("Q", struct.pack("d", value))
        return "nan" if bits == 0x7FF8 << 48 else f"nan({bits:#x})"
    return repr(value)


# -- expressions -----------------------------------------------------------------------------------


def _text(expr: Expr, texts: dict[Expr, str]) -> str:
    """`texts` has those of the operands."""
    match expr:
        case Const(dtype, value):
            return f"{_number(value)}:{dtype}"
        case Load(buffer, coords, mask):
            inside = ", ".join(index_text(coord, texts) for coord in coords)
            guard = "" if mask is None else f" if {texts[mask]}"
            return f"{buffer.name}[{inside}{guard}]"
        case Position(value):
            return f"position({index_text(value, texts)})"
        case Op(name, dtype, args):
            listed = [texts[arg] for arg in args]
            if name in OPERATIONS and OPERATIONS[name].result is Result.GIVEN:
                listed.insert(0, dtype.name)
            return f"{name}({', '.join(listed)})"
        case Folded(fold, component):
            return f"folded({fold.name})" if not component else f"folded({fold.name}, {component})"
        case Running(fold, component):
            return (
                f"running({fold.name})" if not component else f"running({fold.name}, {component})"
            )


def _short(expr: Expr) -> bool:
    """Whether its text may stand wherever it is used."""
    match expr:
        case Op():
            return False
        case Load(_, coords, mask):
            return mask is None and not any(coord.computed for coord in coords)
        case Position(value):
            return not value.computed
        case _:
            return True


def _uses(roots: Iterable[Expr]) -> Counter[Expr]:
    """How often each expression below is written where each is written once."""
    roots = [*roots]
    uses = Counter(roots)
    for expr in walk(*roots):
        uses.update(operands(expr))
    return uses


class _Bodies:
    """The text of bodies, and the names that have been given."""

    def __init__(self) -> None:
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"${self.count - 1}"

    def lets(
        self, needed: Iterable[Expr], roots: Iterable[Expr], texts: dict[Expr, str]
    ) -> list[str]:
        """The lines that name what is below those `needed` and used twice below the `roots`."""
        uses = _uses(roots)
        return self.named(needed, {expr for expr, count in uses.items() if count > 1}, texts)

    def named(self, needed: Iterable[Expr], shared: set[Expr], texts: dict[Expr, str]) -> list[str]:
        lines: list[str] = []
        for expr in walk(*needed, skip=texts):
            text = _text(expr, texts)
            if not _short(expr) and (expr in shared or len(text) > LONG):
                name = self.name()
                lines.append(f"{name} = {text}")
                text = name
            texts[expr] = text
        return lines

    def body(
        self, body: tuple[Statement, ...], around: dict[Expr, str], axes: frozenset[Axis]
    ) -> list[str]:
        """The lines of a body; `around` are the texts of what has a name outside of it."""
        below = [_roots(statement) for statement in body]
        shared = _shared_in(body, below, axes, around)
        texts = dict(around)
        lines: list[str] = []
        for statement, roots in zip(body, below, strict=True):
            if isinstance(statement, Loop):
                here = [expr for expr in walk(*roots, skip=texts) if expr in shared]
                lines += self.named(here, shared, texts)
                known = {expr: text for expr, text in texts.items() if text.startswith("$")}
                axis = statement.axis
                lines.append(f"{statement.how.value} {_extents([axis])}:")
                inner = self.body(statement.body, known, axes | {axis}) or ["pass"]
                lines += [f"    {line}" for line in inner]
            else:
                lines += self.named(roots, shared, texts)
                lines.append(_statement(statement, texts))
        return lines


def _roots(statement: Statement) -> list[Expr]:
    """What a statement computes, and those inside of it."""
    return [expr for each in statements((statement,)) for expr in expressions(each)]


def _shared_in(
    body: tuple[Statement, ...],
    below: list[list[Expr]],
    axes: frozenset[Axis],
    around: dict[Expr, str],
) -> set[Expr]:
    """What is named in this body: used more than once, not all in one loop inside of it, and of no
    axis of such a loop.
    """
    uses = _uses(expr for roots in below for expr in roots)
    if not any(isinstance(statement, Loop) for statement in body):
        return {expr for expr, count in uses.items() if count > 1}
    places: dict[Expr, list[int]] = {}
    for number, roots in enumerate(below):
        for expr in walk(*roots, skip=around):
            places.setdefault(expr, []).append(number)
    outside = _outside(places, axes)
    return {
        expr
        for expr, numbers in places.items()
        if uses[expr] > 1
        and expr not in outside
        and not (len(numbers) == 1 and isinstance(body[numbers[0]], Loop))
    }


def _outside(exprs: Iterable[Expr], axes: frozenset[Axis]) -> set[Expr]:
    """Those that have other axes in them; operands come before what uses them."""
    found: set[Expr] = set()
    for expr in exprs:
        own = any(not value.axes <= axes for value in indices(expr))
        if own or any(operand in found for operand in operands(expr)):
            found.add(expr)
    return found


def _statement(statement: Statement, texts: dict[Expr, str]) -> str:
    def guard(mask: Expr | None) -> str:
        return "" if mask is None else f" if {texts[mask]}"

    match statement:
        case Declare(fold):
            dtypes = ", ".join(dtype.name for dtype in fold.dtypes)
            return f"fold {fold.name} = {fold.combine}({dtypes})"
        case Accumulate(fold, values, mask):
            return f"{fold.name} <- {', '.join(texts[value] for value in values)}{guard(mask)}"
        case Store(buffer, coords, value, mask):
            at = ", ".join(index_text(coord, texts) for coord in coords)
            return f"{buffer.name}[{at}] = {texts[value]}{guard(mask)}"
        case Check(condition, code):
            return f"check {texts[condition]} else {code}"
        case Loop():
            raise ValueError("a loop has a body")
