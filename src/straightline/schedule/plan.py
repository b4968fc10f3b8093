"""The schedule: from computes to kernels, in four steps: inline, split, group, write loops."""

from __future__ import annotations

import re
from collections.abc import Mapping

from straightline.ir.nodes import Buffer
from straightline.ir.rewrite import simplify_kernel
from straightline.schedule.fuel import Fuel
from straightline.schedule.group import Group, alone, groups
from straightline.schedule.inline import inline
from straightline.schedule.loops import kernel
from straightline.schedule.program import (
    External,
    Launch,
    Plan,
    Program,
    live,
    loads,
    reads,
    roots,
)
from straightline.schedule.split import split
from straightline.schedule.unit import item


def plan(program: Program, *, fusion: bool = True, fuel: int | None = None) -> Plan:
    """What runs for a program. Without `fusion` each compute is a kernel; `fuel` limits how many
    decisions are taken.
    """
    budget = Fuel(fuel if fusion else 0)
    program = split(live(inline(live(program), budget)), budget)
    placed = groups(program, budget) if fusion else _each_alone(program)
    needed = _needed(placed, program.needed)
    known = _buffers(program)
    steps: list[Launch | External] = []
    made: dict[str, Buffer] = {}
    for number, group in enumerate(placed):
        if isinstance(group, External):
            steps.append(group)
            continue
        wanted = needed[number]
        count = sum(isinstance(step, Launch) for step in steps)
        written = simplify_kernel(kernel(_name(count, group, wanted), group, wanted))
        origins = dict.fromkeys(name for one in group.items for name in one.compute.origins)
        tensors = tuple(known[buffer.name] for buffer in written.buffers)
        steps.append(Launch(written, tuple(origins), tensors))
        made |= {name: known[name] for name in written.outputs}
    return Plan(tuple(steps), made, tuple(budget.decisions))


def _buffers(program: Program) -> dict[str, Buffer]:
    """The buffers that computes read and make, by name."""
    found: dict[str, Buffer] = {}
    for step in program.steps:
        if not isinstance(step, External):
            found |= {load.buffer.name: load.buffer for load in loads(*roots(step))}
            found |= {buffer.name: buffer for buffer in step.buffers}
    return found


def _each_alone(program: Program) -> tuple[Group | External, ...]:
    return tuple(s if isinstance(s, External) else alone(item(s)) for s in program.steps)


def _needed(
    placed: tuple[Group | External, ...], finally_: frozenset[str]
) -> Mapping[int, frozenset[str]]:
    """For each group, the buffers of its own that something after it reads."""
    later = set(finally_)
    found: dict[int, frozenset[str]] = {}
    for number in reversed(range(len(placed))):
        match placed[number]:
            case External(_, names):
                later |= names
            case Group() as group:
                found[number] = frozenset(later.intersection(group.names))
                later |= {name for one in group.items for name in reads(one.compute)}
    return found


def _name(number: int, group: Group, needed: frozenset[str]) -> str:
    """What the kernel is called everywhere: after what it leaves behind."""
    results = [re.sub(r"_\d+$", "", name).strip("_") for name in group.names if name in needed]
    return "_".join([f"k{number}", *list(dict.fromkeys(results))[-3:]])
