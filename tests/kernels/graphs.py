"""Random functions of tensors, as program text. A seed is one program.

The generator runs each line as it writes it: what eager refuses, or what grows too large, is not
written. Types of floats go by name (`F32`), so that the same text runs in double precision.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from graph_vocabulary import FLOATS, GROUPS, INTEGERS, TYPES, Template

HEADER = """\
import torch
import torch.nn.functional as F

F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16
"""

NARROW = {"F32": torch.float32, "F64": torch.float64, "BF16": torch.bfloat16, "F16": torch.float16}
SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 64, 257, 1000)
LARGEST = 20_000
"""Elements of a value."""


@dataclass(frozen=True)
class Program:
    """`inputs` and `body` are lines `name = expression`; `sizes` the numbers that the inputs are
    made with, one call for each.
    """

    seed: int
    inputs: tuple[tuple[str, str], ...]
    body: tuple[tuple[str, str], ...]
    outputs: tuple[str, ...]
    sizes: tuple[tuple[int, int, int], ...]
    dynamic: bool
    backward: bool

    def source(self) -> str:
        """The text, which can be run."""
        names = ", ".join(name for name, _ in self.inputs)
        lines = [HEADER, "", "def inputs(n, m, k):"]
        lines.append(f"    g = torch.Generator().manual_seed({self.seed})")
        lines += [f"    {name} = {text}" for name, text in self.inputs]
        lines += [f"    return [{names}]", "", "", f"def program({names}):"]
        lines += [f"    {name} = {text}" for name, text in self.body]
        lines += [f"    return [{', '.join(self.outputs)}]", "", ""]
        lines.append(f"SIZES = {list(self.sizes)}")
        lines.append(f"DYNAMIC, BACKWARD = {self.dynamic}, {self.backward}")
        return "\n".join(lines) + "\n"


@dataclass
class _Maker:
    random: random.Random
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    lines: list[tuple[str, str]] = field(default_factory=list)

    def run(self, text: str) -> torch.Tensor | None:
        """The value, if eager has one that is a tensor of moderate size and numbers."""
        names = NARROW | {"torch": torch, "F": torch.nn.functional} | self.values
        try:
            value = eval(text, names)
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
            return None
        if not isinstance(value, torch.Tensor) or value.numel() > LARGEST or value.dim() > 5:
            return None
        if value.dtype not in DTYPES:
            return None
        if value.is_floating_point() and value.numel() and self.random.random() < 0.97:
            largest = value.detach().abs().max().item()
            if not largest < (1e3 if value.dtype == torch.float16 else 1e5):
                return None
        return value

    def line(self, template: Template) -> bool:
        chosen: dict[str, str] = {}
        for letter, kind in zip("xyz", template.kinds, strict=False):
            names = [n for n, v in self.values.items() if _fits(v, kind)]
            if letter == "x":
                names = [n for n in names if self.values[n].dim() >= template.rank]
            if not names:
                return False
            recent = names[-4:] if self.random.random() < 0.6 else names
            chosen[letter] = self.random.choice(recent)
        text = filled(template.text, chosen, self.values[chosen["x"]], self.random)
        value = self.run(text)
        if value is None:
            return False
        name = f"v{len(self.lines)}"
        self.values[name] = value
        self.lines.append((name, text))
        return True


DTYPES = frozenset(
    {*NARROW.values(), torch.int64, torch.int32, torch.uint8, torch.bool},
)


def _fits(value: torch.Tensor, kind: str) -> bool:
    match kind:
        case "f":
            return value.is_floating_point()
        case "i":
            return not value.is_floating_point() and value.dtype is not torch.bool
        case "b":
            return value.dtype is torch.bool
        case "n":
            return value.dtype is not torch.bool
        case _:
            return True


def filled(text: str, chosen: dict[str, str], x: torch.Tensor, choose: random.Random) -> str:
    """The template with its letters replaced."""
    dim = choose.randrange(-x.dim(), x.dim()) if x.dim() else 0
    words = chosen | {
        "D": str(dim),
        "S": str(choose.choice((0, 0, 1, 2, -1))),
        "T": choose.choice((*TYPES, "F32", "F32", "BF16")),
        "K": str(choose.random() < 0.5),
    }
    return re.sub(r"\b[xyzDSTK]\b", lambda match: words.get(match.group(), match.group()), text)


def _input(choose: random.Random) -> str:
    """The text of an input: of any type and layout."""
    shape = _shape(choose)
    kind = choose.choices(("float", "integer", "bool"), (7, 3, 1))[0]
    made = f"torch.randn({_tuple(shape)}, generator=g)"
    match kind:
        case "float":
            dtype = choose.choices(FLOATS, (8, 2, 3, 2))[0]
        case "integer":
            dtype = choose.choices(INTEGERS, (4, 2, 2))[0]
            made = f"torch.randint(0, 9, {_tuple(shape)}, generator=g)"
            if dtype != "torch.uint8":
                made += ".sub(4)"
        case _:
            dtype = "torch.bool"
            made += ".gt(0)"
    made += f".to({dtype})"
    if not shape:
        return made
    match choose.randrange(9):
        case 0:
            return f"{made}.transpose(0, -1)"
        case 1:
            return f"{made}.repeat(3, *[1] * {len(shape) - 1})[1::3]"
        case 2:
            return f"torch.cat([{made}, {made}], -1)[..., 1:{shape[-1]} + 1]"
        case 3:
            return f"torch.stack([{made}] * 2, -1)[..., 1]"
        case 4:
            return f"{made}[:1].expand({_tuple(shape)})"
        case 5:
            return f"{made}.flip(0)"
        case _:
            return made


def _tuple(shape: list[str]) -> str:
    return f"({', '.join(shape)}{',' if len(shape) == 1 else ''})"


def _shape(choose: random.Random) -> list[str]:
    letters = ["n", "m", "k"]
    rank = choose.choices((0, 1, 2, 3, 4), (1, 3, 8, 3, 1))[0]
    if rank == 4:
        return ["2", *letters[: rank - 1]]
    shape = letters[-rank:] if rank else []
    return [("1" if choose.random() < 0.1 else letter) for letter in shape]


def _sizes(choose: random.Random) -> tuple[int, int, int]:
    while True:
        n, m, k = (choose.choice(SIZES) for _ in range(3))
        if choose.random() < 0.03:
            m = 0
        if n * m * k <= LARGEST // 2:
            return n, m, k
        n = choose.choice((1, 2, 3))
        if n * m * k <= LARGEST // 2:
            return n, m, k


def generate(seed: int) -> Program:
    """The program of a seed."""
    choose = random.Random(seed)
    while True:
        found = _attempt(choose, seed)
        if found is not None:
            return found


def _attempt(choose: random.Random, seed: int) -> Program | None:
    sizes = _sizes(choose)
    given = tuple((name, _input(choose)) for name in "abcd"[: choose.randint(1, 4)])
    shell = Program(seed, given, (), (), (sizes,), False, False)
    maker = _Maker(choose)
    made = shell_inputs(shell, sizes)
    maker.values |= {name: value for (name, _), value in zip(given, made, strict=True)}
    wanted = choose.randint(5, choose.choice((10, 20, 40)))
    weights = [weight for weight, _ in GROUPS]
    for _ in range(wanted * 6):
        group = choose.choices([templates for _, templates in GROUPS], weights)[0]
        maker.line(choose.choices(group, [t.weight for t in group])[0])
        if len(maker.lines) >= wanted:
            break
    if len(maker.lines) < 5:
        return None
    names = [name for name, _ in maker.lines]
    used = {word for _, text in maker.lines for word in re.findall(r"\w+", text)}
    unused = [name for name in names if name not in used]
    extra = choose.sample(names, choose.randint(0, 2))
    outputs = tuple(dict.fromkeys((*unused, *extra)))
    program = replace(
        shell,
        body=tuple(maker.lines),
        outputs=outputs,
        backward=choose.random() < 0.6,
        dynamic=choose.random() < 0.35,
    )
    if not program.dynamic:
        return program
    others = [_sizes(choose) for _ in range(4)]
    kept = [other for other in others if runs(program, other)]
    return replace(program, sizes=(sizes, *kept[:2]))


def namespace(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(source, "<program>", "exec"), names)
    return names


def shell_inputs(program: Program, sizes: tuple[int, int, int]) -> list[torch.Tensor]:
    made: list[torch.Tensor] = namespace(program.source())["inputs"](*sizes)
    return made


def runs(program: Program, sizes: tuple[int, int, int]) -> bool:
    """Whether eager runs it with these sizes."""
    names = namespace(program.source())
    try:
        results = names["program"](*names["inputs"](*sizes))
    except (RuntimeError, IndexError, ValueError):
        return False
    return all(result.numel() <= LARGEST * 10 for result in results)


# -- making a program smaller ----------------------------------------------------------------------


def smaller(program: Program) -> Iterator[Program]:
    """Programs one step smaller, those that remove most first."""
    if program.backward:
        yield replace(program, backward=False)
    if len(program.sizes) > 1:
        for at in range(len(program.sizes)):
            yield replace(program, sizes=program.sizes[at : at + 1])
    if program.dynamic:
        yield replace(program, dynamic=False)
    if len(program.outputs) > 1:
        for name in program.outputs:
            yield without_dead(replace(program, outputs=(name,)))
    elif program.body:
        for name, _ in reversed(program.body):
            if name != program.outputs[0]:
                yield without_dead(replace(program, outputs=(name,)))
    yield from cut(program)


def without_dead(program: Program) -> Program:
    """Without the lines that no output needs."""
    needed = set(program.outputs)
    body: list[tuple[str, str]] = []
    for name, text in reversed(program.body):
        if name in needed:
            body.append((name, text))
            needed |= set(re.findall(r"\w+", text))
    inputs = tuple((name, text) for name, text in program.inputs if name in needed)
    return replace(program, body=tuple(reversed(body)), inputs=inputs)


def cut(program: Program) -> Iterator[Program]:
    """With a value given instead of computed."""
    names = namespace(program.source())
    values = dict(
        zip((n for n, _ in program.inputs), names["inputs"](*program.sizes[0]), strict=True)
    )
    for name, text in program.body:
        values[name] = eval(text, names | values)
    spelled = {dtype: name for name, dtype in NARROW.items()}
    for at, (name, _) in reversed(list(enumerate(program.body))):
        value = values[name].detach()
        shape, dtype = tuple(value.shape), value.dtype
        if value.is_floating_point():
            made = f"torch.randn({shape}, generator=g).to({spelled[dtype]})"
        elif dtype is torch.bool:
            made = f"torch.randn({shape}, generator=g).gt(0)"
        else:
            made = f"torch.randint(0, 9, {shape}, generator=g).to({dtype})"
        body = program.body[:at] + program.body[at + 1 :]
        if name not in program.outputs and program.sizes[1:] == ():
            yield without_dead(replace(program, body=body, inputs=(*program.inputs, (name, made))))


def shrink(program: Program, still_fails: Any, budget: int = 60) -> Program:
    """The smallest program found within `budget` tries."""
    tries, progress = 0, True
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
