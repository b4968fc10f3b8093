"""Random programs of mutations, views, aliases and subclasses, as Python source.

A `Program` prints as a module that a person can paste into a bug report:

    MODE, DYNAMIC, SIZES, REUSE    how it is called
    inputs(n)                      -> (arguments, other tensors to watch), both by name
    program(...)                   the function to compile
    after(args, extra, out)        what happens between and in backward; yields what it sees

`generate(seed)` runs every statement eagerly while it writes, and keeps those that eager accepts.
It knows nothing of the compiler.
"""

from __future__ import annotations

import linecache
import random
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch

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
                lines_block(lines_of(self.inputs) + [self._inputs_result()], "def inputs(n):"),
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


TWO_TENSOR = "from torch.testing._internal.two_tensor import TwoTensor"


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


# What a program's text may call. Only the ones it names are printed with it.
HELPERS: Mapping[str, str] = {
    "Square": '''\
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad
''',
    "SaveOutput": '''\
class SaveOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        out = torch.tanh(x) * y
        ctx.save_for_backward(out, x, y)
        return out

    @staticmethod
    def backward(ctx, grad):
        out, x, y = ctx.saved_tensors
        return grad * y * (1 - torch.tanh(x) ** 2), (grad * torch.tanh(x)).sum_to_size(y.shape)
''',
    "StraightThrough": '''\
class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x * 4) / 4

    @staticmethod
    def backward(ctx, grad):
        return grad
''',
    "DoubleInPlace": '''\
class DoubleInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2.0)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2.0
''',
    "WithMask": '''\
class WithMask(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        mask = (x > 0).to(x.dtype)
        ctx.mark_non_differentiable(mask)
        ctx.save_for_backward(mask)
        return x * mask, mask

    @staticmethod
    def backward(ctx, grad, grad_mask):
        (mask,) = ctx.saved_tensors
        return grad * mask
''',
    "Identity": '''\
class Identity(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scale, None
''',
    "TwoOutputs": '''\
class TwoOutputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, grad_sin, grad_cos):
        (x,) = ctx.saved_tensors
        total = torch.zeros_like(x)
        if grad_sin is not None:
            total = total + grad_sin * x.cos()
        if grad_cos is not None:
            total = total - grad_cos * x.sin()
        return total
''',
    "two(": '''\
def two(a, b, requires_grad=False):
    return TwoTensor(a, b).requires_grad_(requires_grad)
''',
    "tangent(": '''\
def tangent(out, seed, form="plain"):
    g = torch.Generator().manual_seed(seed)
    if form == "expanded":
        return torch.randn((), generator=g, dtype=out.dtype).expand(out.shape)
    if form == "transposed":
        t = torch.randn(tuple(reversed(out.shape)), generator=g, dtype=out.dtype)
        return t.permute(tuple(reversed(range(out.dim()))))
    t = torch.randn(out.shape, generator=g, dtype=out.dtype)
    if isinstance(out, TwoTensor):
        return TwoTensor(t, t * 0.5)
    return t
''',
    "second(": '''\
def second(grads, wrt, create_graph=False):
    terms = [(g * g).sum() for g in grads if g is not None and g.requires_grad]
    if not terms:
        return ()
    return torch.autograd.grad(sum(terms), wrt, allow_unused=True, create_graph=create_graph)
''',
}

