"""What becomes of each node of a graph."""

import math

import pytest
import torch
from lowering import KernelError, computed, run, traced

from straightline.ir.dtypes import bf16, f32
from straightline.lower import graph as lowering
from straightline.lower.graph import Computed, Extern, Host, Input, Item, View, lower
from straightline.lower.rules import RULES, VIEWS


def kinds(lowered):
    return {node.name: type(value) for node, value in lowered.values.items()}


def values(lowered):
    return {node.name: value for node, value in lowered.values.items()}


@pytest.mark.parametrize("table", [RULES, VIEWS])
def test_every_rule_is_of_an_operation_that_there_is(table):
    for name in table:
        namespace, packet, overload = name.split(".")
        assert str(getattr(getattr(getattr(torch.ops, namespace), packet), overload)) == name


def test_no_operation_has_a_rule_of_either_kind():
    assert not RULES.keys() & VIEWS.keys()


def test_views_make_no_computes_and_tell_their_base():
    graph = traced(lambda x: x.t().reshape(6, 2)[1:].exp(), torch.randn(3, 4))
    lowered = lower(graph)
    made = values(lowered)
    assert [type(v) for v in made.values()] == [Input, View, Computed, View, View, Computed]
    assert made["t"].base.name == "x_1"
    assert made["slice_1"].base.name == made["view"].name if "view" in made else True
    assert len(list(lowered.computes)) == 2  # the copy that reshaping a transpose makes, and exp


def test_a_buffer_has_the_name_and_the_strides_of_its_node():
    graph = traced(lambda x: x.t().exp(), torch.randn(3, 4))
    (compute,) = lower(graph).computes
    (buffer,) = compute.buffers
    assert buffer.name == "exp"
    assert [step.constant for step in buffer.strides] == [1, 4]


def test_each_of_several_results_has_a_buffer_and_items_read_them():
    graph = traced(lambda x: torch.var_mean(x, 1), torch.randn(3, 4))
    made = values(lower(graph))
    assert [t.buffer.name for t in made["var_mean"].results] == ["var_mean_0", "var_mean_1"]
    assert made["getitem_1"] == Item(made["getitem_1"].of, 1, made["var_mean"].results[1])


def test_an_operation_without_a_rule_runs_as_it_is_and_its_result_can_be_read():
    def function(x, y):
        return (x * 2) @ y + 1

    args = torch.randn(3, 4), torch.randn(4, 5)
    graph = traced(function, *args)
    lowered = lower(graph)
    assert values(lowered)["mm"].reason == "a matrix product (aten.mm.default)"
    (made,) = [run(graph, lowered, *args)]
    torch.testing.assert_close(made, function(*args))


@pytest.mark.parametrize(
    ("function", "args", "reason"),
    [
        (lambda x: x.add_(1), (torch.ones(3),), "mutates its input"),
        (torch.bernoulli, (torch.ones(3),), "random"),
        (torch.exp, (torch.ones(3, dtype=torch.complex64),), "complex"),
        (lambda x: x * 1j, (torch.ones(3),), "complex"),
        (lambda x: x.to_sparse(), (torch.ones(3),), "sparse (aten._to_sparse.default)"),
        (lambda x: torch.empty(3), (torch.ones(3),), "memory whose values are not defined"),
        (lambda x: x.nonzero_static(size=2), (torch.ones(3),), "depends on data"),
        (torch.special.zeta, (torch.ones(3), torch.ones(3)), "no rule for aten.special_zeta"),
        (torch.nextafter, (torch.ones(3).bfloat16(),) * 2, "in a narrow type"),
    ],
)
def test_what_is_not_lowered_says_why(function, args, reason):
    found = [v.reason for v in lower(traced(function, *args)).values.values() if type(v) is Extern]
    assert any(reason in text for text in found)


def test_a_rule_that_declines_leaves_nothing_behind(monkeypatch):
    def declines(b, x):
        b.require(lowering.tensor_of(made_input).load(()), "never")
        b.map((), lambda _: lowering.tensor_of(made_input).load(()))
        raise lowering.Unsupported("it declines")

    x = torch.tensor(True)
    graph = traced(torch.logical_not, x)
    made_input = lower(graph).values[next(iter(graph.graph.nodes))]
    monkeypatch.setitem(RULES, "aten.logical_not.default", declines)
    lowered = lower(graph)
    assert values(lowered)["logical_not"].reason == "it declines"
    assert list(lowered.computes) == []
    assert lowered.failures == ()


