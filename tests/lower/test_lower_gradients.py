"""Backward operations against eager's gradients, sizes fixed and symbolic."""

import pytest
import torch
import torch.nn.functional as F
from lowering import Seen, interpreted
from torch import nn

ROWS = (6, 8)


def gradients(function, tensors):
    leaves = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in tensors]
    out = function(*leaves)
    torch.manual_seed(1)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    return out.detach(), *torch.autograd.grad(out, wanted, torch.randn_like(out))


def agree(function, *tensors, dynamic=False, rtol=2e-5, atol=2e-6):
    """Every operation of both graphs is lowered, and gives what eager gives."""
    seen = Seen()
    made = gradients(interpreted(function, seen, dynamic=dynamic), tensors)
    assert seen.reasons == {}
    for got, want in zip(made, gradients(function, tensors), strict=True):
        torch.testing.assert_close(got, want, rtol=rtol, atol=atol)


ACTIVATIONS = [
    F.relu, F.gelu, lambda x: F.gelu(x, approximate="tanh"), F.silu, F.mish, F.elu, F.selu, F.celu,
    F.hardtanh, F.hardswish, F.hardsigmoid, F.leaky_relu, F.softplus, F.logsigmoid, F.glu,
    F.hardshrink, F.softshrink, F.tanhshrink, F.softsign, torch.sigmoid, torch.tanh,
    lambda x: F.threshold(x, 0.1, 2.0), lambda x: F.prelu(x, x[0, :1]),
    lambda x: x.sigmoid().logit(), lambda x: F.elu(x, 0.7).exp(),
]  # fmt: skip


@pytest.mark.parametrize("function", ACTIVATIONS)
def test_activations(function):
    torch.manual_seed(0)
    agree(function, torch.randn(ROWS) * 2)


@pytest.mark.parametrize("function", ACTIVATIONS)
def test_activations_in_a_narrow_type(function):
    torch.manual_seed(0)
    agree(function, (torch.randn(ROWS) * 2).bfloat16(), rtol=2e-2, atol=1e-2)


FOLDS = [
    lambda x: x.sum(0), lambda x: x.mean((0, 1)), lambda x: x.var(1), lambda x: x.std(0),
    lambda x: x.amax(1), lambda x: x.amin((0, 1)), lambda x: x.softmax(1),
    lambda x: x.log_softmax(0), lambda x: x.logsumexp(1), lambda x: x.norm(dim=1),
    lambda x: x.cumsum(1), lambda x: F.normalize(x),
]  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", FOLDS)
def test_reductions(function, dynamic):
    torch.manual_seed(0)
    agree(function, torch.randn(ROWS), dynamic=dynamic)


PLACES = [
    lambda x: x.t(), lambda x: x[1:5:2], lambda x: x[3], lambda x: x.reshape(4, -1),
    lambda x: torch.cat([x, x * 2], 1), lambda x: torch.stack([x, -x], 1), lambda x: x.tril(1),
    lambda x: F.pad(x, (1, 2, -1, 3), value=2.0), lambda x: x.roll((1, -2), (0, 1)),
    lambda x: x.repeat(2, 3), lambda x: x.expand(3, -1, -1), lambda x: x.flip(1),
    lambda x: x.split(3, 1)[2], lambda x: x.unbind(1)[0] * x.unbind(1)[2],
    lambda x: x.unsqueeze(1).squeeze(1) * x,
]  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", PLACES)
def test_views_and_copies(function, dynamic):
    torch.manual_seed(0)
    agree(function, torch.randn(ROWS), dynamic=dynamic)


