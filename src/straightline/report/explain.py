"""What runs for something compiled, in words: its kernels, and the operations that are none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from straightline.kernels.record import CompiledKernel, Kept


def explain(kernels: Sequence[CompiledKernel], kept: Sequence[Kept]) -> str:
    """A line for each kernel, and one for each operation that runs as ATen, with the reason."""
    return "\n".join([*_kernels(kernels), *_kept(kept)]) + "\n"


def _kernels(kernels: Sequence[CompiledKernel]) -> Iterator[str]:
    yield f"{len(kernels)} kernel{'s' if len(kernels) != 1 else ''}"
    for kernel in kernels:
        yield f"  {kernel.name}: {', '.join(map(_short, kernel.ops))}"
        sizes = [
            f"{amount:,} {unit}"
            for amount, unit in ((kernel.bytes, "bytes"), (kernel.flops, "flops"))
            if amount is not None
        ]
        where = [*_files(kernel.lines), *kernel.modules, *sizes]
        yield f"    {'; '.join(where)}"


def _kept(kept: Sequence[Kept]) -> Iterator[str]:
    yield f"{len(kept)} operation{'s' if len(kept) != 1 else ''} as ATen"
    lines: dict[tuple[str, str], list[str]] = {}
    for each in kept:
        lines.setdefault((each.op, each.reason), []).extend([each.line] if each.line else [])
    for (op, reason), of_op in lines.items():
        where = "; ".join(_files(dict.fromkeys(of_op)))
        yield f"  {_short(op)}: {reason}{f' ({where})' if where else ''}"


def _short(op: str) -> str:
    return op.removeprefix("aten.").removesuffix(".default")


def _files(lines: Iterable[str]) -> Iterator[str]:
    """`net.py:3, 5` for lines of each file."""
    numbers: dict[str, list[str]] = {}
    for line in lines:
        file, _, number = line.rpartition(":")
        numbers.setdefault(Path(file).name, []).append(number)
    yield from (f"{file}:{', '.join(of_file)}" for file, of_file in numbers.items())
