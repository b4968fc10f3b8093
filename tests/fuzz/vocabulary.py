"""What a generated program may say: the helpers it calls, and its lines as templates."""

from __future__ import annotations

from collections.abc import Mapping

TWO_TENSOR = "from torch.testing._internal.two_tensor import TwoTensor"

# What a program's text may call. Only the ones it names are printed with it.
HELPERS: Mapping[str, str] = {
    "Square": """\
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad
""",
    "SaveOutput": """\
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
""",
    "StraightThrough": """\
class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x * 4) / 4

    @staticmethod
    def backward(ctx, grad):
        return grad
""",
    "DoubleInPlace": """\
class DoubleInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2.0)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2.0
""",
    "WithMask": """\
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
""",
    "Identity": """\
class Identity(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scale, None
""",
    "TwoOutputs": """\
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
""",
    "two(": """\
def two(a, b, requires_grad=False):
    return TwoTensor(a, b).requires_grad_(requires_grad)
""",
    "tangent(": """\
def tangent(out, seed, form="plain"):
    g = torch.Generator().manual_seed(seed)
    t = torch.randn(out.shape, generator=g, dtype=out.dtype)
    if form == "expanded":
        t = torch.randn((), generator=g, dtype=out.dtype).expand(out.shape)
    if form == "transposed":
        t = torch.randn(tuple(reversed(out.shape)), generator=g, dtype=out.dtype)
        t = t.permute(tuple(reversed(range(out.dim()))))
    if isinstance(out, TwoTensor) and form != "unwrapped":
        return TwoTensor(t, t * 0.5)
    return t
""",
    "second(": """\
def second(grads, wrt, create_graph=False):
    terms = [(g * g).sum() for g in grads if g is not None and g.requires_grad]
    if not terms:
        return ()
    return torch.autograd.grad(sum(terms), wrt, allow_unused=True, create_graph=create_graph)
""",
}

# Templates: {x} {y} {z} tensors in scope, {d} a dimension of x, {i} an index, {k} a number.
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
    "{x}.transpose(0, -1)", "{x}.select({d}, {i})", "{x}[{i}]", "{x}[1:]", "{x}[:2]",
    "{x}[..., 1:]", "{x}[:, 0]", "{x}[::2]", "{x}[:]", "{x}.narrow({d}, 1, 2)",
    "{x}.unsqueeze({d})",
    "{x}.squeeze()", "{x}.squeeze({d})", "{x}.expand(2, *{x}.shape)", "{x}.expand({x}.shape)",
    "{x}.diagonal()",
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
    "{x}.copy_({y})", "{x}.zero_()", "{x}.fill_(0.5)", "{x}.sin_()", "{x}.tanh_()",
    "{x}.sigmoid_()", "{x}.clamp_(-0.5, 0.5)", "{x}.masked_fill_({x} > 0, 0.25)", "{x} += 1.0",
    "{x} *= {y}",
    "{x}[{i}] = {y}", "{x}[1:] = 0.25", "{x}[1:] = {x}[:-1].clone()", "{x}[:, 0] = {y}",
    "{x}[:, 0] = 0.0", "{x}[{x} > 0] = 0.125", "{x}[1:].mul_(0.5)", "{x}[{i}].add_({y})",
    "{x}.index_put_((torch.tensor([0, 1]),), {y})",
    "{x}.index_put_((torch.tensor([1, 1]),), {y}, accumulate=True)",
    "{x}.index_add_({d}, torch.tensor([0, 1]), {y})",
    "{x}.index_fill_({d}, torch.tensor([0]), 0.5)",
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
    "calculus": {
        "pointwise": 5, "reduction": 3, "view": 2, "function": 1, "mutation": 1.5, "region": 0.7,
    },
}  # fmt: skip
