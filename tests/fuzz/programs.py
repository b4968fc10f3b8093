"""Random programs of mutations, views, aliases and subclasses, as Python source.

`generate(seed)` runs every statement eagerly while it writes, and keeps those that eager accepts;
`Program.source()` prints a module that a person can paste into a bug report. Nothing here knows of
the compiler.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from backward import Outcome, write_after, write_plain_after
from language import Program, Statement, Values, grad_mode, lines_of, load
from vocabulary import ASSIGN, FAMILIES, HELPERS, PAIR, REGION, THEMES, TWO_TENSOR

LARGEST = 50.0
"""No value above: squares of it and differences of those would drown a real difference."""


@dataclass
class Draft:
    """A program being written, with the values its names have in eager."""

    rng: random.Random
    dtype: str
    subclass: bool
    n: int
    mode: str
    values: Values = field(default_factory=dict)
    inputs: list[Statement] = field(default_factory=list)
    arguments: list[tuple[str, str]] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    body: list[Statement] = field(default_factory=list)
    named: int = 0

    def fresh(self, prefix: str) -> str:
        self.named += 1
        return f"{prefix}{self.named}"

    def tensors(self) -> list[str]:
        return [name for name, value in self.values.items() if isinstance(value, torch.Tensor)]

    def numbers(self) -> list[str]:
        return [name for name, value in self.values.items() if isinstance(value, int | float)]


def generate(seed: int) -> Program:
    """The program of a seed: the same text in every process."""
    for attempt in range(50):
        program = attempt_at(seed, random.Random(seed * 1000 + attempt))
        if program is not None:
            return program
    raise RuntimeError(f"no program for seed {seed}: every attempt failed in eager")


def attempt_at(seed: int, rng: random.Random) -> Program | None:
    mode = rng.choices(("grad", "no_grad", "inference"), (8, 1.5, 0.7))[0]
    sizes = rng.choice(((4,), (4,), (4, 4), (4, 6), (4, 6, 4, 7), (5, 4)))
    draft = Draft(
        rng=rng,
        dtype="torch.float64" if rng.random() < 0.25 else "torch.float32",
        subclass=rng.random() < 0.12,
        n=sizes[0],
        mode=mode,
    )
    write_inputs(draft)
    theme = THEMES[rng.choice(tuple(THEMES))]
    # The text that made the inputs stays as it is; the values are what the body sees.
    with grad_mode(mode):
        write_body(draft, theme, rng.randint(1, 7))
    program = Program(
        seed=seed,
        mode=mode,
        dynamic=rng.choice((False, None, True)) if len(sizes) > 1 else rng.random() < 0.2,
        reuse=len(sizes) > 1 and rng.random() < 0.2,
        sizes=(sizes[0],) * len(sizes) if rng.random() < 0.1 else sizes,
        inputs=tuple(draft.inputs),
        arguments=tuple(draft.arguments),
        extra=tuple(draft.extra),
        body=tuple(draft.body),
        outputs=choose_outputs(draft),
        after=(),
    )
    return add_after(program, rng)


# -- inputs ----------------------------------------------------------------------------------------


def write_inputs(draft: Draft) -> None:
    rng = draft.rng
    draft.inputs.append(Statement(f"g = torch.Generator().manual_seed(n + {rng.randint(0, 99)})"))
    makers = (one_tensor, one_tensor, one_tensor, views_of_base, same_twice, number, leaf_with_view)
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        rng.choice(makers)(draft)
    if not any("torch.rand" in statement.text for statement in draft.inputs):
        one_tensor(draft)
    namespace: Values = {"torch": torch, "n": draft.n}
    exec("\n".join([TWO_TENSOR, HELPERS["two("], *lines_of(draft.inputs)]), namespace)
    for name, value in draft.arguments:
        draft.values[name] = eval(value, namespace)


def random_tensor(draft: Draft, requires_grad: bool) -> str:
    rng = draft.rng
    shape = rng.choice(
        ("(n, 3)", "(n, 3)", "(3, n)", "(n,)", "(3,)", "(3, 3)", "(2, n, 3)", "()", "(1, 3)")
    )
    new = f"torch.randn({shape}, generator=g, dtype={draft.dtype})"
    flag = ".requires_grad_()" if requires_grad else ""
    if draft.subclass and rng.random() < 0.7:
        return f"two({new}, {new}, requires_grad={requires_grad})"
    match rng.choices(("plain", "t", "slice", "parameter", "expand"), (8, 1, 1, 1.5, 0.4))[0]:
        case "t" if shape not in ("(n,)", "(3,)", "()"):
            return f"{new}.transpose(0, -1){flag}"
        case "slice" if shape == "(n, 3)":
            return f"torch.randn((2 * n, 3), generator=g, dtype={draft.dtype})[::2].detach(){flag}"
        case "parameter" if requires_grad:
            return f"torch.nn.Parameter({new})"
        case "expand" if shape == "(n, 3)" and not requires_grad:
            return f"torch.randn((1, 3), generator=g, dtype={draft.dtype}).expand(n, 3)"
        case _:
            return new + flag


def one_tensor(draft: Draft) -> None:
    """A leaf, or a value computed from a leaf, or one that needs no gradient."""
    rng = draft.rng
    name = draft.fresh("a")
    match rng.choices(("constant", "leaf", "computed", "inference"), (3, 4, 3, 0.2))[0]:
        case "constant":
            draft.inputs.append(Statement(f"{name} = {random_tensor(draft, False)}"))
        case "leaf":
            draft.inputs.append(Statement(f"{name} = {random_tensor(draft, True)}"))
        case "computed":
            leaf = draft.fresh("leaf")
            draft.inputs.append(Statement(f"{leaf} = {random_tensor(draft, True)}"))
            draft.inputs.append(Statement(f"{name} = {leaf} * {rng.choice(('1.0', '0.5', leaf))}"))
            draft.extra.append(leaf)
        case "inference":
            new = Statement(f"{name} = {random_tensor(draft, False)}")
            draft.inputs.append(Statement("with torch.inference_mode():", (new,)))
    draft.arguments.append((name, name))


def views_of_base(draft: Draft) -> None:
    """Two arguments that view one tensor, which may be an argument too."""
    rng = draft.rng
    base = draft.fresh("base")
    requires_grad = rng.random() < 0.5
    new = f"torch.randn((n, 3), generator=g, dtype={draft.dtype})"
    if draft.subclass and rng.random() < 0.3:
        new = f"two({new}, {new})"
    draft.inputs.append(Statement(f"{base} = {new}"))
    if requires_grad:
        leaf = draft.fresh("leaf")
        draft.inputs[-1] = Statement(f"{leaf} = {new}.requires_grad_()")
        draft.inputs.append(Statement(f"{base} = {leaf} * 1.0"))
        draft.extra.append(leaf)
    views = (
        "{b}[0]", "{b}[1]", "{b}[:2]", "{b}[1:]", "{b}[2:]", "{b}.t()", "{b}.view(-1)", "{b}[:, 0]",
        "{b}[:, 1:]", "{b}.view(3, -1)", "{b}.detach()", "{b}.unsqueeze(0)", "{b}[::2]",
        "{b}.chunk(2)[0]", "{b}.unbind()[0]", "{b}.unbind()[1]", "{b}.as_strided((2,), (1,), 1)",
    )  # fmt: skip
    for view in rng.sample(views, rng.choice((1, 2, 2, 3))):
        name = draft.fresh("a")
        draft.inputs.append(Statement(f"{name} = {view.format(b=base)}"))
        draft.arguments.append((name, name))
    if rng.random() < 0.3:
        draft.arguments.append((base, base))
    else:
        draft.extra.append(base)


def leaf_with_view(draft: Draft) -> None:
    """A view made under no-grad or of a leaf: what may be mutated differs from eager's usual."""
    rng = draft.rng
    leaf, name = draft.fresh("leaf"), draft.fresh("a")
    draft.inputs.append(
        Statement(
            f"{leaf} = torch.randn((n, 3), generator=g, dtype={draft.dtype}).requires_grad_()"
        )
    )
    view = Statement(
        f"{name} = {leaf}{rng.choice(('[1:]', '.t()', '[0]', '.view(-1)', '.detach()'))}"
    )
    if rng.random() < 0.5:
        view = Statement("with torch.no_grad():", (view,))
    draft.inputs.append(view)
    draft.arguments.append((name, name))
    if rng.random() < 0.3:
        draft.arguments.append((leaf, leaf))
    else:
        draft.extra.append(leaf)


