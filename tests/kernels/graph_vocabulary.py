"""What random graphs are made of: for each operation, the text of a call on some values.

A template is a text in which `x`, `y`, `z` stand for operands, `D` for one of x's dimensions, `S`
for a slice's bound, `T` for a type, `K` for a flag: see `graphs.filled`.
"""

from __future__ import annotations

from dataclasses import dataclass

FLOATS = ("F32", "F64", "BF16", "F16")
INTEGERS = ("torch.int64", "torch.int32", "torch.uint8")
TYPES = (*FLOATS, *INTEGERS, "torch.bool")


@dataclass(frozen=True)
class Template:
    """`kinds` has a letter for each operand: f(loat), i(nteger), b(ool), n(umber: float or
    integer), a(ny). `rank` is the least of x's dimensions.
    """

    kinds: str
    text: str
    rank: int = 0
    weight: float = 1.0


def _all(kinds: str, texts: str, rank: int = 0, weight: float = 1.0) -> tuple[Template, ...]:
    lines = [line.strip() for line in texts.strip().splitlines()]
    return tuple(Template(kinds, line, rank, weight) for line in lines)


UNARY = _all(
    "f",
    """
    x.sigmoid()
    x.tanh()
    x.relu()
    F.gelu(x)
    F.gelu(x, approximate="tanh")
    F.silu(x)
    x.sin()
    x.cos()
    x.abs().sqrt()
    (x.abs() + 1).rsqrt()
    (x * x + 0.5).log()
    x.abs().log1p()
    x.clamp(max=3).exp()
    x.clamp(-2, 2).expm1()
    x.erf()
    x.abs()
    -x
    (x.abs() + 0.5).reciprocal()
    x.floor()
    x.ceil()
    x.round()
    x.trunc()
    x.sign()
    x.square()
    x ** 3
    F.leaky_relu(x, 0.1)
    F.elu(x)
    F.softplus(x)
    F.hardtanh(x)
    F.hardswish(x)
    F.hardsigmoid(x.to(BF16))
    F.mish(x)
    F.logsigmoid(x)
    F.softsign(x)
    F.tanhshrink(x)
    F.softshrink(x, 0.3)
    F.threshold(x, 0.2, -1.0)
    F.relu6(x)
    F.selu(x)
    F.celu(x, 0.7)
    x.atan()
    x.clamp(-0.9, 0.9).asin()
    x.clamp(-3, 3).sinh()
    x.asinh()
    x.isnan()
    x.isfinite()
    x.nan_to_num(0.5)
    x * 0.5
    x - 2
    1.5 - x
    2 / (x.abs() + 1)
    x // 0.5
    x % 0.7
    x.clamp(min=-0.5)
    x.clamp(-1.0, 1.5)
    torch.where(x > 0, x, x * 0.1)
    torch.where(x < 0.5, 1.0, x)
    x.masked_fill(x > 1, -1.0)
    x.lerp(x * 2, 0.3)
    x.frac()
    x.logit(eps=0.1)
    x.signbit()
    F.dropout(x, 0.5, False)
    torch.zeros_like(x)
    torch.full_like(x, 1.25)
    x.clone()
    x.detach()
    """,
)

OF_INTEGERS = _all(
    "i",
    """
    -x
    x.abs()
    ~x
    x.sign()
    x // 3
    x % 3
    x // -2
    x % -5
    x << 2
    x >> 1
    x & 6
    x | 5
    x ^ 3
    x.clamp(1, 4)
    x * 3
    x + 1
    x - 7
    x.float() / 2
    x / 3
    x.square()
    x == 2
    x > 1
    F.one_hot(x.long().remainder(5), 5)
    x ** 2
    """,
    weight=0.6,
)

OF_BOOLS = _all(
    "b",
    """
    ~x
    x.logical_not()
    x & x.logical_not()
    x.float()
    x.long()
    x * 2
    x.any()
    x.sum(D)
    """,
    weight=0.5,
)

