"""What programs are written with: arguments, containers, closures, modes, Functions, transforms."""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracle import leaf, nonleaf, parameter, plain
from torch import Tensor, nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils.checkpoint import checkpoint
from wide.table import Programs

programs = Programs()
add = programs.add
X = lambda: leaf(4, 6)  # noqa: E731
BREAKS: dict[str, Any] = {"fullgraph": False}

# --- arguments and results --------------------------------------------------------------------

add("number and tensor", lambda x, n, f, b: x * n + f if b else x, lambda: (leaf(4), 3, 0.5, True))
add(
    "string and None",
    lambda x, s, o: x.sum() if s == "sum" and o is None else x,
    lambda: (leaf(4), "sum", None),
)
add("returns None", lambda x: None, lambda: plain(4))
add("returns numbers beside tensors", lambda x: (x * 2, 3, "a", None, 2.5, x.shape), X)
add("returns only constants", lambda x: (1, torch.ones(2)), lambda: plain(4))
add("returns a dictionary", lambda x: {"a": x + 1, "b": [x * 2, {"c": x.sum()}], 3: None}, X)
add(
    "takes nested containers",
    lambda d: d["a"][0] * d["b"][1]["c"],
    lambda: {"a": [leaf(4)], "b": (0, {"c": leaf(4)})},
)
add(
    "takes a list of tensors",
    lambda xs: sum(x * i for i, x in enumerate(xs)),
    lambda: [leaf(4) for _ in range(5)],
)
add("ordered dictionary", lambda x: OrderedDict(b=x + 1, a=x * 2), X)
add("fifty inputs", lambda *xs: torch.stack(xs).sum(0), lambda: tuple(leaf(3) for _ in range(50)))
add("fifty outputs", lambda x: [x * i for i in range(50)], lambda: leaf(3))
add("the same result twice", lambda x: (y := x.sin(), y, [y]), X)
add("result and argument", lambda x: (x, x * 2, x), X)
add("unused argument", lambda x, y: x * 2, lambda: (leaf(4), leaf(4)))
add("unused result of grad", lambda x, y: (x * 2, y.detach() * 3), lambda: (leaf(4), leaf(4)))
add("defaults", lambda x, scale=2.0, *, shift=1.0: x * scale + shift, lambda: leaf(4))
add("shape arithmetic", lambda x: x.view(x.shape[0] * 2, -1) / x.numel() + x.dim(), X)
add(
    "dtype and device of input",
    lambda x: torch.zeros(3, dtype=x.dtype, device=x.device) + x.is_floating_point(),
    X,
)
add("comprehension", lambda x: torch.stack([x[i] * i for i in range(4)]), X)
add("unpacking", lambda x: (lambda a, *b: a + sum(b))(*x.unbind(0)), X)
add("isinstance and len", lambda x: x * len(x) if isinstance(x, Tensor) else None, X)
add(
    "zip and enumerate",
    lambda x, y: [a * b for a, b in zip(x, y, strict=True)],
    lambda: (leaf(3), leaf(3)),
)
add(
    "sorted keys",
    lambda d: [d[k] * i for i, k in enumerate(sorted(d))],
    lambda: {"b": leaf(2), "a": leaf(2)},
)
add("partial", functools.partial(lambda a, x: x * a, 3.0), lambda: leaf(4))

Point = namedtuple("Point", "x y")


@dataclasses.dataclass
class Pair:
    left: Tensor
    right: Tensor


add("named tuple", lambda p: Point(p.y * 2, p.x + 1), lambda: Point(leaf(4), leaf(4)))
add("dataclass in", lambda p: p.left * p.right, lambda: Pair(leaf(4), leaf(4)))
add("dataclass out", lambda x: Pair(x + 1, x * 2), X)


@programs(lambda: ([leaf(4), leaf(4)],))
def list_is_mutated(xs: list[Tensor]) -> Tensor:
    xs.append(xs[0] * 2)
    xs[0] = xs[1] + 1
    return xs[2]