def test_a_rule_that_gives_another_shape_is_not_believed(monkeypatch):
    monkeypatch.setitem(VIEWS, "aten.t.default", lambda b, x: x)
    (found,) = [
        v for v in lower(traced(torch.t, torch.ones(2, 3))).values.values() if isinstance(v, Extern)
    ]
    assert found.reason == "the rule of aten.t.default gives another shape or type"


def test_sizes_are_symbols_with_their_ranges():
    graph = traced(lambda x: x.sum(0) * x.shape[0], torch.randn(5, 3), dynamic=True)
    lowered = lower(graph)
    rows, columns = values(lowered)["x_1"].tensor.shape
    assert not rows.is_constant
    assert {size.name: source.dim for size, source in lowered.sizes.items()} == {
        str(rows): 0,
        str(columns): 1,
    }
    assert Host in kinds(lowered).values()


def test_symbolic_sizes_compute_what_eager_does():
    def function(x):
        n = x.shape[0]
        flat = x.reshape(-1)[1:].view(-1)
        return torch.cat([x.t().reshape(-1), flat]) * n, x.mean(0), x.split(2, 1)[1].softmax(0)

    x = torch.randn(6, 4)
    for got, want in zip(computed(function, x, dynamic=True), function(x), strict=True):
        torch.testing.assert_close(got, want)


def test_a_narrow_result_is_rounded_once_and_what_is_between_is_not():
    graph = traced(lambda x: x.mean(0), torch.randn(5, 3).bfloat16())
    dtypes = [buffer.dtype for compute in lower(graph).computes for buffer in compute.buffers]
    assert dtypes == [f32, bf16]


@pytest.mark.parametrize(
    ("function", "args", "error"),
    [
        (lambda x, y: x // y, (torch.tensor([7]), torch.tensor([0])), "ZeroDivisionError"),
        (torch.remainder, (torch.tensor([7]), torch.tensor([0])), "ZeroDivisionError"),
        (torch.fmod, (torch.tensor([7]), torch.tensor([0])), "ZeroDivisionError"),
        (
            torch.nn.functional.embedding,
            (torch.tensor([1, 4]), torch.randn(4, 2)),
            "index out of range in self",
        ),
        (lambda x, i: x[i], (torch.randn(4), torch.tensor([-5])), "index is out of bounds"),
        (
            lambda x, i: x.gather(0, i),
            (torch.randn(4), torch.tensor([-1])),
            "index is out of bounds",
        ),
        (
            torch.nn.functional.nll_loss,
            (torch.randn(2, 3), torch.tensor([1, 3])),
            "Target is out of bounds.",
        ),
    ],
)
def test_what_eager_raises_is_required(function, args, error):
    with pytest.raises((RuntimeError, IndexError)):
        function(*args)
    with pytest.raises(KernelError) as raised:
        computed(function, *args)
    _, failure = raised.value.args[0]
    assert failure.message == error


def test_negative_positions_wrap():
    x, at = torch.randn(4, 3), torch.tensor([[-1, 0], [-4, 3]])
    assert torch.equal(computed(lambda x, i: x[i], x, at), x[at])


def test_ignored_targets_are_not_read():
    x, target = torch.randn(4, 3), torch.tensor([0, -100, 2, -100])
    loss = torch.nn.functional.cross_entropy
    torch.testing.assert_close(computed(loss, x, target), loss(x, target))


def test_an_addition_whose_operands_are_scaled_rounds_once():
    x, y = torch.randn(1024), torch.randn(1024)
    assert torch.equal(
        computed(lambda x, y: torch.add(x, y, alpha=0.7), x, y), torch.add(x, y, alpha=0.7)
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 0.3,
        lambda x: x / 0.3,
        lambda x: x + 0.3,
        lambda x: 0.3 - x,
        lambda x: x * torch.tensor(0.3),
        lambda x: torch.tensor(0.3) * x,
        lambda x: x + torch.tensor(0.3, dtype=torch.float64),
        lambda x: torch.div(x, 0.3, rounding_mode="floor"),
        lambda x: torch.div(x, 0.3, rounding_mode="trunc"),
        lambda x: torch.div(x, x.flip(0), rounding_mode="trunc"),
        lambda x: torch.div(x, x.flip(0), rounding_mode="floor"),
        lambda x: torch.remainder(x, 0.3),
        lambda x: (x > 0.3) & (x < 2),
        lambda x: torch.add(x, x.flip(0), alpha=0.3),
        lambda x: torch.addcmul(x, x, x.flip(0), value=0.3),
        lambda x: torch.addcdiv(x, x, x.flip(0), value=0.3),
        lambda x: torch.lerp(x, x.flip(0), 0.3),
        lambda x: torch.where(x > 0, x, 0.3),
        lambda x: x.clamp(0.1, 0.3),
        lambda x: torch.nn.functional.leaky_relu(x, 0.3),
        lambda x: torch.nn.functional.huber_loss(x, x.flip(0), delta=0.3, reduction="none"),
    ],
)
def test_numbers_beside_a_narrow_tensor_are_rounded_as_eager_rounds_them(function):
    torch.manual_seed(0)
    x = (torch.randn(1024) * 3).bfloat16()
    assert torch.equal(computed(function, x), function(x))


