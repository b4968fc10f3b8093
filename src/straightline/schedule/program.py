"""What a scheduler is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from straightline.ir.index import Size
from straightline.ir.nodes import Buffer, Compute, Expr, Kernel, Load, indices, walk


@dataclass(frozen=True)
class External:
    """Something else that runs between kernels: it reads these buffers and makes those.

    `tells` are the sizes that are not known before.
    """

    name: str
    reads: frozenset[str]
    writes: frozenset[str]
    tells: frozenset[Size] = frozenset()


Step: TypeAlias = Compute | External


@dataclass(frozen=True)
class Program:
    """Steps in an order that they can run in. `needed` names the buffers wanted afterwards."""

    steps: tuple[Step, ...]
    needed: frozenset[str]


@dataclass(frozen=True)
class Launch:
    """One kernel, and the names of the operations that it does, in their order.

    `tensors` are its buffers in the shapes of their tensors; the kernel may see them as rows.
    """

    kernel: Kernel
    origins: tuple[str, ...]
    tensors: tuple[Buffer, ...]


@dataclass(frozen=True)
class Decision:
    """One thing that was decided, in words: `what` became of `name`, and why."""

    name: str
    what: str
    why: str


@dataclass(frozen=True)
class Plan:
    """What runs, in order. `made` are the buffers that kernels write, and others read."""

    steps: tuple[Launch | External, ...]
    made: Mapping[str, Buffer]
    decisions: tuple[Decision, ...]

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(step.kernel for step in self.steps if isinstance(step, Launch))


def roots(compute: Compute) -> tuple[Expr, ...]:
    """The expressions that a compute evaluates."""
    return (*compute.values, *(each.condition for each in compute.requires))


def loads(*expressions: Expr) -> Iterator[Load]:
    """Every load below, once."""
    return (node for node in walk(*expressions) if isinstance(node, Load))


def reads(step: Step) -> frozenset[str]:
    """The names of the buffers that a step reads."""
    match step:
        case External(_, names):
            return names
        case Compute():
            return frozenset(load.buffer.name for load in loads(*roots(step)))


def sizes(compute: Compute) -> frozenset[Size]:
    """The sizes that a compute depends on."""
    found: set[Size] = set()
    for axis in (*compute.axes, *compute.over):
        found.update(atom for atom in axis.extent.atoms if isinstance(atom, Size))
    for node in walk(*roots(compute)):
        for where in indices(node):
            for atom in where.atoms:
                if isinstance(atom, Size):
                    found.add(atom)
    return frozenset(found)


def writes(step: Step) -> frozenset[str]:
    """The names of the buffers that a step makes."""
    match step:
        case External(_, _, names, _):
            return names
        case Compute():
            return frozenset(buffer.name for buffer in step.buffers)


def readers(steps: Sequence[Step]) -> dict[str, list[int]]:
    """For each buffer that is read, the positions of the steps that read it."""
    found: dict[str, list[int]] = {}
    for position, step in enumerate(steps):
        for name in reads(step):
            found.setdefault(name, []).append(position)
    return found


def live(program: Program) -> Program:
    """The program without computes whose results nothing wants.

    One that checks something stays: it may have to stop the program.
    """
    wanted = set(program.needed)
    kept: list[Step] = []
    for step in reversed(program.steps):
        checks = isinstance(step, Compute) and bool(step.requires)
        if isinstance(step, External) or checks or writes(step) & wanted:
            kept.append(step)
            wanted |= reads(step)
    return Program(tuple(reversed(kept)), program.needed)
