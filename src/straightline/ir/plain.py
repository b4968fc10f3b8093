"""The plainest kernel of a compute: serial loops, nothing shared with other computes."""

from __future__ import annotations

from collections.abc import Iterable

from straightline.ir.index import Axis, Size, index
from straightline.ir.nodes import (
    Accumulate,
    Buffer,
    Check,
    Compute,
    Declare,
    Expr,
    Fold,
    Folded,
    How,
    Kernel,
    Load,
    Loop,
    Running,
    Statement,
    Store,
    fold_types,
    indices,
    walk,
)


def plain_kernel(compute: Compute, name: str = "kernel") -> Kernel:
    """Checks in loops of their own, then the elements in serial loops."""
    coords = tuple(index(axis) for axis in compute.axes)

    def stores(values: Iterable[Expr]) -> tuple[Statement, ...]:
        pairs = zip(compute.results, values, strict=True)
        return tuple(Store(buffer, coords, value) for buffer, value in pairs if buffer is not None)

    checks = tuple(Check(require.condition, require.code) for require in compute.requires)
    body = _loops((*compute.axes, *compute.over), checks) if checks else ()
    if compute.combine is None:
        body += _loops(compute.axes, stores(compute.values))
    else:
        dtypes = fold_types(compute.combine, compute.values[0].dtype)
        fold = Fold("fold", compute.combine, dtypes)
        components = range(len(dtypes))
        accumulate = Accumulate(fold, compute.values)
        if compute.along is None:
            inner = _loops(compute.over, (accumulate,))
            ends = stores(Folded(fold, component) for component in components)
            body += _loops(compute.axes, (Declare(fold), *inner, *ends))
        else:
            outer = tuple(axis for axis in compute.axes if axis is not compute.along)
            ends = stores(Running(fold, component) for component in components)
            inner = _loops((compute.along,), (accumulate, *ends))
            body += _loops(outer, (Declare(fold), *inner))
    roots = [*compute.values, *(require.condition for require in compute.requires)]
    outputs = compute.buffers
    buffers = buffers_of(compute)
    return Kernel(
        name,
        buffers,
        frozenset(buffer.name for buffer in outputs),
        sizes_of(buffers, (*compute.axes, *compute.over), roots),
        body,
    )


def _loops(axes: tuple[Axis, ...], body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    for axis in reversed(axes):
        body = (Loop(axis, How.SERIAL, body),)
    return body


def buffers_of(compute: Compute) -> tuple[Buffer, ...]:
    """What it loads from, then its results."""
    roots = [*compute.values, *(require.condition for require in compute.requires)]
    loaded = (expr.buffer for expr in walk(*roots) if isinstance(expr, Load))
    return tuple(dict.fromkeys((*loaded, *compute.buffers)))


def sizes_of(
    buffers: Iterable[Buffer], axes: Iterable[Axis], roots: Iterable[Expr]
) -> tuple[Size, ...]:
    """The sizes that they mention, in order of their names."""
    found: set[Size] = set()
    values = [value for buffer in buffers for value in (*buffer.shape, *buffer.strides)]
    values += [axis.extent for axis in axes]
    values += [value for expr in walk(*roots) for value in indices(expr)]
    for value in values:
        found.update(atom for atom in value.atoms if isinstance(atom, Size))
    return tuple(sorted(found, key=lambda size: size.name))