def same_twice(draft: Draft) -> None:
    one_tensor(draft)
    draft.arguments.append((draft.fresh("a"), draft.arguments[-1][1]))


def number(draft: Draft) -> None:
    name = draft.fresh("k")
    value = draft.rng.choice(("n", "2", "0.5", "n - 2", "n * 0.125"))
    draft.arguments.append((name, value))


# -- the body --------------------------------------------------------------------------------------


def write_body(draft: Draft, theme: Mapping[str, float], count: int) -> None:
    for _ in range(count * 6):
        if count_statements(draft.body) >= count:
            return
        family = draft.rng.choices(tuple(theme), tuple(theme.values()))[0]
        statement = draw(draft, family, theme)
        if statement is not None:
            draft.body.append(statement)


def count_statements(statements: Sequence[Statement]) -> int:
    return sum(1 + count_statements(statement.body) for statement in statements)


def draw(draft: Draft, family: str, theme: Mapping[str, float]) -> Statement | None:
    """A statement of that family that eager accepts, already executed; None when it does not."""
    form, templates = FAMILIES[family]
    template = draft.rng.choice(templates)
    if form == REGION:
        return draw_region(draft, template, theme)
    text = fill(draft, template)
    if text is None:
        return None
    is_expression = form == ASSIGN or (family == "number" and "_(" not in text)
    if form == PAIR:
        text = f"{draft.fresh('v')}, {draft.fresh('v')} = {text}"
    elif is_expression or ("= " not in text and draft.rng.random() < 0.15):
        text = f"{draft.fresh('v')} = {text}"
    return Statement(text) if execute(draft, text) else None