@programs(lambda: ({"a": leaf(4)},))
def dictionary_is_mutated(d: dict[str, Tensor]) -> Tensor:
    d["b"] = d["a"].sin()
    d.update(c=d["b"] + 1)
    return d.pop("a") * 2


@programs(lambda: (Pair(leaf(4), leaf(4)),))
def attribute_is_set(p: Pair) -> Tensor:
    p.left = p.right * 2
    return p.left + 1


SCALE = torch.full((6,), 3.0)
STATE = {"count": 0}


@programs(X)
def uses_a_global(x: Tensor) -> Tensor:
    return x * SCALE


@programs(X)
def writes_a_global_number(x: Tensor) -> Tensor:
    STATE["count"] = 5
    return x + STATE["count"]


@programs(X)
def closure(x: Tensor) -> Tensor:
    factor = x.sum()

    def inner(y: Tensor) -> Tensor:
        nonlocal factor
        factor = factor + 1
        return y * factor

    return inner(x) + inner(x.sin())


@programs(X)
def generator(x: Tensor) -> Tensor:
    def rows() -> Any:
        for i in range(4):
            yield x[i] * i

    return sum(rows(), torch.zeros(6))


@programs(X)
def try_and_except(x: Tensor) -> Tensor:
    try:
        if x.shape[0] == 4:
            raise ValueError("four")
        return x
    except ValueError:
        return x * 2