def test_a_size_that_nothing_shows_leaves_its_tensors_to_aten():
    """The backward of a half is told half of the size, rounded up, and gives the whole."""
    x = torch.randn(ROWS)
    seen = Seen()
    made = gradients(interpreted(lambda x: x.chunk(2)[1].exp(), seen, dynamic=True), [x])
    assert "a size that nothing at hand shows" in seen.reasons.values()
    for got, want in zip(made, gradients(lambda x: x.chunk(2)[1].exp(), [x]), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    ("dtype", "dynamic"),
    [(torch.float32, False), (torch.float32, True), (torch.bfloat16, False)],
)
@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, w, b: F.layer_norm(x, w.shape, w, b), [(4, 6, 8), (8,), (8,)]),
        (lambda x: F.layer_norm(x, x.shape[1:]), [(4, 6, 8)]),
        (lambda x, w: F.layer_norm(x, w.shape, w), [(4, 6, 8), (6, 8)]),
        (lambda x, w: F.rms_norm(x, w.shape, w), [(4, 6, 8), (8,)]),
        (
            lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
            [(4, 6, 5), (6,), (6,)],
        ),
        (lambda x: F.instance_norm(x), [(4, 6, 5)]),
    ],
)
def test_normalisations(function, shapes, dynamic, dtype):
    torch.manual_seed(0)
    tensors = [torch.randn(shape).to(dtype) for shape in shapes]
    nearness = (
        {"rtol": 2e-5, "atol": 5e-6} if dtype is torch.float32 else {"rtol": 3e-2, "atol": 0.1}
    )
    agree(function, *tensors, dynamic=dynamic, **nearness)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, w, b: F.group_norm(x, 3, w, b), [(4, 6, 5), (6,), (6,)]),
        (lambda x: F.group_norm(x, 2), [(4, 6, 5, 2)]),
    ],
)
def test_group_normalisations(function, shapes):
    """Of a number of channels that is known: its groups are made by dividing it."""
    torch.manual_seed(0)
    agree(function, *map(torch.randn, shapes), atol=5e-6)


@pytest.mark.parametrize("training", [False, True])
def test_batch_norm_moves_its_buffers(training):
    torch.manual_seed(0)
    ours, eagers = nn.BatchNorm1d(6, momentum=0.3), nn.BatchNorm1d(6, momentum=0.3)
    names = ["weight", "bias", "running_mean", "running_var"]

    def function(module):
        def call(x, *state):
            named = dict(zip(names, state, strict=True))
            return F.batch_norm(
                x, named["running_mean"], named["running_var"], named["weight"], named["bias"],
                training, 0.3,
            )  # fmt: skip

        return call, [getattr(module, name) for name in names]

    x = torch.randn(4, 6, 5)
    seen = Seen()
    call, state = function(ours)
    made = interpreted(call, seen)(x, *state)
    call, state = function(eagers)
    torch.testing.assert_close(made, call(x, *state))
    assert seen.reasons.keys() <= {"aten.copy_.default"}
    for name in names:
        torch.testing.assert_close(getattr(ours, name), getattr(eagers, name))


CLASSES = torch.tensor([0, 2, -100, 7, 1, 2])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, y, t, **r: F.mse_loss(x, y, **r),
        lambda x, y, t, **r: F.l1_loss(x, y, **r),
        lambda x, y, t, **r: F.smooth_l1_loss(x, y, beta=0.7, **r),
        lambda x, y, t, **r: F.huber_loss(x, y, delta=0.7, **r),
        lambda x, y, t, **r: F.kl_div(x, y.softmax(1), **r),
        lambda x, y, t, **r: F.binary_cross_entropy(x.sigmoid(), y.sigmoid(), **r),
        lambda x, y, t, **r: F.binary_cross_entropy_with_logits(x, y.sigmoid(), **r),
        lambda x, y, t, **r: F.cross_entropy(x, t, **r),
        lambda x, y, t, **r: F.cross_entropy(x, t, label_smoothing=0.1, **r),
        lambda x, y, t, **r: F.cross_entropy(x, t, weight=y.detach()[0].abs(), **r),
        lambda x, y, t, **r: F.cross_entropy(x, y.softmax(1), **r),
        lambda x, y, t, **r: F.nll_loss(x, t, **r),
    ],
)
def test_losses(function, reduction):
    torch.manual_seed(0)
    agree(
        lambda x, y, t: function(x, y, t, reduction=reduction) + 0 * y.sum(),
        torch.randn(ROWS),
        torch.randn(ROWS),
        CLASSES,
    )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss])
def test_means_of_losses_of_any_size(loss, dynamic):
    torch.manual_seed(0)
    agree(loss, torch.randn(ROWS) * 2, torch.randn(ROWS), dynamic=dynamic)
