"""Kernels run on numpy arrays: by the interpreter, and as machine code for a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from straightline.codegen.llvm.call import function
from straightline.codegen.llvm.emit import takes_range
from straightline.codegen.llvm.host import host, runs_here
from straightline.codegen.llvm.jit import Program, compile_kernels
from straightline.codegen.llvm.plan import passed_scratch
from straightline.codegen.target import AVX2, SSE4, Target
from straightline.ir import index as ix
from straightline.ir.arithmetic import MEMORY
from straightline.ir.dtypes import DType
from straightline.ir.index import Axis, Index, Size, evaluate, index
from straightline.ir.interpret import interpret
from straightline.ir.nodes import Buffer, Expr, How, Kernel, Load, Loop, Statement, Store

# This machine, and the lower levels that it runs.
TARGETS = [host(), *(each for each in (SSE4, AVX2) if runs_here(each) and each.name != host().name)]
IDS = ["host", *(target.name for target in TARGETS[1:])]

Arrays = Mapping[str, np.ndarray]


# Programs in use, with the kernels that name them.
_compiled: dict[tuple[int, str], tuple[Kernel, Program]] = {}


def compiled(kernel: Kernel, target: Target) -> Program:
    """Its program, kept while tests run the same few kernels."""
    key = (id(kernel), target.name)
    if key not in _compiled:
        if len(_compiled) > 10:
            _compiled.clear()
        _compiled[key] = kernel, compile_kernels([kernel], target)
    return _compiled[key][1]


def run(
    kernel: Kernel,
    arrays: Arrays,
    sizes: Mapping[str, int] | None = None,
    target: Target | None = None,
    lo: int = 0,
    hi: int | None = None,
) -> int:
    """The kernel as machine code on the arrays' memory; gives its status."""
    numbers = sizes or {}
    program = compiled(kernel, target or host())

    def number(value: Index) -> int:
        return int(evaluate(value, lambda atom: numbers[atom.name]))  # type: ignore[union-attr]

    scratch = []
    for buffer in passed_scratch(kernel):
        last = sum(
            (number(n) - 1) * number(s) for n, s in zip(buffer.shape, buffer.strides, strict=True)
        )
        scratch.append(np.zeros(max(last, 0) + 1, MEMORY[buffer.dtype]))
    if hi is None and takes_range(kernel):
        (loop,) = kernel.body
        assert isinstance(loop, Loop)
        hi = number(loop.axis.extent)
    memory = [*(arrays[buffer.name] for buffer in kernel.buffers), *scratch]
    return function(program, kernel.name)(
        [array.ctypes.data for array in memory],
        [numbers[size.name] for size in kernel.sizes],
        lo,
        hi or 0,
    )


def both(
    kernel: Kernel,
    arrays: Arrays,
    sizes: Mapping[str, int] | None = None,
    target: Target | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What the interpreter and the machine code leave in memory; both end with status 0."""
    expected = {name: array.copy() for name, array in arrays.items()}
    found = {name: array.copy() for name, array in arrays.items()}
    assert interpret(kernel, expected, sizes or {}) == 0
    assert run(kernel, found, sizes, target) == 0
    return expected, found


def buffer(name: str, dtype: DType, *shape: ix.Indexlike) -> Buffer:
    """A contiguous one."""
    strides = [index(1)]
    for extent in shape[:0:-1]:
        strides.insert(0, ix.mul(strides[0], extent))
    return Buffer(name, dtype, tuple(map(index, shape)), tuple(strides) if shape else ())


def at(source: Buffer, *coords: ix.Indexlike) -> Load:
    return Load(source, tuple(map(index, coords)))


def put(target: Buffer, coords: Sequence[ix.Indexlike], value: Expr) -> Store:
    return Store(target, tuple(map(index, coords)), value)


def kernel(
    name: str,
    body: Sequence[Statement],
    buffers: Sequence[Buffer],
    outputs: Sequence[Buffer],
    sizes: Sequence[Size] = (),
    scratch: Sequence[Buffer] = (),
) -> Kernel:
    every = (*buffers, *outputs)
    names = frozenset(each.name for each in outputs)
    return Kernel(name, every, names, tuple(sizes), tuple(body), tuple(scratch))


def mapped(name: str, value: Expr, axis: Axis, buffers: Sequence[Buffer], out: Buffer) -> Kernel:
    """`out` at each position of the axis."""
    loop = Loop(axis, How.VECTOR, (put(out, [axis], value),))
    sizes = [size for size in axis.extent.atoms if isinstance(size, Size)]
    return kernel(name, [loop], buffers, [out], sizes)
