"""The machine that we run on."""

from __future__ import annotations

import os
from functools import cache

import llvmlite.binding as llvm

from straightline.codegen.target import Target, best, named, runs_on, tuned


@cache
def initialize() -> None:
    """LLVM's own set-up, once: every target it carries, since some are only written out."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()


def version() -> str:
    """LLVM's version."""
    return ".".join(map(str, llvm.llvm_version_info))


@cache
def features() -> frozenset[str]:
    """What the CPU reports, in LLVM's words."""
    return frozenset(name for name, there in llvm.get_host_cpu_features().items() if there)


def architecture() -> str:
    triple: str = llvm.get_process_triple()
    return triple.partition("-")[0]


def runs_here(target: Target) -> bool:
    return runs_on(target, architecture(), features())


@cache
def host() -> Target:
    """The target for this machine; an error if LLVM has no level of ours for it."""
    level = best(architecture(), features())
    if level is None:
        raise RuntimeError(f"no kernels for {llvm.get_process_triple()}")
    return tuned(
        level,
        llvm.get_process_triple(),
        llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(),
        os.cpu_count() or 1,
    )


def chosen(name: str | None = None) -> Target:
    """The target with this name, if this machine runs it; without one the machine itself."""
    if name is None:
        return host()
    target = named(name)
    if not runs_here(target):
        raise ValueError(f"this machine does not run code for {name}; it is {host().name}")
    return target