# Templates: {x} {y} {z} tensors in scope, {d} a dimension of x, {i} an index, {k} a number argument.
POINTWISE = (
    "{x}.sin()", "{x}.cos()", "{x}.tanh()", "{x}.sigmoid()", "{x}.exp()", "{x}.relu()", "{x}.abs()",
    "{x} * 2.0", "{x} + 1", "-{x}", "{x}.clamp(-0.5, 0.5)", "{x}.clone()", "{x}.contiguous()",
    "torch.where({x} > 0, {x}, {x} * 0.1)", "{x}.pow(2)", "{x} / ({y}.abs() + 1.0)",
    "{x} * {y}", "{x} + {y}", "{x} - {y}", "torch.where({x} > 0, {x}, {y})",
    "torch.addcmul({x}, {y}, {z})", "torch.maximum({x}, {y})", "{x}.lerp({y}, 0.25)",
    "torch.zeros_like({x})", "torch.ones_like({x}) * {y}", "{x}.mul({x})",
)  # fmt: skip
REDUCTIONS = (
    "{x}.sum()", "{x}.sum({d})", "{x}.mean({d}, keepdim=True)", "torch.softmax({x}, {d})",
    "{x}.amax({d})", "{x}.matmul({y})", "{x} @ {y}.t()", "torch.cat([{x}, {y}])",
    "torch.stack([{x}, {y}])", "torch.cat([{x}, {x}], {d})", "{x}.cumsum({d})",
    "F.dropout({x}, 0.5)", "F.linear({x}, {y})", "F.layer_norm({x}, {x}.shape[-1:])",
    "{x}.sum() / {x}.numel()", "{x} * {x}.shape[0]", "torch.logsumexp({x}, {d})",
)  # fmt: skip
VIEWS = (
    "{x}.view(-1)", "{x}.view({x}.shape)", "{x}.reshape(-1)", "{x}.flatten()", "{x}.t()", "{x}.mT",
    "{x}.transpose(0, -1)", "{x}.select({d}, {i})", "{x}[{i}]", "{x}[1:]", "{x}[:2]", "{x}[..., 1:]",
    "{x}[:, 0]", "{x}[::2]", "{x}[:]", "{x}.narrow({d}, 1, 2)", "{x}.unsqueeze({d})", "{x}.squeeze()",
    "{x}.squeeze({d})", "{x}.expand(2, *{x}.shape)", "{x}.expand({x}.shape)", "{x}.diagonal()",
    "{x}.view(-1, 3)", "{x}.as_strided((2, 2), (1, 2), 1)", "{x}.as_strided((3,), (1,))",
    "{x}.view_as({y})", "{x}.detach()", "{x}.permute(1, 0)", "{x}.movedim(0, -1)",
    "{x}.unfold(0, 2, 1)", "{x}.chunk(2)[0]", "{x}.split(2)[0]", "{x}.unbind({d})[0]",
    "{x}.tensor_split(2)[1]", "{x}.expand_as({y})", "{x}[None]", "{x}.view({x}.dtype)",
    "{x}.broadcast_to({y}.shape)", "{x}.swapaxes(0, 1)", "{x}.unflatten(-1, (-1, 1))",
    "Identity.apply({x}, 3.0)",
)  # fmt: skip
PAIRS = (
    "{x}.chunk(2)", "{x}.chunk(2, {d})", "{x}.unbind({d})[:2]", "{x}.split(2)[:2]",
    "{x}.split([1, {x}.shape[0] - 1])", "TwoOutputs.apply({x})", "WithMask.apply({x})",
    "{x}.tensor_split(2)", "{x}.max({d})", "({x}[0], {x}[1])", "torch.unbind({x})[-2:]",
)  # fmt: skip
FUNCTIONS = (
    "Square.apply({x})", "StraightThrough.apply({x})", "DoubleInPlace.apply({x})",
    "SaveOutput.apply({x}, {y})", "Identity.apply({x}, 0.5)", "DoubleInPlace.apply({x} * 1.0)",
)  # fmt: skip
MUTATIONS = (
    "{x}.mul_(2.0)", "{x}.add_(1.0)", "{x}.add_({y})", "{x}.mul_({y})", "{x}.sub_({y}, alpha=0.5)",
    "{x}.copy_({y})", "{x}.zero_()", "{x}.fill_(0.5)", "{x}.sin_()", "{x}.tanh_()", "{x}.sigmoid_()",
    "{x}.clamp_(-0.5, 0.5)", "{x}.masked_fill_({x} > 0, 0.25)", "{x} += 1.0", "{x} *= {y}",
    "{x}[{i}] = {y}", "{x}[1:] = 0.25", "{x}[1:] = {x}[:-1].clone()", "{x}[:, 0] = {y}",
    "{x}[:, 0] = 0.0", "{x}[{x} > 0] = 0.125", "{x}[1:].mul_(0.5)", "{x}[{i}].add_({y})",
    "{x}.index_put_((torch.tensor([0, 1]),), {y})",
    "{x}.index_put_((torch.tensor([1, 1]),), {y}, accumulate=True)",
    "{x}.index_add_({d}, torch.tensor([0, 1]), {y})", "{x}.index_fill_({d}, torch.tensor([0]), 0.5)",
    "{x}.t().add_(1.0)", "{x}.view(-1).mul_(0.5)", "{x}.diagonal().fill_(0.5)",
    "{x}.select({d}, 0).copy_({y})", "{x}.unsqueeze(0).mul_(0.5)", "{x}.unbind()[1].sin_()",
    "{x}.chunk(2)[0].mul_(0.5)", "torch.mul({x}, 0.5, out={y})", "torch.add({x}, {y}, out={z})",
)  # fmt: skip
HIDDEN = (
    "{x}.detach().add_(1.0)", "{x}.data.mul_(0.5)", "{x}.detach()[0].fill_(0.5)",
    "{x}.data.copy_({y})", "{x}.detach().copy_({y})", "{x}.data[{i}] = 0.5",
)  # fmt: skip
METADATA = (
    "{x}.t_()", "{x}.transpose_(0, -1)", "{x}.squeeze_()", "{x}.unsqueeze_({d})",
    "{x}.squeeze_({d})", "{x}.swapaxes_(0, 1)",
)  # fmt: skip
STORAGE = ("{x}.set_({y})", "{x}.data = {y}", "{x}.resize_(2, 3)", "{x}.detach_()")
NUMBERS = ("{x} * {k}", "{x}.add_({k})", "{x}.mul_({k})", "torch.full_like({x}, {k})", "{x}[{k} :]")
REGIONS = (
    "with torch.no_grad():", "with torch.enable_grad():", "with torch.set_grad_enabled(False):",
    "with torch.set_grad_enabled(True):", "with torch.autograd.set_grad_enabled(False):",
)  # fmt: skip

