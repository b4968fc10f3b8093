"""Makes a failing program smaller while it keeps failing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from language import Program, Statement


def shrink(program: Program, still_fails: Callable[[Program], bool], budget: int = 150) -> Program:
    """The smallest program found within `budget` tries, each of which `still_fails` decides.

    Greedy: takes the first smaller program that fails and starts over; the result may still have
    a smaller one, but none that is one removal away unless the budget ran out.
    """
    tries = 0
    progress = True
    while progress:
        progress = False
        for candidate in smaller(program):
            if tries >= budget:
                return program
            tries += 1
            if still_fails(candidate):
                program, progress = candidate, True
                break
    return program


def smaller(program: Program) -> Iterator[Program]:
    """Programs one step smaller, those that remove most first."""
    if len(program.sizes) > 1:
        yield replace(program, sizes=program.sizes[:1], reuse=False)
        if len(program.sizes) > 2:
            yield replace(program, sizes=program.sizes[:-1])
    if program.reuse:
        yield replace(program, reuse=False)
    if program.dynamic is not False:
        yield replace(program, dynamic=False)
    if program.after:
        yield replace(program, after=())
    for after in without_one(program.after):
        yield replace(program, after=after)
    for body in without_one(program.body):
        yield replace(program, body=body)
    for index in range(len(program.outputs)):
        yield without_output(program, index)
    for index in range(len(program.arguments)):
        arguments = program.arguments[:index] + program.arguments[index + 1 :]
        yield replace(program, arguments=arguments)
    for name in program.extra:
        yield replace(program, extra=tuple(other for other in program.extra if other != name))
    for inputs in without_one(program.inputs):
        yield replace(program, inputs=inputs)
    yield from bypassed(program)
    for index, output in enumerate(program.outputs):
        simple = re.match(r"\w+", output)
        if simple and simple.group() != output:
            outputs = (*program.outputs[:index], simple.group(), *program.outputs[index + 1 :])
            yield replace(program, outputs=outputs)
    if program.mode != "grad":
        yield replace(program, mode="grad")


def without_one(statements: Sequence[Statement]) -> Iterator[tuple[Statement, ...]]:
    """The statements less one, last first; or with a block replaced by its lines."""
    for index in reversed(range(len(statements))):
        before, after = tuple(statements[:index]), tuple(statements[index + 1 :])
        yield before + after
        statement = statements[index]
        if statement.body:
            yield before + statement.body + after
            for body in without_one(statement.body):
                if body:
                    yield (*before, replace(statement, body=body), *after)


def without_output(program: Program, index: int) -> Program:
    outputs = program.outputs[:index] + program.outputs[index + 1 :]

    def renumber(match: re.Match[str]) -> str:
        number = int(match.group(1))
        return f"out[{number - 1 if number > index else number}]"

    after = tuple(rewritten(statement, r"\bout\[(\d+)\]", renumber) for statement in program.after)
    return replace(program, outputs=outputs, after=after)


def rewritten(
    statement: Statement, pattern: str, replacement: str | Callable[[re.Match[str]], str]
) -> Statement:
    body = tuple(rewritten(inner, pattern, replacement) for inner in statement.body)
    return Statement(re.sub(pattern, replacement, statement.text), body)


def bypassed(program: Program) -> Iterator[Program]:
    """Each top-level assignment removed, its name replaced by one that it was computed from."""
    for index, statement in enumerate(program.body):
        assigned = re.match(r"(\w+) = (.*)", statement.text)
        if not assigned:
            continue
        name, expression = assigned.groups()
        for operand in dict.fromkeys(re.findall(r"\b(?:[av]|leaf|base)\d+\b", expression)):
            pattern = rf"\b{name}\b"
            rest = (rewritten(later, pattern, operand) for later in program.body[index + 1 :])
            outputs = tuple(re.sub(pattern, operand, output) for output in program.outputs)
            yield replace(program, body=(*program.body[:index], *rest), outputs=outputs)
