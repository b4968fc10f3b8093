"""What a generated program is: its parts, and their text as a module of Python.

MODE, DYNAMIC, SIZES, REUSE    how it is called
inputs(n)                      -> (arguments, other tensors to watch), both by name
program(...)                   the function to compile
after(args, extra, out)        what happens between and in backward; yields what it sees
"""

from __future__ import annotations

import linecache
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from vocabulary import HELPERS, TWO_TENSOR

Values: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Statement:
    """One line, or the header of a block with its lines."""

    text: str
    body: tuple[Statement, ...] = ()

    def lines(self) -> Iterator[str]:
        yield self.text
        for statement in self.body:
            for line in statement.lines():
                yield "    " + line


@dataclass(frozen=True)
class Program:
    """A whole test: inputs, the function, how it is called, and what follows."""

    seed: int
    mode: str
    dynamic: bool | None
    reuse: bool
    sizes: tuple[int, ...]
    inputs: tuple[Statement, ...]
    arguments: tuple[tuple[str, str], ...]
    """Parameter name and the expression of its value in `inputs`."""
    extra: tuple[str, ...]
    body: tuple[Statement, ...]
    outputs: tuple[str, ...]
    after: tuple[Statement, ...]

    def source(self) -> str:
        body = [*lines_of(self.body), f"return {tuple_of(self.outputs)}"]
        text = "\n".join(
            [
                lines_block([*lines_of(self.inputs), self._inputs_result()], "def inputs(n):"),
                lines_block(body, f"def program({', '.join(name for name, _ in self.arguments)}):"),
                lines_block(self._after_lines(), "def after(args, extra, out):"),
            ]
        )
        helpers = [definition for name, definition in HELPERS.items() if name in text]
        head = "\n".join(
            [
                f"# seed {self.seed}",
                "import torch",
                *(["import torch.nn.functional as F"] if "F." in text else []),
                *([TWO_TENSOR] if "TwoTensor" in text + "".join(helpers) else []),
                "",
                f"MODE = {self.mode!r}",
                f"DYNAMIC = {self.dynamic!r}",
                f"SIZES = {self.sizes!r}",
                f"REUSE = {self.reuse!r}",
            ]
        )
        return "\n\n".join([head, *helpers, text])

    def _inputs_result(self) -> str:
        arguments = ", ".join(f'"{name}": {value}' for name, value in self.arguments)
        extra = ", ".join(f'"{name}": {name}' for name in self.extra)
        return f"return {{{arguments}}}, {{{extra}}}"

    def _after_lines(self) -> list[str]:
        return lines_of(self.after) or ["yield from ()"]


def lines_of(statements: Sequence[Statement]) -> list[str]:
    return [line for statement in statements for line in statement.lines()]


def lines_block(lines: Sequence[str], header: str) -> str:
    return header + "\n" + textwrap.indent("\n".join(lines), "    ") + "\n"


def tuple_of(items: Sequence[str]) -> str:
    return "(" + ", ".join(items) + ("," if len(items) == 1 else "") + ")"


def load(source: str, name: str) -> Values:
    """Execute the source as a module of that name; its lines show in tracebacks."""
    filename = f"<fuzz {name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    module: Values = {"__name__": f"fuzz_{name}"}
    exec(compile(source, filename, "exec"), module)
    return module


def grad_mode(mode: str) -> Any:
    """The context a program of this mode is called in."""
    match mode:
        case "grad":
            return torch.enable_grad()
        case "no_grad":
            return torch.no_grad()
        case "inference":
            return torch.inference_mode()
    raise ValueError(mode)