BINARY = (
    *_all(
        "nn",
        """
        x + y
        x - y
        x * y
        torch.maximum(x, y)
        torch.minimum(x, y)
        x.eq(y)
        x.gt(y)
        x.le(y)
        x.add(y, alpha=2)
        torch.where(x > y, x, y)
        torch.logical_and(x != 0, y != 0)
        torch.logical_xor(x != 0, y != 0)
        x.ne(y)
        """,
        weight=3,
    ),
    *_all(
        "ff",
        """
        x / (y.abs() + 0.5)
        torch.atan2(x, y.abs() + 0.5)
        x.remainder(y.abs() + 1)
        x.fmod(y.abs() + 1)
        torch.fmax(x, y)
        torch.fmin(x, y)
        torch.hypot(x, y + 1)
        torch.copysign(x, y)
        (x.abs() + 0.5) ** y.clamp(-2, 2)
        torch.lerp(x, y, 0.25)
        torch.addcmul(x, y, y, value=0.5)
        torch.addcdiv(x, y, y.abs() + 1)
        torch.logaddexp(x, y)
        torch.xlogy(x, y.abs() + 0.1)
        torch.rsub(x, y)
        F.mse_loss(x.expand_as(x + y), y.expand_as(x + y))
        F.smooth_l1_loss(x.expand_as(x + y), y.expand_as(x + y), reduction="none")
        F.huber_loss(x.expand_as(x + y), y.expand_as(x + y))
        F.binary_cross_entropy_with_logits(x.expand_as(x + y), y.expand_as(x + y).sigmoid())
        F.l1_loss(x.expand_as(x + y), y.expand_as(x + y))
        F.cosine_similarity(x.unsqueeze(-1), y.unsqueeze(-1), -1)
        """,
        weight=0.7,
    ),
    *_all(
        "ii",
        """
        x // (y.abs() % 7 + 1)
        x % (y.abs() % 7 + 1)
        x & y
        x | y
        x ^ y
        x << (y.abs() % 5)
        x >> (y.abs() % 5)
        torch.gcd(x, y)
        """,
        weight=0.4,
    ),
    *_all("baa", "torch.where(x, y, z)", weight=4),
    *_all("ab", "torch.where(y, x, 0)", weight=2),
    *_all("ab", "x.masked_fill(y, 1)", weight=2),
    *_all("bb", "x & y\nx | y\nx ^ y\nx == y"),
    *_all("fff", "torch.addcmul(x, y, z)\ntorch.lerp(x, y, z.sigmoid())\ntorch.clamp(x, y, z)"),
)

CASTS = _all("a", "x.to(T)", weight=14)

VIEWS = (
    *_all(
        "a",
        """
        x.transpose(D, -1)
        x.transpose(0, D)
        x.movedim(D, 0)
        x.flatten()
        x.reshape(-1)
        x.squeeze(D)
        x.unsqueeze(D)
        x.select(D, S)
        x[S:]
        x[..., S:]
        x[..., ::2]
        x[..., 1::3]
        x.narrow(D, S, 1)
        x.flip(D)
        x.flip(0, -1)
        x.unfold(D, 1, 1)
        x.unfold(D, 3, 2)
        x.diagonal(0, 0, -1)
        x.chunk(2, D)[0]
        x.chunk(3, D)[-1]
        x.split(4, D)[-1]
        x.unbind(D)[0]
        x.permute(*reversed(range(x.dim())))
        x.contiguous()
        x.roll(2, D)
        x.roll((1, -2), (0, -1))
        x.tril()
        x.triu(1)
        x.repeat_interleave(2, D)
        x.rot90(1, (0, -1))
        x[None]
        x[..., None]
        x[:, None]
        x[-1]
        x.as_strided((x.shape[0],), (x.stride(0),))
        """,
        rank=1,
        weight=0.8,
    ),
    *_all(
        "a",
        """
        x.reshape(x.shape[0] * x.shape[1], -1)
        x.flatten(0, 1)
        x.reshape(x.shape[1], x.shape[0], -1)
        x.reshape(-1, x.shape[0])
        x.mT
        x.diagonal(1, 0, 1)
        x.repeat(2, *[1] * (x.dim() - 1))
        """,
        rank=2,
    ),
    *_all("a", "x.expand(3, *x.shape)\nx.expand(2, 1, *x.shape)[:, 0]"),
)

JOINS = (
    *_all(
        "a",
        """
        torch.cat([x, x], D)
        torch.cat([x, x * 2, x[:1]], 0)
        torch.stack([x, x + 1], D)
        torch.stack([x, x], -1)
        F.pad(x, (1, 2))
        F.pad(x, (-1, 2))
        F.pad(x, (1, 0), value=2)
        F.pad(x, (0, 1, 2, 1))
        """,
        rank=1,
    ),
    *_all("f", 'F.pad(x[None], (1, 1), mode="reflect")[0]', rank=2),
    *_all("f", 'F.pad(x[None], (2, 1), mode="replicate")[0]', rank=2),
    *_all("f", 'F.pad(x[None], (1, 2), mode="circular")[0]', rank=2),
    *_all("aa", "torch.cat([x.flatten(), y.flatten()])", weight=2),
    *_all("aa", "torch.stack([x.expand_as(x * y), y.expand_as(x * y)])", weight=1),
    *_all("aa", "torch.cat([x.expand_as(x * y), y.expand_as(x * y)], -1)", rank=1, weight=2),
)

