"""Kernels as builtins of this process, and the graphs that call them."""

from __future__ import annotations

import builtins
import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from torch import fx

from straightline.capture import origins
from straightline.codegen.llvm.host import host
from straightline.codegen.llvm.jit import compile_kernels
from straightline.codegen.math.expand import expand_kernel, supported
from straightline.config import Config
from straightline.ir.index import Index
from straightline.ir.nodes import Kernel
from straightline.kernels.compile import Options, with_kernels
from straightline.kernels.rebuild import Called
from straightline.kernels.work import work
from straightline.launch.descriptor import describe
from straightline.launch.launcher import kernel_builtin
from straightline.lower.graph import Lowered
from straightline.lower.rules import RULES
from straightline.schedule.program import Launch
from straightline.switches import Consulted


class Lowering:
    """Puts kernels into the graphs of one program."""

    def __init__(self, config: Config, switches: Consulted) -> None:
        self.switches = switches
        self._options = Options(
            fusion=config.fusion == "on", fuel=config.fusion_limit, off=switches.off
        )

    def __call__(self, gm: fx.GraphModule, needed: Collection[int]) -> fx.Graph:
        if not self.switches.kernels:
            return gm.graph
        return with_kernels(gm, needed, build, supported, self._options)


def has_work(graph: fx.Graph) -> bool:
    """Whether there is something in a graph that kernels may do."""
    return any(RULES.find(node.target) is not None for node in graph.nodes)


def build(kernels: Sequence[Kernel], lowered: Lowered) -> Called:
    """Machine code of all kernels of a program, in one module."""
    target = host()
    expanded = [expand_kernel(kernel) for kernel in kernels]
    code = compile_kernels(expanded, target)
    lines = {node.name: origins.origin(node) for node in lowered.values}
    failed = _failed(lowered, lines)

    def called(step: Launch) -> tuple[Callable[..., Any], Sequence[Index]]:
        kernel = dataclasses.replace(step.kernel, buffers=step.tensors)
        effort = work(kernel)
        facts = describe(kernel.name, kernel, effort).facts
        return kernel_builtin(kernel.name, kernel, code, failed, effort), facts

    return called


def _failed(
    lowered: Lowered, lines: Mapping[str, origins.Origin | None]
) -> Callable[[int], BaseException]:
    """What a kernel's status is raised as: eager's error, with the line of the model."""

    def failed(status: int) -> BaseException:
        node, failure = lowered.failures[status - 1]
        error: BaseException = getattr(builtins, failure.error)(failure.message)
        where = lines.get(node)
        if where is not None:
            error.add_note(f"raised by a kernel, for {where.file}:{where.line}: {where.text}")
        return error

    return failed
