"""Writes what follows a program's forward: mutations, and backward in its many forms."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from language import Program, Statement


@dataclass(frozen=True)
class Outcome:
    """What eager made of the forward: what `after` may be written about."""

    outputs: tuple[str, ...]
    """Expressions in `out` of the differentiable outputs."""
    wrt: tuple[str, ...]
    tensors: tuple[str, ...]


def write_after(program: Program, outcome: Outcome, rng: random.Random) -> list[Statement]:
    statements: list[Statement] = []
    if outcome.tensors and rng.random() < 0.3:
        statements.append(mutation_between(outcome, rng))
    if program.mode == "grad" and outcome.outputs and outcome.wrt:
        writers: list[Callable[[Outcome, random.Random], list[Statement]]]
        writers = [
            plain_backward,
            plain_backward,
            loss_backward,
            partial_grads,
            second_order,
            twice,
        ]
        statements += rng.choice(writers)(outcome, rng)
    return statements


def write_plain_after(program: Program, outcome: Outcome, rng: random.Random) -> list[Statement]:
    if program.mode != "grad" or not outcome.outputs or not outcome.wrt:
        return []
    return plain_backward(outcome, rng)


def mutation_between(outcome: Outcome, rng: random.Random) -> Statement:
    target = rng.choice(outcome.tensors)
    action = Statement(
        target + rng.choice((".add_(0.5)", ".mul_(0.5)", ".zero_()", ".detach().add_(1.0)"))
    )
    if rng.random() < 0.5:
        return Statement("with torch.no_grad():", (action,))
    return action


def some(items: Sequence[str], rng: random.Random) -> list[str]:
    chosen = rng.sample(list(items), rng.randint(1, len(items)))
    return sorted(chosen)


def tangents(outputs: Sequence[str], rng: random.Random) -> str:
    forms = ("",) * 6 + (", 'expanded'",) * 2 + (", 'transposed'",) * 2 + (", 'unwrapped'",)
    texts = (f"tangent({out}, {seed}{rng.choice(forms)})" for seed, out in enumerate(outputs))
    return "[" + ", ".join(texts) + "]"


def plain_backward(outcome: Outcome, rng: random.Random) -> list[Statement]:
    outputs = some(outcome.outputs, rng)
    call = f"torch.autograd.backward([{', '.join(outputs)}], {tangents(outputs, rng)})"
    return [Statement(call)]


def loss_backward(outcome: Outcome, rng: random.Random) -> list[Statement]:
    outputs = some(outcome.outputs, rng)
    loss = " + ".join(f"({out} * tangent({out}, {seed})).sum()" for seed, out in enumerate(outputs))
    return [Statement(f"({loss}).backward()")]


def twice(outcome: Outcome, rng: random.Random) -> list[Statement]:
    """Two passes through one graph, the second maybe through other outputs."""
    first, second = some(outcome.outputs, rng), some(outcome.outputs, rng)
    return [
        Statement(
            f"torch.autograd.backward([{', '.join(first)}], {tangents(first, rng)}, "
            "retain_graph=True)"
        ),
        Statement(f"torch.autograd.backward([{', '.join(second)}], {tangents(second, rng)})"),
    ]


def partial_grads(outcome: Outcome, rng: random.Random) -> list[Statement]:
    outputs, wrt = some(outcome.outputs, rng), some(outcome.wrt, rng)
    first = (
        f"torch.autograd.grad([{', '.join(outputs)}], [{', '.join(wrt)}], "
        f"{tangents(outputs, rng)}, allow_unused=True, retain_graph=True)"
    )
    rest = some(outcome.outputs, rng)
    return [
        Statement(f'yield "grad", {first}'),
        *([Statement(f"torch.autograd.backward([{', '.join(rest)}], {tangents(rest, rng)})")]
          if rng.random() < 0.5 else []),
    ]  # fmt: skip


def second_order(outcome: Outcome, rng: random.Random) -> list[Statement]:
    outputs, wrt = some(outcome.outputs, rng), some(outcome.wrt, rng)
    inputs = f"[{', '.join(wrt)}]"
    first = (
        f"grads = torch.autograd.grad([{', '.join(outputs)}], {inputs}, {tangents(outputs, rng)}, "
        "allow_unused=True, create_graph=True)"
    )
    statements = [Statement(first), Statement('yield "grad", grads')]
    if rng.random() < 0.2:
        statements += [
            Statement(f"grads = second(grads, {inputs}, create_graph=True)"),
            Statement('yield "second", grads'),
        ]
        return [*statements, Statement(f'yield "third", second(grads, {inputs})')]
    return [*statements, Statement(f'yield "second", second(grads, {inputs})')]