@programs(X)
def context_manager(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.abs().mean()
    return x / scale


@programs(X, **BREAKS)
def graph_break_in_the_middle(x: Tensor) -> Tensor:
    y = x.sin()
    torch._dynamo.graph_break()
    return y * x


@programs(X, **BREAKS)
def branch_on_data(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x * 2
    return x.cos()


@programs(X, **BREAKS)
def item_of_a_result(x: Tensor) -> Tensor:
    n = int(x.abs().sum().item()) % 3
    return x * (n + 1)


@programs(X, **BREAKS)
def break_with_an_alias_alive(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    v = y[0]
    torch._dynamo.graph_break()
    y.mul_(3)
    return v, y


@programs(X, **BREAKS)
def break_inside_a_loop(x: Tensor) -> Tensor:
    for i in range(3):
        x = x * (i + 1)
        torch._dynamo.graph_break()
    return x


@programs(lambda: plain(4), **BREAKS)
def numpy_in_the_middle(x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy() * 2) + 1


# --- modes ------------------------------------------------------------------------------------


@programs(X)
def no_grad_inside(x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        y = x * 2
    return y + x, y


@programs(X, grad_mode=(True, False))
def enable_grad_inside(x: Tensor) -> Tensor:
    with torch.enable_grad():
        return x * 2


@programs(X)
def set_grad_enabled_inside(x: Tensor) -> Tensor:
    torch.set_grad_enabled(False)
    y = x * 2
    torch.set_grad_enabled(True)
    return y * x


@programs(lambda: plain(4), contexts=(torch.inference_mode,), backward=False, scenarios=("full",))
def under_inference_mode(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, x[:2]


@programs(lambda: plain(4), **BREAKS)
def inference_mode_inside(x: Tensor) -> Tensor:
    with torch.inference_mode():
        y = x * 2
    return y.clone()


@programs(lambda: (leaf(4, 3), leaf(3, 5)))
def autocast_inside(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
    return y.float().relu()


@programs(
    lambda: (leaf(4, 3), leaf(3, 5)), contexts=(lambda: torch.autocast("cpu", torch.bfloat16),)
)
def under_autocast(x: Tensor, w: Tensor) -> Tensor:
    return F.layer_norm(x @ w, (5,)).softmax(-1)


@programs(X)
def detached_parts(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.sin()
    return y * y.detach(), y.detach()


@programs(X)
def straight_through(x: Tensor) -> Tensor:
    return x + (x.round() - x).detach()


@programs(X, **BREAKS)
def retained_grad(x: Tensor) -> Tensor:
    y = x * 2
    y.retain_grad()
    return y.sin()


@programs(X)
def hook_on_an_intermediate(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda g: g * 3)
    return y.sin()


@programs(X, **BREAKS)
def gradient_inside(x: Tensor) -> Tensor:
    y = (x * x).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    return g * 2


@programs(lambda: plain(4, 6), **BREAKS)
def backward_inside(x: Tensor) -> Tensor:
    w = torch.ones(6, requires_grad=True)
    (x * w).sum().backward()
    return (w.grad if w.grad is not None else w) * 2


@programs(X)
def deterministic_flag_is_read(x: Tensor) -> Tensor:
    return x * (2 if torch.are_deterministic_algorithms_enabled() else 3)


@programs(X)
def grad_mode_is_read(x: Tensor) -> Tensor:
    return x * (2 if torch.is_grad_enabled() else 3)


# --- custom autograd functions ----------------------------------------------------------------


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return 3 * x * x * g


class Setup(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, n: float) -> tuple[Tensor, Tensor]:
        return x * n, x.sum()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.n = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> Any:  # type: ignore[override]
        return g * ctx.n * 2 + h, None


class Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        places = x.argsort()
        ctx.mark_non_differentiable(places)
        return x * 2, places

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> Tensor:  # type: ignore[override]
        return g * 5


class NoneGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(w)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        return g * ctx.saved_tensors[0], None


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return -g


class SavesNumbers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.count = x.shape[0]
        ctx.out = None
        return x.sum(0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return g.expand(ctx.count, *g.shape) * 2


class SavesOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return g * ctx.saved_tensors[0]


class Unmaterialised(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, g: Any, h: Any) -> Any:  # type: ignore[override]
        total = None
        for grad, by in ((g, 2), (h, 3)):
            if grad is not None:
                total = grad * by if total is None else total + grad * by
        return total


class ReadsNeeds(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        x, w = ctx.saved_tensors
        left = g @ w.t() if ctx.needs_input_grad[0] else None
        right = x.t() @ g if ctx.needs_input_grad[1] else None
        return left, right


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return g * 2


add("function: formula", lambda x: Cube.apply(x) * 2, X)
add("function: setup_context", lambda x: Setup.apply(x, 3.0), X)
add("function: non differentiable", lambda x: Marked.apply(x), X)
add("function: no gradient", lambda x, w: NoneGrad.apply(x, w), lambda: (leaf(4), leaf(4)))
add("function: reversal", lambda x: Reversed.apply(x) + x.sin(), X)
add("function: numbers saved", lambda x: SavesNumbers.apply(x), X)
add("function: output saved", lambda x: SavesOutput.apply(x) + 1, X)
add("function: unmaterialised", lambda x: Unmaterialised.apply(x)[0].sum(), X)
add(
    "function: needs_input_grad",
    lambda x, w: ReadsNeeds.apply(x, w),
    lambda: (leaf(4, 3), plain(3, 2)),
)
add("function: in place", lambda x: InPlace.apply(x * 1) + 1, X, **BREAKS)
add("function: nested", lambda x: Cube.apply(Cube.apply(x)), X)
add("function: without grad", lambda x: Cube.apply(x), lambda: plain(4))
add("function: result unused", lambda x: (Cube.apply(x), x * 2)[1], X)

# --- transforms -------------------------------------------------------------------------------

# Their results are views of a batch in eager, where they cannot be written to.
QUIET: dict[str, Any] = {"scenarios": ("full", "partial")}
add("func: grad", lambda x: torch.func.grad(lambda t: (t**3).sum())(x), X)
add("func: grad and value", lambda x: torch.func.grad_and_value(lambda t: t.sin().sum())(x), X)
add("func: vmap", lambda x, w: torch.vmap(lambda r: r @ w)(x), lambda: (leaf(4, 3), leaf(3)))
add("func: vmap of grad", lambda x: torch.vmap(torch.func.grad(lambda r: (r**2).sum()))(x), X)
add(
    "func: vmap in_dims",
    lambda x, y: torch.vmap(torch.dot, in_dims=(0, 1))(x, y),
    lambda: (leaf(4, 3), leaf(3, 4)),
)
add(
    "func: vmap random",
    lambda x: torch.vmap(lambda r: r + torch.rand_like(r), randomness="different")(x),
    X,
)
add("func: jvp", lambda x, t: torch.func.jvp(torch.sin, (x,), (t,)), lambda: (leaf(4), plain(4)))
add("func: vjp", lambda x, t: torch.func.vjp(torch.sin, x)[1](t)[0], lambda: (leaf(4), plain(4)))
add("func: jacrev", lambda x: torch.func.jacrev(lambda t: t**2)(x), lambda: leaf(3), **QUIET)
add("func: jacfwd", lambda x: torch.func.jacfwd(lambda t: t**2)(x), lambda: leaf(3), **QUIET)
add(
    "func: hessian",
    lambda x: torch.func.hessian(lambda t: (t**3).sum())(x),
    lambda: leaf(3),
    **QUIET,
)


@programs(lambda: (nn.Linear(3, 2), leaf(4, 3)))
def functional_call(m: nn.Module, x: Tensor) -> Tensor:
    state = {k: v * 2 for k, v in m.named_parameters()}
    return torch.func.functional_call(m, state, (x,))


@programs(lambda: (parameter(3, 2), plain(5, 3)))
def gradients_per_sample(w: Tensor, x: Tensor) -> Tensor:
    loss = lambda w, row: ((row @ w) ** 2).sum()  # noqa: E731
    return torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(w, x)


@programs(lambda: plain(4))
def forward_mode(x: Tensor) -> Tensor:
    return torch.func.jvp(lambda t: t * t.cos(), (x,), (torch.ones_like(x),))[1]


# --- control flow -----------------------------------------------------------------------------

add("cond", lambda x: torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t * 2, (x,)), X)
add(
    "cond on a shape",
    lambda x: torch.cond(x.shape[0] > 2, lambda t: t + 1, lambda t: t - 1, (x,)),
    X,
)
add(
    "map",
    lambda x, w: torch._higher_order_ops.map(lambda r, w: r * w, x, w),
    lambda: (leaf(4, 3), leaf(3)),
)
add("scan", lambda c, x: scan(lambda c, r: (c + r, c * r), c, x), lambda: (leaf(3), leaf(4, 3)))
add(
    "associative scan",
    lambda x: associative_scan(torch.add, x, 0, combine_mode="generic"),
    lambda: plain(4, 3),
    grad_mode=(False,),
)


@programs(lambda: plain(4), grad_mode=(False,))
def loop(x: Tensor) -> Any:
    return while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, t * 2), (torch.tensor(0), x))


# --- checkpoints ------------------------------------------------------------------------------

add("checkpoint", lambda x: checkpoint(lambda t: t.sin().exp(), x, use_reentrant=False) * 2, X)
add(
    "checkpoint with dropout",
    lambda x: checkpoint(lambda t: F.dropout(t.sin(), 0.5), x, use_reentrant=False),
    X,
)
add(
    "checkpoint of two",
    lambda x, w: checkpoint(torch.mm, x, w, use_reentrant=False).relu(),
    lambda: (leaf(4, 3), leaf(3, 2)),
)
add(
    "checkpoint reentrant",
    lambda x: checkpoint(lambda t: t.sin(), x * 1, use_reentrant=True),
    X,
    **BREAKS,
)
add(
    "checkpoints in a row",
    lambda x: checkpoint(
        torch.sin, checkpoint(torch.exp, x, use_reentrant=False), use_reentrant=False
    ),
    X,
)


@programs(lambda: (leaf(4, 3), leaf(3, 3)))
def selective_checkpoint(x: Tensor, w: Tensor) -> Tensor:
    policy = functools.partial(
        torch.utils.checkpoint.create_selective_checkpoint_contexts, [torch.ops.aten.mm.default]
    )
    return checkpoint(
        lambda x, w: (x @ w).sigmoid() @ w, x, w, use_reentrant=False, context_fn=policy
    )


# --- custom operations ------------------------------------------------------------------------


@torch.library.custom_op("wide::double", mutates_args=())
def double(x: Tensor) -> Tensor:
    return x * 2


@double.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


double.register_autograd(lambda ctx, g: g * 2)


@torch.library.custom_op("wide::bump", mutates_args=("x",))
def bump(x: Tensor, by: float) -> None:
    x.add_(by)


@torch.library.custom_op("wide::split_up", mutates_args=())
def split_up(x: Tensor) -> list[Tensor]:
    return [row.clone() for row in x]


@split_up.register_fake
def _(x: Tensor) -> list[Tensor]:
    return [torch.empty_like(x[0]) for _ in range(x.shape[0])]


add("custom op", lambda x: double(x) + 1, X)
add("custom op that writes", lambda x: (bump(x, 2.0), x * 3)[1], lambda: plain(4))
add(
    "custom op that writes an intermediate",
    lambda x: (y := x * 1, bump(y, 2.0), y * 3)[2],
    lambda: plain(4),
)
add("custom op that writes a view", lambda x: (bump(x[0], 2.0), x * 3)[1], lambda: plain(4, 3))
add("custom op of several results", lambda x: split_up(x)[1] * 2, lambda: plain(3, 2))

# --- randomness -------------------------------------------------------------------------------

add("random: dropout", lambda x: F.dropout(x, 0.5), X)
add(
    "random: alpha and feature dropout",
    lambda x: F.alpha_dropout(x, 0.2) + F.feature_alpha_dropout(x, 0.2),
    lambda: leaf(2, 3, 4),
)
add(
    "random: of all kinds",
    lambda x: (torch.rand(3), torch.randn_like(x), torch.randint(5, (3,)), torch.randperm(5)),
    X,
)
add("random: bernoulli", lambda x: torch.bernoulli(x.sigmoid()) * x, X)
add("random: in place", lambda x: x * torch.empty(6).uniform_(0, 1).exponential_(), X)
add("random: rrelu", lambda x: F.rrelu(x, training=True), X)
add(
    "random: attention with dropout",
    lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.3),
    lambda: leaf(1, 2, 4, 8),
)
add("random: gumbel softmax", lambda x: F.gumbel_softmax(x, hard=True), X)


@programs(X, **BREAKS)
def seeded_inside(x: Tensor) -> Tensor:
    torch.manual_seed(3)
    return x + torch.rand(6)


# --- data-dependent sizes ---------------------------------------------------------------------

captured = Programs()

captured.add("nonzero", lambda x: x.nonzero(), lambda: plain(4, 6))
captured.add("masked select", lambda x: x.masked_select(x > 0).sum(), X)
captured.add("boolean index", lambda x: x[x[:, 0] > -9] * 2, X)
captured.add("item", lambda x: x * x.sum().item(), lambda: plain(4))
captured.add("item of an integer", lambda x: torch.zeros(8) + x.argmax().item(), lambda: plain(4))
captured.add(
    "size from data", lambda x: torch.arange(x.abs().sum().int().item() + 1), lambda: plain(4)
)
captured.add("unique", lambda x: torch.unique(x), lambda: plain(8, dtype=torch.int64))
captured.add("nonzero and grad", lambda x: x[x.detach().abs().sum(1).nonzero()[:, 0]].sin(), X)
captured.add(
    "repeat interleave",
    lambda x, n: x.repeat_interleave(n, 0),
    lambda: (leaf(3, 2), torch.tensor([1, 2, 0])),
)
captured.add("view of what has no known size", lambda x: (y := x[x > -9.0] * 2, y.view(-1, 1)), X)
captured.add(
    "tolist",
    lambda x, n: torch.cat([x.narrow(0, 0, 2), x.new_ones(n.tolist()[0], 6)]),
    lambda: (leaf(4, 6), torch.tensor([3, 1])),
)


@captured(X)
def written_view_of_what_has_no_known_size(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x[x > -9.0] * 2
    v = y[1:]
    v.add_(1)
    return y, v


# --- dynamic sizes ----------------------------------------------------------------------------

dynamic = Programs(calls=(4, 6, 9), dynamic=(None, True))
dynamic.add("pointwise", lambda x: x.sin() * x.shape[0], lambda n: leaf(n, 3))
dynamic.add(
    "views", lambda x: (x.view(-1), x.t(), x[: x.shape[0] // 2], x * 2), lambda n: leaf(n, 4)
)
dynamic.add(
    "views of an intermediate",
    lambda x: (y := x * 2, y[1:], y.view(2, -1), y.t()),
    lambda n: leaf(n, 4),
)
dynamic.add("reduction", lambda x: x.mean(0) + x.sum() / x.numel(), lambda n: leaf(n, 3))
dynamic.add("matmul", lambda x, w: (x @ w).relu(), lambda n: (leaf(n, 3), leaf(3, 5)))
dynamic.add("softmax", lambda x: x.softmax(0), lambda n: leaf(3, n))
dynamic.add("cat", lambda x, y: torch.cat([x, y]), lambda n: (leaf(n, 3), leaf(n + 1, 3)))
dynamic.add("arange", lambda x: x + torch.arange(x.shape[0])[:, None], lambda n: leaf(n, 3))
dynamic.add("number argument", lambda x, n: x * n, lambda n: (leaf(4), n))
dynamic.add("float argument", lambda x, f: x * f + f, lambda n: (leaf(4), n * 0.5))
dynamic.add("written input", lambda x: (x.mul_(2), x[1:])[1], lambda n: plain(n, 3))
dynamic.add(
    "written views",
    lambda x, y: (x.mul_(2), y.add_(1), x + y)[2],
    lambda n: (lambda b: (b[:, :2], b[:, 1:]))(plain(n, 3)),
)
dynamic.add(
    "conv", lambda x, w: F.conv2d(x, w, padding=1), lambda n: (leaf(1, 2, n, n), leaf(3, 2, 3, 3))
)
dynamic.add(
    "attention",
    lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True),
    lambda n: leaf(1, 2, n, 8),
)
dynamic.add(
    "batch norm", lambda x: F.batch_norm(x, None, None, training=True), lambda n: leaf(n, 3)
)
dynamic.add(
    "embedding",
    lambda i, w: F.embedding(i, w).sum(1),
    lambda n: (plain(n, 2, dtype=torch.int64), leaf(5, 3)),
)
dynamic.add("chunks", lambda x: [c * 2 for c in x.chunk(2)], lambda n: leaf(n, 3))
dynamic.add("expand", lambda x: x.expand(x.shape[0], 5).sum(0) + x, lambda n: leaf(n, 1))
dynamic.add("padding", lambda x: F.pad(x, (0, 10 - x.shape[0])), lambda n: leaf(n))
dynamic.add(
    "branch on a size", lambda x: x * 2 if x.shape[0] > 5 else x.sin(), lambda n: leaf(n, 3)
)
dynamic.add("size returned", lambda x: (x.shape[0] * 2, x * 2), lambda n: leaf(n, 3))
dynamic.add(
    "checkpoint",
    lambda x: checkpoint(lambda t: t.sin().exp(), x, use_reentrant=False),
    lambda n: leaf(n, 3),
)
dynamic.add("transposed input", lambda x: x * 2, lambda n: leaf(3, n).t())
dynamic.add("nonleaf", lambda x: x.add_(1).sin(), lambda n: nonleaf(n, 3))


@pytest.mark.parametrize("name", programs)
def test_languages(name: str) -> None:
    programs[name].run()


@pytest.mark.parametrize("name", captured)
def test_sizes_that_depend_on_data(name: str) -> None:
    with torch._dynamo.config.patch(
        capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True
    ):
        captured[name].run()


@pytest.mark.parametrize("name", dynamic)
def test_sizes_that_vary(name: str) -> None:
    dynamic[name].run()