def draw_region(draft: Draft, header: str, theme: Mapping[str, float]) -> Statement | None:
    rng = draft.rng
    inner = {
        family: weight for family, weight in theme.items() if family not in ("region", "storage")
    }
    outer = torch.is_grad_enabled()
    torch.set_grad_enabled("enable" in header.partition("(")[0] or "True" in header)
    if "set_grad_enabled" in header:
        torch.set_grad_enabled("True" in header)
    drawn: list[Statement] = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        statement = draw(draft, rng.choices(tuple(inner), tuple(inner.values()))[0], inner)
        if statement is not None:
            drawn.append(statement)
    torch.set_grad_enabled(outer)
    return Statement(header, tuple(drawn)) if drawn else None


def fill(draft: Draft, template: str) -> str | None:
    """The template with names that are in scope; recent ones are likelier."""
    rng = draft.rng
    names = draft.tensors()
    floats = [name for name in names if draft.values[name].is_floating_point()]
    numbers = draft.numbers()
    if not floats or ("{k}" in template and not numbers):
        return None
    weights = [1.0 + 2.0 * index / len(floats) for index in range(len(floats))]
    x, y, z = rng.choices(floats, weights, k=3)
    shape = draft.values[x].shape
    return template.format(
        x=x, y=y, z=z,
        d=rng.randrange(max(1, len(shape))),
        i=rng.choice((0, 1, -1)),
        k=rng.choice(numbers) if numbers else 0,
    )  # fmt: skip


def execute(draft: Draft, text: str) -> bool:
    """Run one statement; False, with the names it made forgotten, when eager refuses it."""
    namespace = SCOPE | draft.values
    torch.manual_seed(0)
    try:
        exec(text, namespace)
    except Exception:  # noqa: BLE001 - whatever eager says of a random line, the line is not used
        return False
    new = {name: value for name, value in namespace.items() if name not in SCOPE and name[0] != "_"}
    if any(too_large(value) for value in new.values()):
        return False
    draft.values.update(new)
    return True