ASSIGN, PAIR, DO, REGION = "assign", "pair", "do", "region"
FAMILIES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "pointwise": (ASSIGN, POINTWISE),
    "reduction": (ASSIGN, REDUCTIONS),
    "view": (ASSIGN, VIEWS),
    "pair": (PAIR, PAIRS),
    "function": (ASSIGN, FUNCTIONS),
    "mutation": (DO, MUTATIONS),
    "hidden": (DO, HIDDEN),
    "metadata": (DO, METADATA),
    "storage": (DO, STORAGE),
    "number": (DO, NUMBERS),
    "region": (REGION, REGIONS),
}
# How often a family is drawn, by the theme of the program.
THEMES: Mapping[str, Mapping[str, float]] = {
    "mixed": {
        "pointwise": 4, "reduction": 2, "view": 4, "pair": 1, "function": 1, "mutation": 4,
        "hidden": 0.5, "metadata": 0.5, "storage": 0.1, "number": 1, "region": 1.5,
    },
    "aliases": {"pointwise": 2, "view": 8, "pair": 2, "mutation": 1, "region": 0.5},
    "mutations": {
        "pointwise": 2, "view": 3, "mutation": 6, "hidden": 1, "metadata": 1, "storage": 0.3,
        "number": 0.5, "region": 1.5, "pair": 0.5, "function": 0.5,
    },
    "calculus": {"pointwise": 5, "reduction": 3, "view": 2, "function": 1, "mutation": 1.5, "region": 0.7},
}  # fmt: skip

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
    shape = rng.choice(("(n, 3)", "(n, 3)", "(3, n)", "(n,)", "(3,)", "(3, 3)", "(2, n, 3)", "()", "(1, 3)"))
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
        "{b}[:, 1:]", "{b}.view(3, -1)", "{b}.detach()", "{b}.unsqueeze(0)", "{b}[::2]", "{b}.chunk(2)[0]",
        "{b}.unbind()[0]", "{b}.unbind()[1]", "{b}.as_strided((2,), (1,), 1)",
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
        Statement(f"{leaf} = torch.randn((n, 3), generator=g, dtype={draft.dtype}).requires_grad_()")
    )
    view = Statement(f"{name} = {leaf}{rng.choice(('[1:]', '.t()', '[0]', '.view(-1)', '.detach()'))}")
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
    inner = {family: weight for family, weight in theme.items() if family not in ("region", "storage")}
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
    except Exception:  # whatever eager says of a random line, the line is not used
        return False
    new = {name: value for name, value in namespace.items() if name not in SCOPE and name[0] != "_"}
    if any(too_large(value) for value in new.values()):
        return False
    draft.values.update(new)
    return True


