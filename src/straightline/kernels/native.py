"""Kernels as builtins of this process, and the graphs that call them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import fx

from straightline.capture import origins
from straightline.codegen.llvm.host import host
from straightline.codegen.llvm.jit import compile_kernels
from straightline.codegen.math.expand import supported
from straightline.config import Config
from straightline.ir.index import Index
from straightline.ir.nodes import Kernel
from straightline.kernels.check import Comparison
from straightline.kernels.compile import Options, all_kept, with_kernels
from straightline.kernels.failures import failing, of_kernel
from straightline.kernels.rebuild import Called
from straightline.kernels.record import (
    CompiledKernel,
    Kept,
    arithmetic,
    found,
    moved,
    source,
)
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
        self.kernels: list[CompiledKernel] = []
        self.kept: list[Kept] = []
        self._options = Options(
            fusion=config.fusion == "on",
            fuel=config.fusion_limit,
            off=switches.off,
            check=config.check,
        )

    def __call__(self, gm: fx.GraphModule, needed: Collection[int]) -> fx.Graph:
        if not self.switches.kernels:
            self.kept += all_kept(gm.graph, "switched off")
            return gm.graph
        built: list[CompiledKernel] = []
        build = functools.partial(_build, built)
        result = with_kernels(gm, needed, build, supported, self._options)
        called = {id(node.target) for node in result.graph.nodes}
        self.kernels += [record for record in built if id(record.call) in called]
        self.kept += result.kept
        return result.graph

    def source(self, call: object) -> str | None:
        """Python that makes one of the kernels again, with the names of `kernels.standalone`."""
        if isinstance(call, Comparison):
            return "not_compared"
        record = found(self.kernels, call)
        return None if record is None else "\n".join(source(record))


def has_work(graph: fx.Graph) -> bool:
    """Whether there is something in a graph that kernels may do."""
    return any(RULES.find(node.target) is not None for node in graph.nodes)


def _build(built: list[CompiledKernel], kernels: Sequence[Kernel], lowered: Lowered) -> Called:
    """Machine code of all kernels of a graph, in one module; what is made of it goes to `built`."""
    target = host()
    code = compile_kernels(kernels, target)
    nodes = {node.name: node for node in lowered.values}

    def called(step: Launch) -> tuple[Callable[..., Any], Sequence[Index]]:
        kernel = dataclasses.replace(step.kernel, buffers=step.tensors)
        effort = work(kernel)
        facts = describe(kernel.name, kernel, effort).facts
        failures = of_kernel(kernel, lowered, nodes)
        call = kernel_builtin(kernel.name, kernel, code, failing(failures), effort)
        done = [nodes[name] for name in step.origins]
        lines = {f"{o.file}:{o.line}": None for n in done for o in origins.all_of(n)}
        modules = {path: None for n in done if (path := origins.module(n)) is not None}
        record = CompiledKernel(
            kernel.name,
            tuple(lines),
            tuple(modules),
            tuple(str(node.target) for node in done),
            moved(step.tensors),
            arithmetic(step.kernel),
            tuple(buffer.name for buffer in step.tensors),
            call,
            step.kernel,
            step.tensors,
            failures,
            target,
        )
        built.append(record)
        return call, facts

    return called