# Sixteen of them: what eager computes behind the last whole vector is another formula at times.
# Numbers below the normal ones are left out where eager's functions take them for zero.
HUGE = 2.0**127
SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, 4.5, -7.0, HUGE, -HUGE, math.pi,
    math.inf, -math.inf, math.nan, -math.nan,
]  # fmt: skip


@pytest.mark.parametrize(
    "function",
    [
        torch.relu, torch.sign, torch.signbit, torch.frac, torch.round, torch.trunc, torch.isinf,
        torch.nan_to_num, torch.isfinite, torch.reciprocal, torch.nn.functional.hardtanh,
        torch.nn.functional.leaky_relu,
        lambda x: x.clamp(min=0), lambda x: x.clamp(max=0), lambda x: x**3, lambda x: x**0.5,
        lambda x: x.to(torch.int8), lambda x: x.to(torch.int32), lambda x: x.to(torch.int64),
        lambda x: x.to(torch.bool), lambda x: x[3:].argmax(), lambda x: x.max(0),
        lambda x: x.cumsum(0), lambda x: x[:13].logsumexp(0), lambda x: x[13:14].logsumexp(0),
    ],
)  # fmt: skip
def test_special_numbers_come_out_as_in_eager(function):
    same_as_eager(function, torch.tensor(SPECIAL))


@pytest.mark.parametrize(
    "function",
    [
        torch.maximum, torch.minimum, torch.fmax, torch.fmin, torch.remainder, torch.fmod,
        torch.copysign, torch.floor_divide, torch.heaviside, torch.eq, torch.lt, torch.atan2,
        torch.logaddexp, torch.xlogy, torch.nextafter, torch.logical_xor,
        lambda x, y: torch.ops.aten.hardtanh_backward(x, y, -1, 1),
        lambda x, y: torch.ops.aten.threshold_backward(x, y, 0),
    ],
)  # fmt: skip
def test_pairs_of_special_numbers_come_out_as_in_eager(function):
    # Where a quotient has more digits than the type, eager's remainders are NaN.
    x = torch.tensor(SPECIAL)
    x = torch.where(x.abs() == HUGE, x / 2.0**100, x)
    same_as_eager(function, x.repeat_interleave(len(x)), x.repeat(len(x)))


def same_as_eager(function, *args):
    made, wanted = computed(function, *args), function(*args)
    for got, want in zip(
        made if isinstance(made, tuple | list) else [made],
        wanted if isinstance(wanted, tuple) else [wanted],
        strict=True,
    ):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=0, equal_nan=True)
        if want.is_floating_point():
            assert torch.equal(got.signbit() & ~got.isnan(), want.signbit() & ~want.isnan())


def divisor(y):
    """Neither 0 nor -1: dividing the lowest number by that stops eager's process."""
    if not y.dtype.is_signed:
        return y.clamp(min=1)
    return torch.where(y < -1, y, y.abs().clamp(min=1))


INTEGERS = [0, 1, -1, 2, 7, -7, 63, 64, 65]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
@pytest.mark.parametrize(
    "function",
    [
        torch.bitwise_left_shift, torch.bitwise_right_shift, torch.pow, torch.mul, torch.sub,
        torch.maximum, torch.eq, torch.bitwise_xor, torch.true_divide,
        lambda x, y: torch.floor_divide(x, divisor(y)),
        lambda x, y: torch.remainder(x, divisor(y)),
        lambda x, y: torch.div(x, divisor(y), rounding_mode="trunc"),
        lambda x, y: torch.add(x, y, alpha=3), lambda x, y: x**5, lambda x, y: torch.sign(x),
    ],
)  # fmt: skip
def test_integers_come_out_as_in_eager(function, dtype):
    info = torch.iinfo(dtype)
    x = torch.tensor([*INTEGERS, info.min, info.max]).to(dtype)
    if function is torch.pow:
        x = x[x >= 0]
    args = [x.repeat_interleave(len(x)), x.repeat(len(x))]
    got, want = computed(function, *args), function(*args)
    assert got.dtype is want.dtype
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
