"""What is known while the statements of a kernel are written out."""

from __future__ import annotations

from dataclasses import dataclass, field

from straightline.codegen.llvm.plan import Plan
from straightline.codegen.llvm.scopes import Scopes, Value
from straightline.ir.index import Axis
from straightline.ir.nodes import Fold, Kernel


@dataclass(frozen=True)
class Vector:
    """The loop that runs several positions at a time: `count` vectors of `lanes` each.

    `active` are in each part the lanes that stand for a position; None where all do.
    """

    axis: Axis
    lanes: int
    count: int
    active: tuple[str | None, ...]


@dataclass
class Running:
    """A fold under way: for each number of lanes its components, each with its parts.

    `loops` is how many loops it was declared in.
    """

    loops: int
    slots: dict[int, list[list[str]]]


@dataclass
class Context:
    kernel: Kernel
    plan: Plan
    scopes: Scopes
    written: frozenset[str]
    axes: dict[Axis, Value] = field(default_factory=dict)
    loops: list[Axis] = field(default_factory=list)
    vector: Vector | None = None
    straight: dict[Axis, Vector] = field(default_factory=dict)
    inside: bool = False  # of a loop that is done in vectors, if in its tail one position at a time
    folds: dict[Fold, Running] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        """The lanes and the number of parts of what is computed for each position."""
        return (self.vector.lanes, self.vector.count) if self.vector else (1, 1)