REDUCTIONS = (
    *_all(
        "n",
        """
        x.sum()
        x.sum(D)
        x.sum(D, keepdim=K)
        x.amax(D, keepdim=K)
        x.amin(D, keepdim=K)
        x.max(D, keepdim=K).values
        x.min(D).values
        x.max(D).indices
        x.argmax(D, keepdim=K)
        x.argmin(D)
        x.argmax()
        x.any(D)
        x.all(D)
        x.cumsum(D)
        torch.aminmax(x)[0]
        x.count_nonzero(D)
        x.max()
        x.cummax(D).values
        """,
        rank=1,
    ),
    *_all(
        "f",
        """
        x.mean()
        x.mean(D, keepdim=K)
        x.var(D, keepdim=K)
        x.var(D, correction=0)
        x.std(D, correction=0, keepdim=K)
        torch.var_mean(x, D, keepdim=K)[0]
        x.norm()
        x.norm(dim=D)
        torch.linalg.vector_norm(x, 1, D)
        torch.linalg.vector_norm(x, float("inf"), D)
        x.logsumexp(D, keepdim=K)
        x.softmax(D)
        x.softmax(-1)
        x.log_softmax(D)
        x.clamp(-1.1, 1.1).cumprod(D)
        x.logcumsumexp(D)
        x.clamp(0.8, 1.2).prod(D)
        x.nansum(D)
        F.softmin(x, D)
        F.normalize(x, dim=D)
        F.layer_norm(x, x.shape[-1:])
        F.rms_norm(x, x.shape[-1:])
        F.glu(torch.cat([x, x], D), D)
        x - x.mean(D, keepdim=True)
        x / (x.norm(dim=D, keepdim=True) + 1)
        """,
        rank=1,
        weight=1.2,
    ),
    *_all(
        "f",
        """
        x.sum((0, 1))
        x.mean((0, -1), keepdim=K)
        x.var((0, 1))
        x.logsumexp((0, 1))
        x.amax((0, -1))
        F.layer_norm(x, x.shape[-2:])
        F.batch_norm(x, None, None, training=True)
        F.cross_entropy(x.flatten(1), x.flatten(1).argmin(-1))
        F.cross_entropy(x.flatten(1), x.flatten(1).argmin(-1), label_smoothing=0.1, reduction="sum")
        F.nll_loss(x.flatten(1), torch.arange(x.shape[0]) % x.flatten(1).shape[1], reduction="none")
        F.kl_div(x.log_softmax(-1), x.softmax(0), reduction="sum")
        F.group_norm(x, 1)
        """,
        rank=2,
    ),
)

INDEXED = (
    *_all(
        "ai",
        """
        x[y.long().flatten() % x.shape[0]]
        x[..., y.long().flatten() % x.shape[-1]]
        x.index_select(D, y.long().flatten() % x.shape[D])
        torch.take(x, y.long() % x.numel())
        x[y.long().flatten() % x.shape[0], ..., 0]
        x[-1 - y.long().flatten() % x.shape[0]]
        x[y.long().flatten() % x.shape[0], y.long().flatten() % x.shape[-1]]
        """,
        rank=1,
        weight=1.5,
    ),
    *_all(
        "n",
        """
        x.gather(D, x.argsort(D))
        x.gather(D, (x.long() % 3 + 3) % 3 % x.shape[D])
        x.take_along_dim(x.argmax(D, keepdim=True), D)
        torch.zeros_like(x).scatter(D, (x.long() % 3 + 3) % x.shape[D] * 0, 2)
        torch.zeros_like(x).scatter_add(D, (x.long() % 3 + 3) % x.shape[D], x)
        x.index_add(0, torch.arange(x.shape[0]).flip(0), x)
        x.index_put((torch.arange(x.shape[0]) // 2,), x, accumulate=True)
        x.index_copy(0, torch.arange(x.shape[0]).flip(0), x)
        x.index_fill(D, torch.arange(1), 3)
        torch.bucketize(x, torch.arange(0, 5).to(x.dtype))
        x * torch.arange(x.shape[-1])
        x + torch.arange(x.shape[-1], dtype=x.dtype)
        torch.arange(x.shape[0])
        """,
        rank=1,
        weight=0.8,
    ),
    *_all("fi", "F.embedding(y.long() % x.flatten(1).shape[0], x.flatten(1))", rank=2, weight=3),
)

ATEN = (
    *_all("f", "x.sort(D).values\nx.topk(1, D).values\nx.unique()", rank=1, weight=0.5),
    *_all("f", "x.mT @ x\nx @ x.mT\nF.linear(x, x.flatten(0, -2))", rank=2),
    *_all("f", "F.avg_pool1d(x[None], 2)\nF.max_pool1d(x[None], 2)", rank=2, weight=0.5),
    *_all("i", "x.sort(D).values", rank=1, weight=0.3),
)

IN_PLACE = (
    *_all("a", "x.clone().add_(1)\nx.clone().zero_()\nx.clone().fill_(2)", weight=0.5),
    *_all("f", "x.clone().mul_(x).tanh_()\nx.clone().copy_(x.flip(0))", rank=1, weight=0.5),
)

GROUPS: tuple[tuple[float, tuple[Template, ...]], ...] = (
    (24, UNARY),
    (6, OF_INTEGERS),
    (3, OF_BOOLS),
    (18, BINARY),
    (6, CASTS),
    (16, VIEWS),
    (6, JOINS),
    (14, REDUCTIONS),
    (8, INDEXED),
    (3, ATEN),
    (2, IN_PLACE),
)
