"""Reading the text of the loop IR, see `text`."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import TypeVar

from straightline.ir.dtypes import BY_NAME, DType
from straightline.ir.index import Atom, Axis, Div, Given, Index, Mod, Product, Size
from straightline.ir.nodes import (
    Accumulate,
    Buffer,
    Check,
    Compute,
    Const,
    Declare,
    Expr,
    Fold,
    Folded,
    How,
    Kernel,
    Load,
    Loop,
    Position,
    Require,
    Running,
    Statement,
    Store,
    op,
)
from straightline.ir.ops import COMBINES, OPERATIONS, SELECT, Result

T = TypeVar("T")

_TOKEN = re.compile(
    r"""
    (?P<const>-?(?:nan(?:\(0x[0-9a-f]+\))?|inf|true|false|\d+(?:\.\d+)?(?:e[+-]?\d+)?):[a-z]+\d+)
    |(?P<number>\d+)
    |(?P<word>[^\W\d]\w*)
    |(?P<name>\$\d+)
    |(?P<symbol>//|\.\.|<-|[][()<>,:*+=%-])
    |(?P<space>\s+)
    |(?P<other>.)
    """,
    re.VERBOSE,
)


class ParseError(Exception):
    """The text is none of a kernel: in which line, and what was expected there."""

    def __init__(self, line: int, expected: str, found: str) -> None:
        super().__init__(f"line {line}: expected {expected}, found {found or 'the end'}")
        self.line = line


def parse(text: str) -> Kernel:
    """The kernel that `text.show` shows so."""
    return _Parser(text).kernel()


def parse_compute(text: str) -> Compute:
    """The compute that `text.show_compute` shows so."""
    return _Parser(text).compute()


class _Line:
    """The tokens of a line, read from left to right."""

    def __init__(self, number: int, text: str) -> None:
        self.number = number
        self.indent = len(text) - len(text.lstrip(" "))
        matches = [match for match in _TOKEN.finditer(text) if match.lastgroup != "space"]
        self.tokens = [(match.lastgroup or "", match.group()) for match in matches]
        self.at = 0

    def peek(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.tokens[at][1] if at < len(self.tokens) else ""

    def kind(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def error(self, expected: str) -> ParseError:
        return ParseError(self.number, expected, repr(self.peek()) if self.peek() else "")

    def take(self, kind: str, expected: str) -> str:
        if self.kind() != kind:
            raise self.error(expected)
        self.at += 1
        return self.tokens[self.at - 1][1]

    def accept(self, text: str) -> bool:
        found = self.peek() == text
        self.at += found
        return found

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.error(repr(text))

    def word(self, expected: str) -> str:
        return self.take("word", expected)

    def integer(self, expected: str = "a number") -> int:
        sign = -1 if self.accept("-") else 1
        return sign * int(self.take("number", expected))

    def end(self) -> None:
        if self.peek():
            raise self.error("the end of the line")

    def listed(self, item: Callable[[], T], close: str) -> tuple[T, ...]:
        """Items with commas between them, up to `close`."""
        found: list[T] = []
        while not self.accept(close):
            if found:
                self.expect(",")
            found.append(item())
        return tuple(found)


class _Parser:
    def __init__(self, text: str) -> None:
        numbered = enumerate(text.splitlines(), 1)
        self.lines = [_Line(number, line) for number, line in numbered if line.strip()]
        self.at = 0
        self.count = text.count("\n") + 1
        self.sizes: dict[str, Size] = {}
        self.axes: dict[str, Axis] = {}
        self.folds: dict[str, Fold] = {}
        self.buffers: dict[str, Buffer] = {}
        self.roles: dict[str, str] = {}
        self.named: dict[str, Expr] = {}

    # -- lines -------------------------------------------------------------------------------------

    def line(self, expected: str) -> _Line:
        if self.at >= len(self.lines):
            raise ParseError(self.count, expected, "")
        self.at += 1
        return self.lines[self.at - 1]

    def next_is(self, *words: str) -> bool:
        return self.at < len(self.lines) and self.lines[self.at].peek() in words

    def kernel(self) -> Kernel:
        line = self.line("'kernel'")
        line.expect("kernel")
        name = line.word("a name")
        line.end()
        self.header()
        body = self.body(0)
        if self.at < len(self.lines):
            raise self.lines[self.at].error("a statement that is not indented")

        def of(*roles: str) -> tuple[Buffer, ...]:
            return tuple(b for b in self.buffers.values() if self.roles[b.name] in roles)

        outputs = frozenset(buffer.name for buffer in of("output"))
        sizes = tuple(self.sizes.values())
        return Kernel(name, of("input", "output"), outputs, sizes, body, of("scratch"))

    def header(self) -> None:
        while self.next_is("size", "input", "output", "scratch"):
            line = self.line("a buffer")
            role = line.word("a buffer")
            name = line.word("a name")
            line.expect(":")
            if role == "size":
                low = line.integer()
                line.expect("..")
                high = line.integer() if line.peek() else None
                self.sizes[name] = Size(name, low, high)
            else:
                dtype = self.dtype(line)
                line.expect("[")
                shape = line.listed(lambda: self.index(line), "]")  # noqa: B023 - called here
                line.expect("strides")
                line.expect("[")
                strides = line.listed(lambda: self.index(line), "]")  # noqa: B023 - called here
                self.buffers[name] = Buffer(name, dtype, shape, strides)
                self.roles[name] = role
            line.end()

    def compute(self) -> Compute:
        line = self.line("'compute'")
        line.expect("compute")
        line.end()
        self.header()
        axes = self.axes_of("axes")
        over = self.axes_of("over") if self.next_is("over") else ()
        along, combine = None, None
        if self.next_is("along"):
            line = self.line("along")
            line.expect("along")
            along = self.known(line, self.axes, "an axis")
        if self.next_is("combine"):
            line = self.line("combine")
            line.expect("combine")
            combine = line.word("a combine")
        results: list[Buffer | None] = []
        while self.next_is("result"):
            line = self.line("a result")
            line.expect("result")
            none = line.accept("none")
            results.append(None if none else self.known(line, self.buffers, "a buffer"))
        requires: list[Require] = []
        values: list[Expr] = []
        while self.at < len(self.lines):
            line = self.line("a value")
            if line.kind() == "name":
                self.let(line)
            elif line.accept("require"):
                condition = self.expression(line)
                line.expect("else")
                requires.append(Require(condition, line.integer()))
            else:
                line.expect("value")
                values.append(self.expression(line))
            line.end()
        return Compute(tuple(results), axes, tuple(values), over, along, combine, tuple(requires))

    def axes_of(self, keyword: str) -> tuple[Axis, ...]:
        line = self.line(repr(keyword))
        line.expect(keyword)
        return line.listed(lambda: self.axis(line), "")

    def axis(self, line: _Line) -> Axis:
        name = line.word("an axis")
        line.expect("<")
        axis = Axis(name, self.index(line))
        self.axes[name] = axis
        return axis

    def body(self, indent: int) -> tuple[Statement, ...]:
        found: list[Statement] = []
        names, axes = dict(self.named), dict(self.axes)
        while self.at < len(self.lines) and self.lines[self.at].indent == indent:
            line = self.line("a statement")
            if line.accept("pass"):
                line.end()
            elif line.kind() == "name":
                self.let(line)
                line.end()
            else:
                found.append(self.statement(line, indent))
        if self.at < len(self.lines) and self.lines[self.at].indent > indent:
            raise self.lines[self.at].error(f"an indentation of {indent} at most")
        self.named, self.axes = names, axes
        return tuple(found)

    def let(self, line: _Line) -> None:
        name = line.take("name", "a name")
        line.expect("=")
        self.named[name] = self.expression(line)

    def statement(self, line: _Line, indent: int) -> Statement:
        statement: Statement
        match line.peek(), line.peek(1):
            case _, "[":
                statement = self.store(line)
            case _, "<-":
                fold = self.known(line, self.folds, "a fold")
                line.expect("<-")
                values = [self.expression(line)]
                while line.accept(","):
                    values.append(self.expression(line))
                statement = Accumulate(fold, tuple(values), self.mask(line))
            case "fold", _:
                statement = self.declare(line)
            case "check", _:
                line.expect("check")
                condition = self.expression(line)
                line.expect("else")
                statement = Check(condition, line.integer())
            case ("parallel" | "serial" | "vector") as how, _:
                line.expect(how)
                around = dict(self.axes)
                axis = self.axis(line)
                line.expect(":")
                line.end()
                inside = self.lines[self.at].indent if self.at < len(self.lines) else 0
                if inside <= indent:
                    raise ParseError(line.number + 1, "an indented body", "")
                body = self.body(inside)
                self.axes = around
                return Loop(axis, How(how), body)
            case _:
                raise line.error("a statement")
        line.end()
        return statement

    def declare(self, line: _Line) -> Declare:
        line.expect("fold")
        name = line.word("a name")
        line.expect("=")
        combine = line.peek()
        if combine not in COMBINES:
            raise line.error("a combine: " + ", ".join(COMBINES))
        line.expect(combine)
        line.expect("(")
        self.folds[name] = Fold(name, combine, line.listed(lambda: self.dtype(line), ")"))
        return Declare(self.folds[name])

    def store(self, line: _Line) -> Store:
        buffer = self.known(line, self.buffers, "a buffer")
        line.expect("[")
        coords = line.listed(lambda: self.index(line), "]")
        line.expect("=")
        return Store(buffer, coords, self.expression(line), self.mask(line))

    def mask(self, line: _Line) -> Expr | None:
        return self.expression(line) if line.accept("if") else None

    # -- expressions -------------------------------------------------------------------------------

    def known(self, line: _Line, table: dict[str, T], expected: str) -> T:
        if line.peek() not in table:
            raise line.error(expected)
        return table[line.word(expected)]

    def dtype(self, line: _Line) -> DType:
        return self.known(line, BY_NAME, "a type")

    def expression(self, line: _Line) -> Expr:
        match line.kind():
            case "const":
                return self.constant(line)
            case "name":
                if line.peek() not in self.named:
                    raise line.error("a name that stands for something here")
                return self.named[line.take("name", "a name")]
            case "word" if line.peek(1) == "[":
                return self.load(line)
            case "word" if line.peek(1) == "(":
                return self.call(line)
            case _:
                raise line.error("an expression")

    def constant(self, line: _Line) -> Const:
        number, _, name = line.peek().rpartition(":")
        if name not in BY_NAME:
            raise line.error("a constant of a type")
        line.take("const", "a constant")
        value: bool | int | float
        if number in ("true", "false"):
            value = number == "true"
        elif "(" in number:
            (value,) = struct.unpack("d", struct.pack("Q", int(number[4:-1], 16)))
        elif re.fullmatch(r"-?\d+", number):
            value = int(number)
        else:
            value = float(number)
        return Const(BY_NAME[name], value)

    def load(self, line: _Line) -> Load:
        buffer = self.known(line, self.buffers, "a buffer")
        line.expect("[")
        coords: list[Index] = []
        while line.peek() not in ("]", "if"):
            if coords:
                line.expect(",")
            coords.append(self.index(line))
        mask = self.mask(line)
        line.expect("]")
        return Load(buffer, tuple(coords), mask)

    def call(self, line: _Line) -> Expr:
        name = line.peek()
        if name in ("folded", "running"):
            line.expect(name)
            line.expect("(")
            fold = self.known(line, self.folds, "a fold")
            component = line.integer("a component") if line.accept(",") else 0
            line.expect(")")
            return Folded(fold, component) if name == "folded" else Running(fold, component)
        if name == "position":
            line.expect(name)
            line.expect("(")
            value = self.index(line)
            line.expect(")")
            return Position(value)
        if name not in OPERATIONS and name != SELECT:
            raise line.error("an operation")
        start = line.at
        line.expect(name)
        line.expect("(")
        dtype = None
        if name != SELECT and OPERATIONS[name].result is Result.GIVEN:
            dtype = self.dtype(line)
            line.expect(",")
        args = line.listed(lambda: self.expression(line), ")")
        arity = 3 if name == SELECT else OPERATIONS[name].arity
        if len(args) != arity:
            line.at = start
            raise line.error(f"{arity} operands of {name}, not {len(args)},")
        return op(name, *args, dtype=dtype)

    # -- indices -----------------------------------------------------------------------------------

    def index(self, line: _Line) -> Index:
        """As it is written: what is shown is in normal form already."""
        terms: list[tuple[Product, int]] = []
        constant = 0
        sign = -1 if line.accept("-") else 1
        while True:
            count, product = self.product(line)
            if product:
                terms.append((product, sign * count))
            else:
                constant += sign * count
            if line.accept("+"):
                sign = 1
            elif line.accept("-"):
                sign = -1
            else:
                return Index(tuple(terms), constant)

    def product(self, line: _Line) -> tuple[int, Product]:
        count, atoms = 1, list[Atom]()
        while True:
            if line.kind() == "number":
                count *= line.integer()
            else:
                atoms.append(self.atom(line))
            if not line.accept("*"):
                return count, tuple(atoms)

    def atom(self, line: _Line) -> Atom:
        if line.accept("("):
            top = self.index(line)
            kind: type[Div | Mod] = Div if line.peek() == "//" else Mod
            if not line.accept("//"):
                line.expect("%")
            bottom = self.index(line)
            line.expect(")")
            return kind(top, bottom)
        if line.accept("<"):
            value = self.expression(line)
            line.expect("in")
            low = None if line.peek() == ".." else line.integer()
            line.expect("..")
            high = None if line.peek() == ">" else line.integer()
            line.expect(">")
            return Given(value, low, high)
        if line.peek() in self.axes:
            return self.known(line, self.axes, "an axis")
        return self.known(line, self.sizes, "a size or an axis of a loop around")