def make_scope() -> Values:
    text = "\n".join(["import torch", "import torch.nn.functional as F", TWO_TENSOR, *HELPERS.values()])
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
                outputs.append(name + rng.choice((".view(-1)", ".t()", "[0]", ".detach()", "[:]", ".unsqueeze(0)")))
            case "copy":
                outputs.append(f"{name} * 2.0")
            case "odd":
                outputs.append(rng.choice(("None", "3", f"{name}.dim()", "'done'", f"[{name}, None]")))
            case "again":
                outputs.append(outputs[-1] if outputs else name)
    accepted = [text for text in outputs if evaluates(draft, text)]
    return tuple(accepted) or (names[-1],)


def evaluates(draft: Draft, text: str) -> bool:
    try:
        eval(text, SCOPE | draft.values)
    except Exception:  # as in `execute`
        return False
    return True


# -- backward --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What eager made of the forward: what `after` may be written about."""

    outputs: tuple[str, ...]
    """Expressions in `out` of the differentiable outputs."""
    wrt: tuple[str, ...]
    tensors: tuple[str, ...]


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
    except Exception:  # the text of a program may differ from the lines run one by one
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
    except Exception:  # an error in backward is a result too; the caller decides whether to keep it
        return False
    return not any(too_large(value) for _, values in seen for value in values)


def write_after(program: Program, outcome: Outcome, rng: random.Random) -> list[Statement]:
    statements: list[Statement] = []
    if outcome.tensors and rng.random() < 0.3:
        statements.append(mutation_between(outcome, rng))
    if program.mode == "grad" and outcome.outputs and outcome.wrt:
        writers: list[Callable[[Outcome, random.Random], list[Statement]]]
        writers = [plain_backward, plain_backward, loss_backward, partial_grads, second_order, twice]
        statements += rng.choice(writers)(outcome, rng)
    return statements


def write_plain_after(program: Program, outcome: Outcome, rng: random.Random) -> list[Statement]:
    if program.mode != "grad" or not outcome.outputs or not outcome.wrt:
        return []
    return plain_backward(outcome, rng)


def mutation_between(outcome: Outcome, rng: random.Random) -> Statement:
    target = rng.choice(outcome.tensors)
    action = Statement(target + rng.choice((".add_(0.5)", ".mul_(0.5)", ".zero_()", ".detach().add_(1.0)")))
    if rng.random() < 0.5:
        return Statement("with torch.no_grad():", (action,))
    return action


def some(items: Sequence[str], rng: random.Random) -> list[str]:
    chosen = rng.sample(list(items), rng.randint(1, len(items)))
    return sorted(chosen)


def tangents(outputs: Sequence[str], rng: random.Random) -> str:
    forms = ("", "", "", ", 'expanded'", ", 'transposed'")
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
            f"torch.autograd.backward([{', '.join(first)}], {tangents(first, rng)}, retain_graph=True)"
        ),
        Statement(f"torch.autograd.backward([{', '.join(second)}], {tangents(second, rng)})"),
    ]


def partial_grads(outcome: Outcome, rng: random.Random) -> list[Statement]:
    outputs, wrt = some(outcome.outputs, rng), some(outcome.wrt, rng)
    first = (
        f"torch.autograd.grad([{', '.join(outputs)}], [{', '.join(wrt)}], {tangents(outputs, rng)}, "
        "allow_unused=True, retain_graph=True)"
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