def make_scope() -> Values:
    text = "\n".join(
        ["import torch", "import torch.nn.functional as F", TWO_TENSOR, *HELPERS.values()]
    )
    scope: Values = {}
    exec(text, scope)
    return scope


SCOPE = make_scope()


def too_large(value: object) -> bool:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return False
    if value.dim() > 4 or value.numel() > 2000:
        return True
    if value.numel() == 0:
        return False
    parts = [getattr(value, name) for name in ("a", "b") if hasattr(value, name)] or [value]
    return any(not bool(part.detach().abs().max() < LARGEST) for part in parts)


def choose_outputs(draft: Draft) -> tuple[str, ...]:
    rng = draft.rng
    names = draft.tensors()
    arguments = [name for name, _ in draft.arguments if name in names]
    made = [name for name in names if name not in arguments]
    outputs: list[str] = []
    for _ in range(rng.choice((1, 1, 2, 2, 3, 4))):
        source = rng.choices((made or arguments, arguments), (4, 1))[0]
        name = rng.choice(source)
        match rng.choices(("name", "view", "copy", "odd", "again"), (12, 2, 1, 1, 1))[0]:
            case "name":
                outputs.append(name)
            case "view":
                outputs.append(
                    name
                    + rng.choice((".view(-1)", ".t()", "[0]", ".detach()", "[:]", ".unsqueeze(0)"))
                )
            case "copy":
                outputs.append(f"{name} * 2.0")
            case "odd":
                outputs.append(
                    rng.choice(("None", "3", f"{name}.dim()", "'done'", f"[{name}, None]"))
                )
            case "again":
                outputs.append(outputs[-1] if outputs else name)
    accepted = [text for text in outputs if evaluates(draft, text)]
    return tuple(accepted) or (names[-1],)


def evaluates(draft: Draft, text: str) -> bool:
    try:
        eval(text, SCOPE | draft.values)
    except Exception:  # noqa: BLE001 - as in `execute`
        return False
    return True


# -- backward --------------------------------------------------------------------------------------


def add_after(program: Program, rng: random.Random) -> Program | None:
    """The program with a backward that eager accepts, mostly; None when its forward fails."""
    outcome = eager_outcome(program)
    if outcome is None:
        return None
    accept_errors = rng.random() < 0.1
    for writer in (write_after, write_after, write_plain_after):
        candidate = replace(program, after=tuple(writer(program, outcome, rng)))
        if accept_errors or eager_accepts(candidate):
            return candidate
    return program


def eager_outcome(program: Program) -> Outcome | None:
    module = load(program.source(), "draft")
    arguments, extra = module["inputs"](program.sizes[0])
    torch.manual_seed(0)
    try:
        with grad_mode(program.mode):
            out = module["program"](*arguments.values())
    except Exception:  # noqa: BLE001 - the text of a program may differ from the lines run one by one
        return None
    flat: list[tuple[str, object]] = []
    for index, value in enumerate(out):
        items = enumerate(value) if isinstance(value, list) else ()
        flat.append((f"out[{index}]", value))
        flat.extend((f"out[{index}][{inner}]", item) for inner, item in items)
    known = [(f'args["{name}"]', value) for name, value in arguments.items()]
    known += [(f'extra["{name}"]', value) for name, value in extra.items()]
    if any(too_large(value) for _, value in flat + known):
        return None
    return Outcome(
        outputs=tuple(text for text, value in flat if is_differentiable(value)),
        wrt=tuple(text for text, value in known if is_differentiable(value)),
        tensors=tuple(text for text, value in flat + known if isinstance(value, torch.Tensor)),
    )


def is_differentiable(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def eager_accepts(program: Program) -> bool:
    """True when forward and `after` run in eager at the first size."""
    module = load(program.source(), "draft")
    arguments, extra = module["inputs"](program.sizes[0])
    torch.manual_seed(0)
    with grad_mode(program.mode):
        out = module["program"](*arguments.values())
    try:
        seen = list(module["after"](arguments, extra, out))
    except Exception:  # noqa: BLE001 - an error in backward is a result too; the caller decides whether to keep it
        return False
    return not any(too_large(value) for _, values in seen for value in values)
