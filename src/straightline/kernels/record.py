"""What can be known of a kernel that was compiled, and of the operations that none does."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from straightline.codegen.llvm.emit import emit
from straightline.codegen.llvm.jit import assembly
from straightline.codegen.target import Target
from straightline.ir import text
from straightline.ir.index import ONE, Axis, Index, mul
from straightline.ir.nodes import (
    Accumulate,
    Buffer,
    Check,
    Expr,
    Kernel,
    Loop,
    Op,
    Statement,
    Store,
    walk,
)
from straightline.kernels.failures import Raised
from straightline.schedule.cost import known


@dataclass(frozen=True, eq=False)
class CompiledKernel:
    """One kernel of a program.

    `lines` are those of the model that it does, `file:line`; `modules` the paths of the modules
    that they belong to, where Dynamo tells; `ops` the operations, in order. `bytes` are those of
    the tensors that it reads and writes, each counted once; `flops` the arithmetic operations on
    floats, with a function such as `exp` counted as one and a fused multiply-add as two. Both are
    None where they depend on sizes that are known only when it is called. `call` is what the
    program calls: it takes the tensors of `tensors` in this order, and then the numbers that it
    depends on.
    """

    name: str
    lines: tuple[str, ...]
    modules: tuple[str, ...]
    ops: tuple[str, ...]
    bytes: int | None
    flops: int | None
    tensors: tuple[str, ...]
    call: Callable[..., None] = field(repr=False)
    kernel: Kernel = field(repr=False)
    shapes: tuple[Buffer, ...] = field(repr=False)
    failures: Mapping[int, Raised] = field(repr=False)
    target: Target = field(repr=False)

    @functools.cached_property
    def ir(self) -> str:
        """The kernel as text of the loop IR."""
        return text.show(self.kernel)

    @functools.cached_property
    def llvm(self) -> str:
        """The same as LLVM IR for this machine."""
        return emit([self.kernel], self.target)

    @functools.cached_property
    def assembly(self) -> str:
        """The same as assembly of this machine."""
        return assembly(self.llvm, self.target)

    @property
    def header(self) -> str | None:
        """Text of its tensors, where it sees them in other shapes than they have."""
        if self.shapes == self.kernel.buffers:
            return None
        return text.show(dataclasses.replace(self.kernel, buffers=self.shapes, body=()))


@dataclass(frozen=True)
class Kept:
    """An operation that runs as it is: on which line of the model, and why."""

    op: str
    line: str | None
    reason: str


def moved(shapes: Iterable[Buffer]) -> int | None:
    """The bytes of these buffers; what several positions share is counted once."""
    total = 0
    for buffer in shapes:
        sized = zip(buffer.shape, buffer.strides, strict=True)
        elements = known(extent for extent, stride in sized if stride is not _ZERO)
        if elements is None:
            return None
        total += elements * buffer.dtype.bytes
    return total


_ZERO = mul(ONE, 0)


def arithmetic(kernel: Kernel) -> int | None:
    """The arithmetic operations on floats of a call."""
    total = 0
    for count, times in _counts(kernel.body, ONE):
        if count:
            if not times.is_constant:
                return None
            total += count * times.constant
    return total


def _counts(body: Iterable[Statement], times: Index) -> Iterator[tuple[int, Index]]:
    """Operations, and how often they are done."""
    for statement in body:
        match statement:
            case Loop(Axis(_, extent), _, inside):
                yield from _counts(inside, mul(times, extent))
            case Store(_, _, value, _):
                yield _operations(value), times
            case Accumulate(_, values, _):
                floats = sum(value.dtype.is_float for value in values)
                yield _operations(*values) + floats, times
            case Check(condition, _):
                yield _operations(condition), times
            case _:
                pass


# These move or choose numbers, and compute none.
_FREE = frozenset({"cast", "select", "bitcast"})


def _operations(*roots: Expr) -> int:
    return sum(
        2 if node.name == "fma" else 1
        for node in walk(*roots)
        if isinstance(node, Op) and node.dtype.is_float and node.name not in _FREE
    )


def source(record: CompiledKernel) -> Iterator[str]:
    """Lines of Python that make `record.call` again: an expression, once it is imported."""
    yield "load_kernel("
    yield f'    """{record.ir}""",'
    if record.header is not None:
        yield f'    tensors="""{record.header}""",'
    if record.failures:
        yield "    failures={"
        for code, raised in record.failures.items():
            yield f"        {code}: {dataclasses.astuple(raised)!r},"
        yield "    },"
    yield ")"


def found(records: Iterable[CompiledKernel], call: Any) -> CompiledKernel | None:
    """The kernel that `call` calls."""
    return next((record for record in records if record.call is call), None)
