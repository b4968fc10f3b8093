"""Operations of all families, each in a program of its own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from oracle import leaf, nonleaf, parameter, plain
from torch import Tensor
from wide.table import Programs, some

programs = Programs()
add = programs.add


def positive(*shape: int) -> Tensor:
    return (torch.rand(shape) + 0.5).requires_grad_()


def two(*shape: int) -> tuple[Tensor, Tensor]:
    return leaf(*shape), leaf(*shape)


def symmetric(n: int) -> Tensor:
    a = torch.randn(n, n)
    return (a @ a.t() + n * torch.eye(n)).requires_grad_()


# pointwise
add("polynomial", lambda x: x * x * 3 + x - 1, lambda: leaf(4, 3))
add("trigonometry", lambda x: (x.sin(), x.cos(), x.tanh(), x.atan(), x.sinh()), lambda: leaf(4, 3))
add("logs and roots", lambda x: x.log() + x.log1p() + x.sqrt() + x.rsqrt(), lambda: positive(4, 3))
add("powers", lambda x: x**2 + x**0.5 + 2**x + x**x, lambda: positive(4, 3))
add("broadcast", lambda x, y: x * y + y, lambda: (leaf(4, 1, 3), leaf(5, 1)))
add("where", lambda x, y: torch.where(x > y, x * 2, y.exp()), lambda: two(4, 3))
add("clamp", lambda x: (x.clamp(-1, 1), x.clamp(min=0), x.clamp_max(0.5)), lambda: leaf(4, 3))
add("clamp by tensors", lambda x, y: x.clamp(y, y + 1), lambda: two(4, 3))
add("minimum and maximum", lambda x, y: torch.minimum(x, y) + torch.maximum(x, y), lambda: two(4))
add("division", lambda x, y: (x / y, x.detach() // 2, x % 3), lambda: (leaf(4, 3), positive(4, 3)))
add("rounding", lambda x: (x.round(), x.floor(), x.ceil(), x.trunc(), x.frac()), lambda: leaf(4))
add("signs", lambda x, y: (x.abs(), x.sign(), torch.copysign(x, y)), lambda: two(4, 3))
add("lerp and addcmul", lambda x, y: torch.lerp(x, y, 0.3) + torch.addcmul(x, y, y), lambda: two(4))
add("comparisons", lambda x, y: (x > y, x == y, x.ne(y), x.isfinite()), lambda: two(4, 3))
add("logic", lambda x, y: (x & y, x | ~y, x ^ y), lambda: two_bools())
add("shifts", lambda x: (x << 2, x >> 1, x & 3, ~x), lambda: plain(4, 3, dtype=torch.int64))
add("nan to num", lambda x: torch.nan_to_num(x.log()), lambda: leaf(4, 3))
add("erf and gamma", lambda x: x.erf() + x.lgamma() + x.digamma(), lambda: positive(4, 3))
add("special", lambda x: torch.special.expit(x) + torch.special.i0(x), lambda: leaf(4, 3))
add("xlogy", lambda x, y: torch.xlogy(x, y), lambda: (leaf(4), positive(4)))
add("hypot and atan2", lambda x, y: torch.hypot(x, y) + torch.atan2(x, y), lambda: two(4, 3))
add("logaddexp", lambda x, y: torch.logaddexp(x, y), lambda: two(4, 3))
add("heaviside", lambda x, y: torch.heaviside(x, y), lambda: (plain(4), plain(4)))
add("cumulated", lambda x: (x.cumsum(0), x.cumprod(1), x.logcumsumexp(0)), lambda: leaf(4, 3))
add("cummax", lambda x: (*x.cummax(0), *x.cummin(1)), lambda: leaf(4, 3))
add("diff", lambda x: x.diff(dim=0) + x.diff(dim=0).roll(1, 0), lambda: leaf(4, 3))
add("same value twice", lambda x: (y := x.exp()) + y, lambda: leaf(4))


def two_bools() -> tuple[Tensor, Tensor]:
    return plain(4, 3, dtype=torch.bool), plain(4, 3, dtype=torch.bool)


# activations
for activation in (
    F.relu, F.gelu, F.silu, F.elu, F.selu, F.celu, F.mish, F.softplus, F.hardtanh, F.hardswish,
    F.leaky_relu, F.logsigmoid, F.softsign, F.tanhshrink, F.hardsigmoid, F.relu6, F.glu,
):  # fmt: skip
    add(activation.__name__, lambda x, f=activation: f(x) * 2, lambda: leaf(4, 6))
add("prelu", F.prelu, lambda: (leaf(2, 3, 4), leaf(3)))
add("rrelu in evaluation", lambda x: F.rrelu(x, training=False), lambda: leaf(4))
add("threshold", lambda x: F.threshold(x, 0.1, 20), lambda: leaf(4, 3))
add("softmax", lambda x: (x.softmax(1), x.log_softmax(0), F.softmin(x, 1)), lambda: leaf(4, 3))
add("softmax in float64", lambda x: x.softmax(-1, dtype=torch.float64), lambda: leaf(4, 3))

# reductions
add("sums", lambda x: (x.sum(), x.sum(0), x.sum((0, 2), keepdim=True)), lambda: leaf(2, 3, 4))
add("means", lambda x: (x.mean(), x.mean(1), x.nanmean()), lambda: leaf(4, 3))
add("variance", lambda x: (x.var(), x.std(0), *torch.var_mean(x, 1)), lambda: leaf(4, 3))
add("variance without correction", lambda x: x.var(1, correction=0), lambda: leaf(4, 3))
add("products", lambda x: (x.prod(), x.prod(1)), lambda: leaf(4, 3))
add("extremes", lambda x: (x.max(), x.min(), *x.max(0), *x.min(1)), lambda: leaf(4, 3))
add("amax and amin", lambda x: (x.amax(0), x.amin((0, 1)), *x.aminmax(dim=0)), lambda: leaf(4, 3))
add("argmax", lambda x: (x.argmax(), x.argmin(1), x.argsort(0)), lambda: leaf(4, 3))
add("norms", lambda x: (x.norm(), x.norm(1, dim=0), x.norm(p=float("inf"))), lambda: leaf(4, 3))
add("logsumexp", lambda x: x.logsumexp((0, 1)) + x.logsumexp(1).sum(), lambda: leaf(4, 3))
add("any and all", lambda x: ((x > 0).any(), (x > 0).all(1), x.count_nonzero()), lambda: leaf(4, 3))
add("median", lambda x: (x.median(), *x.median(1), *x.mode(0)), lambda: leaf(5, 3))
add("quantile", lambda x: x.quantile(torch.tensor([0.25, 0.5]), dim=0), lambda: leaf(5, 3))
add("nansum", lambda x: torch.where(x > 0, x, torch.nan).nansum(), lambda: leaf(4, 3))
add("sum of integers", lambda x: (x.sum(), x.prod()), lambda: plain(4, dtype=torch.int32))
add("histogram", lambda x: torch.histc(x, 4, -2, 2), lambda: plain(10))
add("bincount of known size", lambda x: torch.bincount(x, minlength=5)[:5], lambda: integers(5, 8))
add("renorm", lambda x: torch.renorm(x, 2, 0, 1.0), lambda: leaf(4, 3))
add("cosine similarity", lambda x, y: F.cosine_similarity(x, y), lambda: two(4, 3))
add("pairwise distance", lambda x, y: F.pairwise_distance(x, y), lambda: two(4, 3))
add("cdist", lambda x, y: torch.cdist(x, y), lambda: (leaf(4, 3), leaf(5, 3)))
add("normalize", lambda x: F.normalize(x, dim=1), lambda: leaf(4, 3))
add("trace and diag", lambda x: (x.trace(), x.diag(), x.diagonal(1)), lambda: leaf(4, 4))


def integers(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape)


# indexing
add("select rows", lambda x, i: x[i] * 2, lambda: (leaf(4, 3), integers(4, 6)))
add("index pairs", lambda x, i, j: x[i, j], lambda: (leaf(4, 3), integers(4, 6), integers(3, 6)))
add("index across a slice", lambda x, i: x[:, i, ::2], lambda: (leaf(2, 4, 5), integers(4, 2, 2)))
add("index with None", lambda x: x[None, ..., None] * x[..., :1, None], lambda: leaf(4, 3))
add("negative and stepped", lambda x: x[-2:, ::2] + x[:2, 1:], lambda: leaf(4, 3))
add("gather", lambda x, i: x.gather(1, i), lambda: (leaf(4, 3), integers(3, 4, 5)))
add("take along", lambda x: x.take_along_dim(x.argsort(1), 1), lambda: leaf(4, 3))
add("take", lambda x, i: x.take(i), lambda: (leaf(4, 3), integers(12, 5)))
add("index select", lambda x, i: x.index_select(1, i), lambda: (leaf(4, 3), integers(3, 5)))
add(
    "index add",
    lambda x, i, y: x.index_add(0, i, y),
    lambda: (leaf(4, 3), integers(4, 2), leaf(2, 3)),
)
add(
    "index copy",
    lambda x, y: x.index_copy(0, torch.tensor([2, 0]), y),
    lambda: (leaf(4, 3), leaf(2, 3)),
)
add("index fill", lambda x, i: x.index_fill(0, i, 2.0), lambda: (leaf(4, 3), integers(4, 2)))
add(
    "index put",
    lambda x, y: x.index_put((torch.tensor([1, 3]),), y),
    lambda: (leaf(4, 3), leaf(2, 3)),
)
add("index put accumulated", lambda x, i, y: x.index_put((i,), y, accumulate=True),
    lambda: (leaf(4, 3), integers(4, 6), leaf(6, 3)))  # fmt: skip
add("scatter", lambda x, y: x.scatter(1, torch.tensor([[0, 2], [1, 0]]), y),
    lambda: (leaf(2, 3), leaf(2, 2)))  # fmt: skip
add("scatter add", lambda x, i, y: x.scatter_add(0, i, y),
    lambda: (leaf(4, 3), integers(4, 5, 3), leaf(5, 3)))  # fmt: skip
add("scatter reduce", lambda x, i, y: x.scatter_reduce(0, i, y, "amax"),
    lambda: (leaf(4, 3), integers(4, 5, 3), leaf(5, 3)))  # fmt: skip
add("masked fill", lambda x: x.masked_fill(x > 0, -1.0), lambda: leaf(4, 3))
add("masked scatter", lambda x, y: x.masked_scatter(x > 0, y), lambda: two(4, 3))
add("one hot", lambda i: F.one_hot(i, 5), lambda: integers(5, 4))
add("triangles", lambda x: x.tril() + x.triu(1), lambda: leaf(4, 4))
add("roll and flip", lambda x: x.roll(1, 0).flip(1) + x.rot90(2), lambda: leaf(4, 3))
add("slice scatter", lambda x, y: x.slice_scatter(y, 0, 1, 3), lambda: (leaf(4, 3), leaf(2, 3)))
add("select scatter", lambda x, y: x.select_scatter(y, 0, 1), lambda: (leaf(4, 3), leaf(3)))
add("diagonal scatter", lambda x, y: x.diagonal_scatter(y), lambda: (leaf(4, 4), leaf(4)))
add("meshgrid", lambda x, y: sum(torch.meshgrid(x, y, indexing="ij")), lambda: (leaf(4), leaf(3)))
add("searchsorted", lambda x, y: torch.searchsorted(x, y), lambda: (plain(5).sort()[0], plain(3)))
add("bucketize", lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])), lambda: plain(6))

# ordering
add("sort", lambda x: (*x.sort(0), *x.sort(1, descending=True)), lambda: leaf(4, 3))
add("topk", lambda x: (*x.topk(2, 1), *x.kthvalue(2, 0)), lambda: leaf(4, 3))
add("msort", lambda x: torch.msort(x) * 2, lambda: leaf(4, 3))

# joining and shaping
add("cat", lambda x, y: torch.cat([x, y, x], 0), lambda: two(4, 3))
add("stack", lambda x, y: torch.stack([x, y], -1) * 2, lambda: two(4, 3))
add(
    "hstack and vstack",
    lambda x, y: (torch.hstack([x, y]), torch.vstack([x, y])),
    lambda: two(4, 3),
)
add("split and sum", lambda x: sum(p.sum(0) for p in x.split([1, 2, 1])), lambda: leaf(4, 3))
add("repeat", lambda x: (x.repeat(2, 1), x.repeat_interleave(2, 0), x.tile(2)), lambda: leaf(4, 3))
add("pad", lambda x: F.pad(x, (1, 2)) + F.pad(x, (2, 1), value=3.0), lambda: leaf(4, 3))
add("pad by reflection", lambda x: F.pad(x, (1, 1), mode="reflect"), lambda: leaf(2, 3, 4))
add("pad by replication", lambda x: F.pad(x, (1, 1), mode="replicate"), lambda: leaf(2, 3, 4))
add("pad around", lambda x: F.pad(x, (1, 1), mode="circular"), lambda: leaf(2, 3, 4))
add("unfold", lambda x: x.unfold(0, 2, 1) * 2, lambda: leaf(4, 3))
add("pixel shuffle", lambda x: F.pixel_shuffle(x, 2), lambda: leaf(1, 8, 3, 3))
add("block diagonal", lambda x, y: torch.block_diag(x, y), lambda: (leaf(2, 2), leaf(3, 1)))
add(
    "constants inside",
    lambda x: x + torch.arange(3) + torch.ones(3) * torch.tensor(2.0),
    lambda: leaf(4, 3),
)
add("tensor from numbers", lambda x: x * torch.tensor([1.0, 2.0, 3.0]), lambda: leaf(4, 3))
add(
    "new full",
    lambda x: x.new_full((3,), 2.0) + x.new_zeros(3) + torch.full_like(x, 7),
    lambda: leaf(4, 3),
)
add("eye and linspace", lambda x: x @ torch.eye(3) + torch.linspace(0, 1, 3), lambda: leaf(4, 3))

# matrix products
add("mm", lambda x, y: x @ y, lambda: (leaf(4, 3), leaf(3, 5)))
add("mv and dot", lambda x, y: (x @ y).dot(x.sum(1)), lambda: (leaf(4, 3), leaf(3)))
add("bmm", lambda x, y: torch.bmm(x, y), lambda: (leaf(2, 4, 3), leaf(2, 3, 5)))
add("matmul broadcast", lambda x, y: torch.matmul(x, y), lambda: (leaf(2, 1, 4, 3), leaf(5, 3, 2)))
add(
    "addmm",
    lambda b, x, y: torch.addmm(b, x, y, beta=0.5, alpha=2),
    lambda: (leaf(5), leaf(4, 3), leaf(3, 5)),
)
add(
    "baddbmm",
    lambda b, x, y: torch.baddbmm(b, x, y),
    lambda: (leaf(2, 4, 5), leaf(2, 4, 3), leaf(2, 3, 5)),
)
add("linear", F.linear, lambda: (leaf(4, 3), parameter(5, 3), parameter(5)))
add("linear of three dimensions", F.linear, lambda: (leaf(2, 4, 3), parameter(5, 3), parameter(5)))
add("bilinear", F.bilinear, lambda: (leaf(4, 3), leaf(4, 2), leaf(5, 3, 2), leaf(5)))
add(
    "einsum",
    lambda x, y: torch.einsum("bij,bjk->bik", x, y),
    lambda: (leaf(2, 4, 3), leaf(2, 3, 5)),
)
add(
    "einsum of three",
    lambda x, y, z: torch.einsum("ai,bi,ci->abc", x, y, z),
    lambda: (leaf(2, 3), leaf(4, 3), leaf(5, 3)),
)
add(
    "outer and kron", lambda x, y: (torch.outer(x, y), torch.kron(x, y)), lambda: (leaf(4), leaf(3))
)
add(
    "tensordot",
    lambda x, y: torch.tensordot(x, y, dims=([1], [0])),
    lambda: (leaf(4, 3), leaf(3, 5)),
)
add("cross", lambda x, y: torch.linalg.cross(x, y), lambda: two(4, 3))
add("transposed operands", lambda x, y: x.t() @ y.t(), lambda: (leaf(3, 4), leaf(5, 3)))

# linear algebra
add("inverse", lambda x: torch.linalg.inv(x), lambda: symmetric(4))
add("solve", lambda x, y: torch.linalg.solve(x, y), lambda: (symmetric(4), leaf(4, 2)))
add("cholesky", lambda x: torch.linalg.cholesky(x), lambda: symmetric(4))
add("determinant", lambda x: (torch.linalg.det(x), torch.logdet(x)), lambda: symmetric(3))
add("qr", lambda x: torch.linalg.qr(x), lambda: leaf(4, 3))
add("singular values", lambda x: torch.linalg.svdvals(x), lambda: leaf(4, 3))
add("eigenvalues", lambda x: torch.linalg.eigvalsh(x), lambda: symmetric(4))
add("matrix power", lambda x: torch.linalg.matrix_power(x, 3), lambda: leaf(3, 3))
add("matrix exponential", lambda x: torch.linalg.matrix_exp(x), lambda: leaf(3, 3))
add(
    "triangular solve",
    lambda x, y: torch.linalg.solve_triangular(x.tril(), y, upper=False),
    lambda: (symmetric(4), leaf(4, 2)),
)
add("pinv", lambda x: torch.linalg.pinv(x), lambda: leaf(4, 3))
add("slogdet", lambda x: torch.linalg.slogdet(x)[1], lambda: symmetric(3))
add("lu", lambda x: torch.linalg.lu_factor(x)[0], lambda: symmetric(4))
add(
    "multi dot",
    lambda x, y, z: torch.linalg.multi_dot([x, y, z]),
    lambda: (leaf(2, 3), leaf(3, 4), leaf(4, 2)),
)
add(
    "matrix norms",
    lambda x: (torch.linalg.matrix_norm(x), torch.linalg.vector_norm(x, 3)),
    lambda: leaf(4, 3),
)

# transforms into frequencies, complex numbers
add("fft", lambda x: torch.fft.fft(x).abs(), lambda: leaf(4, 6))
add("rfft and back", lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2, 6), lambda: leaf(4, 6))
add("fft2", lambda x: torch.fft.ifft2(torch.fft.fft2(x)).real, lambda: leaf(4, 6))
add("fftshift", lambda x: torch.fft.fftshift(torch.fft.fft(x)).imag, lambda: leaf(4, 6))
add(
    "stft",
    lambda x: torch.stft(x, 4, window=torch.ones(4), return_complex=True).abs(),
    lambda: leaf(12),
)
add(
    "complex products",
    lambda x, y: (x * y, x / y, x.conj() * y),
    lambda: (leaf(4, dtype=torch.complex64), leaf(4, dtype=torch.complex64)),
)
add(
    "complex parts",
    lambda x: (x.real * 2, x.imag + 1, x.abs(), x.angle()),
    lambda: leaf(4, dtype=torch.complex64),
)
add("complex from parts", lambda x, y: torch.complex(x, y).exp(), lambda: two(4))
add("view as complex", lambda x: torch.view_as_complex(x) * 2j, lambda: leaf(4, 2))
add("polar", lambda r, a: torch.polar(r, a) + 1, lambda: (positive(4), leaf(4)))
add(
    "complex product of matrices",
    lambda x, y: (x @ y).mH,
    lambda: (leaf(4, 3, dtype=torch.complex64), leaf(3, 2, dtype=torch.complex64)),
)
add(
    "rotary embedding",
    lambda x, f: torch.view_as_real(
        torch.view_as_complex(x.reshape(4, 3, 2)) * torch.polar(torch.ones_like(f), f)
    ).flatten(1),
    lambda: (leaf(4, 6), plain(4, 3)),
)

# convolutions and pooling
add(
    "conv1d",
    lambda x, w, b: F.conv1d(x, w, b, padding=1),
    lambda: (leaf(2, 3, 8), leaf(4, 3, 3), leaf(4)),
)
add("conv2d", lambda x, w: F.conv2d(x, w, stride=2), lambda: (leaf(2, 3, 8, 8), leaf(4, 3, 3, 3)))
add(
    "conv2d same",
    lambda x, w: F.conv2d(x, w, padding="same"),
    lambda: (leaf(2, 3, 6, 6), leaf(4, 3, 3, 3)),
)
add(
    "conv3d",
    lambda x, w, b: F.conv3d(x, w, b),
    lambda: (leaf(1, 2, 4, 4, 4), leaf(3, 2, 2, 2, 2), leaf(3)),
)
add(
    "depthwise", lambda x, w: F.conv2d(x, w, groups=3), lambda: (leaf(2, 3, 6, 6), leaf(3, 1, 3, 3))
)
add(
    "dilated", lambda x, w: F.conv2d(x, w, dilation=2), lambda: (leaf(1, 2, 7, 7), leaf(3, 2, 3, 3))
)
add(
    "conv transpose",
    lambda x, w: F.conv_transpose2d(x, w, stride=2, output_padding=1),
    lambda: (leaf(1, 3, 4, 4), leaf(3, 2, 3, 3)),
)
add(
    "conv channels last",
    lambda x, w: F.conv2d(x, w).relu(),
    lambda: (
        leaf(2, 3, 6, 6).detach().to(memory_format=torch.channels_last).requires_grad_(),
        leaf(4, 3, 3, 3),
    ),
)
add("conv unbatched", lambda x, w: F.conv2d(x, w), lambda: (leaf(3, 6, 6), leaf(4, 3, 3, 3)))
add("fold and unfold", lambda x: F.fold(F.unfold(x, 2), (4, 4), 2), lambda: leaf(1, 2, 4, 4))
add("max pool", lambda x: F.max_pool2d(x, 2), lambda: leaf(2, 3, 6, 6))
add(
    "max pool with indices",
    lambda x: F.max_pool2d(x, 2, return_indices=True),
    lambda: leaf(2, 3, 6, 6),
)
add(
    "average pool",
    lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    lambda: leaf(2, 3, 6, 6),
)
add(
    "adaptive pools",
    lambda x: (F.adaptive_avg_pool2d(x, 2), F.adaptive_max_pool2d(x, (2, 3))),
    lambda: leaf(2, 3, 6, 6),
)
add("lp pool", lambda x: F.lp_pool1d(x, 2, 2), lambda: leaf(2, 3, 6))
add(
    "interpolate",
    lambda x: (
        F.interpolate(x, scale_factor=2),
        F.interpolate(x, size=(5, 5), mode="bilinear", align_corners=True),
    ),
    lambda: leaf(1, 2, 4, 4),
)
add("bicubic", lambda x: F.interpolate(x, size=(6, 6), mode="bicubic"), lambda: leaf(1, 2, 4, 4))
add(
    "grid sample",
    lambda x, g: F.grid_sample(x, g, align_corners=False),
    lambda: (leaf(1, 2, 4, 4), leaf(1, 3, 3, 2)),
)
add(
    "affine grid",
    lambda t: F.affine_grid(t, [2, 1, 3, 3], align_corners=False),
    lambda: leaf(2, 2, 3),
)

# normalisation
add(
    "layer norm",
    lambda x, w, b: F.layer_norm(x, (3,), w, b),
    lambda: (leaf(4, 3), leaf(3), leaf(3)),
)
add("layer norm without weights", lambda x: F.layer_norm(x, (4, 3)), lambda: leaf(2, 4, 3))
add(
    "group norm",
    lambda x, w, b: F.group_norm(x, 2, w, b),
    lambda: (leaf(2, 4, 3, 3), leaf(4), leaf(4)),
)
add("rms norm", lambda x, w: F.rms_norm(x, (3,), w), lambda: (leaf(4, 3), leaf(3)))
add("instance norm", lambda x: F.instance_norm(x), lambda: leaf(2, 3, 4, 4))
add(
    "batch norm in training",
    lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, training=True),
    lambda: (leaf(4, 3), plain(3), plain(3).abs(), leaf(3), leaf(3)),
    # The fused kernel writes running statistics without telling the version counter.
    ignore=("version bumped",),
)
add(
    "batch norm in evaluation",
    lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b),
    lambda: (leaf(4, 3), plain(3), plain(3).abs() + 1, leaf(3), leaf(3)),
)
add("local response norm", lambda x: F.local_response_norm(x, 2), lambda: leaf(2, 4, 3, 3))

# embeddings
add("embedding", F.embedding, lambda: (integers(5, 4, 2), leaf(5, 3)))
add(
    "embedding with padding",
    lambda i, w: F.embedding(i, w, padding_idx=0),
    lambda: (integers(5, 4), leaf(5, 3)),
)
add(
    "embedding bag",
    lambda i, w: F.embedding_bag(i, w, mode="mean"),
    lambda: (integers(5, 4, 3), leaf(5, 3)),
)
add(
    "embedding bag with offsets",
    lambda i, w: F.embedding_bag(i, w, torch.tensor([0, 2]), mode="sum"),
    lambda: (integers(5, 6), leaf(5, 3)),
)

# attention
QKV = lambda: (leaf(2, 4, 5, 8), leaf(2, 4, 5, 8), leaf(2, 4, 5, 8))  # noqa: E731
add("attention", F.scaled_dot_product_attention, QKV)
add(
    "causal attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), QKV
)
add(
    "attention with a mask",
    lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m > 0),
    lambda: (*QKV(), plain(5, 5)),
)
add(
    "attention with a bias",
    lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
    lambda: (*QKV(), leaf(2, 4, 5, 5)),
)
add(
    "attention with a scale",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.5),
    QKV,
)
add(
    "grouped attention",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
    lambda: (leaf(2, 4, 5, 8), leaf(2, 2, 5, 8), leaf(2, 2, 5, 8)),
)
add("attention by hand", lambda q, k, v: (q @ k.mT / 8**0.5).softmax(-1) @ v, QKV)


@programs(QKV)
def attention_by_the_plain_kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v)


# losses
LOSS = lambda: (leaf(4, 3), plain(4, 3))  # noqa: E731
CLASSES = lambda: (leaf(4, 5), integers(5, 4))  # noqa: E731
for loss in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.soft_margin_loss):
    add(loss.__name__, loss, LOSS)
add("cross entropy", F.cross_entropy, CLASSES)
add(
    "cross entropy smoothed",
    lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1, ignore_index=0, reduction="none"),
    CLASSES,
)
add("cross entropy of probabilities", lambda x, y: F.cross_entropy(x, y.softmax(1)), LOSS)
add(
    "cross entropy weighted",
    lambda x, y, w: F.cross_entropy(x, y, w.abs()),
    lambda: (*CLASSES(), plain(5)),
)
add("nll loss", lambda x, y: F.nll_loss(x.log_softmax(1), y), CLASSES)
add("binary cross entropy", lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()), LOSS)
add(
    "binary cross entropy with logits",
    lambda x, y: F.binary_cross_entropy_with_logits(
        x, (y > 0).float(), pos_weight=torch.tensor(2.0)
    ),
    LOSS,
)
add(
    "kl divergence",
    lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"),
    LOSS,
)
add(
    "hinge losses",
    lambda x, y: F.multi_margin_loss(x, y) + F.hinge_embedding_loss(x, y[:, None].sign() * 2 - 1),
    CLASSES,
)
add(
    "triplet loss",
    lambda a, b, c: F.triplet_margin_loss(a, b, c),
    lambda: (leaf(4, 3), leaf(4, 3), leaf(4, 3)),
)
add(
    "poisson and gaussian",
    lambda x, y: F.poisson_nll_loss(x, y) + F.gaussian_nll_loss(x, y, x.exp()),
    LOSS,
    fullgraph=False,  # the gaussian's variance is looked at
)
add(
    "ctc loss",
    lambda x, y: F.ctc_loss(x.log_softmax(-1), y, (6, 6), (3, 2)),  # type: ignore[arg-type] # as documented
    lambda: (leaf(6, 2, 5), integers(4, 2, 3) + 1),
    fullgraph=False,  # the kernel looks at its targets
)
add("margin ranking", lambda x, y: F.margin_ranking_loss(x, y, torch.ones(4)), lambda: two(4))
add("loss without reduction", lambda x, y: F.mse_loss(x, y, reduction="none").sum(1), LOSS)

# dtypes
add("float64", lambda x: x.sin() @ x.t(), lambda: leaf(4, 3, dtype=torch.float64))
add("bfloat16", lambda x: (x @ x.t()).relu(), lambda: leaf(4, 3, dtype=torch.bfloat16))
add("half", lambda x: (x * 2).exp(), lambda: leaf(4, 3, dtype=torch.float16))
add(
    "casts",
    lambda x: (x.double(), x.half(), x.int(), x.bool(), x.to(torch.bfloat16).float()),
    lambda: leaf(4, 3),
)
add("promotion", lambda x, i: (x + i, i * 2.5, i / 2, i + True), lambda: (leaf(4), integers(5, 4)))
add("promotion of precisions", lambda x, y: x * y, lambda: (leaf(4, dtype=torch.bfloat16), leaf(4)))
add("0-dim does not promote", lambda x, y: x * y, lambda: (leaf(4), plain(dtype=torch.float64)))
add(
    "integers",
    lambda x: (x * 3 // 2, x % 3, -x, x.abs(), x.float() / 2),
    lambda: plain(4, 3, dtype=torch.int32),
)
add("small integers", lambda x: x + 250, lambda: plain(4, dtype=torch.uint8))
add(
    "booleans",
    lambda x: (x.sum(), ~x, x.float() * 2, x.logical_xor(x)),
    lambda: plain(4, 3, dtype=torch.bool),
)
add("view as another dtype", lambda x: x.view(torch.int32) + 1, lambda: plain(4, 3))
add("complex128", lambda x: (x * 1j).exp(), lambda: leaf(4, dtype=torch.complex128))
add("gradient in another precision", lambda x: x.bfloat16().float().sum(), lambda: leaf(4, 3))
add(
    "mixed products",
    lambda x, y: x.double() @ y,
    lambda: (leaf(4, 3), leaf(3, 2, dtype=torch.float64)),
)

# shapes at the edges
add("0-dim", lambda x, y: (x * y, x + 1, (x * y).view(1)), lambda: (leaf(), leaf()))
add("empty", lambda x: (x * 2, x.sum(0), torch.cat([x, x])), lambda: leaf(0, 3))
add("empty inside", lambda x: torch.cat([x[:0], x * 2]), lambda: leaf(4, 3))
add("size one everywhere", lambda x: x.squeeze() * 2 + x.expand(1, 1, 1), lambda: leaf(1, 1, 1))
add("five dimensions", lambda x: x.permute(4, 2, 0, 1, 3) * 2, lambda: leaf(2, 1, 3, 2, 2))
add("product of empty matrices", lambda x, y: x @ y, lambda: (leaf(4, 0), leaf(0, 3)))
add("mean of nothing", lambda x: x.mean(), lambda: leaf(0))
add("many operations", lambda x: chain(x, 60), lambda: leaf(4))
add("nonleaf inputs", lambda x, y: (x @ y).relu(), lambda: (nonleaf(4, 3), nonleaf(3, 2)))


def chain(x: Tensor, count: int) -> Tensor:
    for i in range(count):
        x = x.sin() + i if i % 2 else x * 1.01
    return x


@pytest.mark.parametrize("name", some(programs, 3))
def test_operations(name: str) -> None:
    programs[name].run()
