"""Kernels of files that the option `dump` writes, so that they run by themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from straightline.codegen.llvm.host import host
from straightline.codegen.llvm.jit import compile_kernels
from straightline.ir.text import parse
from straightline.kernels.failures import Raised, failing
from straightline.kernels.work import work
from straightline.launch.launcher import kernel_builtin


def load_kernel(
    ir: str,
    *,
    tensors: str | None = None,
    failures: Mapping[int, tuple[str, str, str | None]] | None = None,
) -> Callable[..., None]:
    """What calls the kernel whose text is `ir`.

    `tensors` is the head of a kernel: the shapes of its tensors, where the kernel sees them in
    others. `failures` says what each status is raised as: a type, a message, a line of the model.
    """
    kernel = parse(ir)
    shapes = kernel if tensors is None else parse(tensors)
    called = dataclasses.replace(kernel, buffers=shapes.buffers)
    failed = failing({code: Raised(*raised) for code, raised in (failures or {}).items()})
    code = compile_kernels([kernel], host())
    return kernel_builtin(kernel.name, called, code, failed, work(called))


def not_compared(*values: object) -> None:
    """Stands for what the option `check` puts behind a kernel."""
