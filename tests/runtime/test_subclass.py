"""Tensor subclasses in and out of compiled functions: unwrapped, wrapped, differentiated."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scenario import BACKEND, Compile, compiled, same
from subclasses import (
    ColumnMajor,
    Flat,
    Int8Weight,
    Label,
    Labelled,
    Seed,
    Shuffled,
    Single,
)
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

Make = Callable[[torch.Tensor], torch.Tensor]
LABEL = Label("name")


def two(t: torch.Tensor) -> torch.Tensor:
    return TwoTensor(t, t * 2 + 1)


def nested_two(t: torch.Tensor) -> torch.Tensor:
    return TwoTensor(TwoTensor(t, t + 1), TwoTensor(t * 2, t - 1))


def shuffled(t: torch.Tensor) -> torch.Tensor:
    return Shuffled({"z": t, "args": t + 1, "_a": t * 2, "out": -t})


def nested_shuffled(t: torch.Tensor) -> torch.Tensor:
    return Shuffled(
        {
            "z": TwoTensor(t, t + 1),
            "args": TwoTensor(t + 3, t),
            "_a": TwoTensor(t * 2, t),
            "out": TwoTensor(-t, t),
        }
    )


def single(t: torch.Tensor) -> torch.Tensor:
    return Single({"value": t})


def labelled(t: torch.Tensor) -> torch.Tensor:
    return Labelled(t, LABEL)


def flat(t: torch.Tensor) -> torch.Tensor:
    return Flat(t.reshape(-1), t.shape)


def column_major(t: torch.Tensor) -> torch.Tensor:
    return ColumnMajor(t.t().contiguous())


MAKERS: list[Make] = [
    two,
    nested_two,
    shuffled,
    nested_shuffled,
    single,
    labelled,
    flat,
    column_major,
]
every_maker = pytest.mark.parametrize("make", MAKERS, ids=lambda m: m.__name__)
in_shapes = pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])


def leaf(make: Make, *shape: int) -> torch.Tensor:
    return make(torch.randn(*shape)).requires_grad_()


def grads_of(outs: Any, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Gradients by tangents of ones; their strides are nobody's promise, so they are packed."""
    outs = [outs] if isinstance(outs, torch.Tensor) else outs
    grads = torch.autograd.grad(outs, inputs, [torch.ones_like(out.detach()) for out in outs])
    return tuple(grad.contiguous() for grad in grads)


# Unwrap and wrap


@every_maker
@in_shapes
def test_inference(make: Make, dynamic: bool) -> None:
    def scenario(compile: Compile) -> Any:
        f = compile(lambda x: (x.sin() * 2, x + 1), dynamic=dynamic)
        return [f(make(torch.randn(*shape))) for shape in ((4, 3), (6, 3), (5, 7))]

    same(scenario)


@every_maker
@in_shapes
def test_training(make: Make, dynamic: bool) -> None:
    def scenario(compile: Compile) -> Any:
        f = compile(lambda x, y: (x * y).sin(), dynamic=dynamic)
        told = []
        for shape in ((4, 3), (6, 3)):
            x, y = leaf(make, *shape), leaf(make, *shape)
            out = f(x, y)
            told.append((out, grads_of(out, x, y)))
        return told

    same(scenario)


@every_maker
def test_gradients_accumulate_as_subclasses(make: Make) -> None:
    def scenario(compile: Compile) -> Any:
        f = compile(lambda x: x * x)
        x = leaf(make, 4, 3)
        for _ in range(2):
            out = f(x)
            out.backward(torch.ones_like(out.detach()))
        return x.grad

    same(scenario)


@pytest.mark.parametrize("make", [two, nested_two, shuffled], ids=lambda m: m.__name__)
def test_beside_plain_tensors(make: Make) -> None:
    def scenario(compile: Compile) -> Any:
        f = compile(lambda p, x, q: (x * 2, p * q, x.cos(), p.sin()))
        p, x, q = torch.randn(3, requires_grad=True), leaf(make, 4, 3), torch.randn(3)
        outs = f(p, x, q)
        return outs, grads_of(outs, p, x)

    same(scenario)


def test_out_of_another_type_than_in() -> None:
    """Plain in, subclass out; subclass in, plain out; the gradients take the inputs' types."""

    def wrap_inside(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return TwoTensor(a * 2, b * 3)

    def unwrap_inside(x: Any) -> torch.Tensor:
        return x.a * x.b

    def scenario(compile: Compile) -> Any:
        a, b = torch.randn(4), torch.randn(4)
        wrapped = compile(wrap_inside)(a, b)
        plain = compile(unwrap_inside)(two(torch.randn(4)))
        return wrapped, plain

    same(scenario)


def test_members_with_names_that_are_no_identifiers() -> None:
    def scenario(compile: Compile) -> Any:
        f = compile(lambda x: x * 2)
        x = Seed({"value": torch.randn(4, 3)})
        out = f(x)
        return out, getattr(out, "with space"), getattr(out, "0th")

    same(scenario)


def test_int8_times_float_is_plain() -> None:
    def scenario(compile: Compile) -> Any:
        x = torch.randn(4, 8, requires_grad=True)
        weight = Int8Weight.quantise(torch.randn(6, 8))
        bias = torch.randn(6, requires_grad=True)
        f = compile(lambda x, w, b: F.linear(x, w, b).relu())
        out = f(x, weight, bias)
        out.sum().backward()
        return out, x.grad, bias.grad

    same(scenario)


def test_several_leaves_and_results_of_mixed_kinds() -> None:
    def scenario(compile: Compile) -> Any:
        f = compile(lambda a, n, p, i: (n + 1, i * 2, p * 2, a * 3, None, 7))
        a, n, p = leaf(two, 3, 3), leaf(nested_two, 3, 3), torch.randn(3, requires_grad=True)
        outs = f(a, n, p, torch.arange(3))
        return outs, grads_of([outs[0], outs[2], outs[3]], n, p, a)

    same(scenario)


@every_maker
def test_strided_or_not(make: Make) -> None:
    """A transposed result keeps its strides."""

    def scenario(compile: Compile) -> Any:
        f = compile(lambda x: (x * 2).t() + 1)
        x = leaf(make, 4, 3)
        out = f(x)
        return out, grads_of(out, x)

    same(scenario)


# Aliases and mutation


@pytest.mark.parametrize("make", [two, nested_two, shuffled], ids=lambda m: m.__name__)
def test_mutation(make: Make) -> None:
    def scenario(compile: Compile) -> Any:
        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            x.add_(y)
            return x * 2

        x, y = make(torch.randn(4, 3)), make(torch.randn(4, 3))
        out = compile(step)(x, y)
        return out, x, y

    same(scenario)


@pytest.mark.parametrize("make", [two, nested_two], ids=lambda m: m.__name__)
def test_mutation_of_a_non_leaf(make: Make) -> None:
    def scenario(compile: Compile) -> Any:
        def step(x: torch.Tensor) -> torch.Tensor:
            x.mul_(2)
            return x.sin()

        x = leaf(make, 4, 3)
        middle = x + 1
        out = compile(step)(middle)
        return out, middle, grads_of(out, x)

    same(scenario)


@pytest.mark.parametrize("make", [two, nested_two], ids=lambda m: m.__name__)
def test_gradients_that_arrive_through_a_mutated_argument(make: Make) -> None:
    def scenario(compile: Compile) -> Any:
        def step(x: torch.Tensor) -> torch.Tensor:
            x.sin_()
            return x * 3

        x = leaf(make, 4, 3)
        middle = x + 1
        out = compile(step)(middle)
        return out, middle, grads_of(out * middle, x)

    same(scenario)


@pytest.mark.parametrize("make", [two, nested_two], ids=lambda m: m.__name__)
def test_a_program_for_no_grad_that_enables_it_in_inference_mode(make: Make) -> None:
    def scenario(compile: Compile) -> Any:
        @compile
        def step(x: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                return x * 3

        middle = leaf(make, 4, 3) + 1
        with torch.inference_mode():
            inside = step(middle)
        with torch.no_grad():
            outside = step(middle)
        return inside.requires_grad, outside.requires_grad, inside.clone(), outside

    same(scenario)


@pytest.mark.parametrize("make", [two, nested_two], ids=lambda m: m.__name__)
def test_views_of_inputs(make: Make) -> None:
    def scenario(compile: Compile) -> Any:
        f = compile(lambda x: (x.view(-1), x.t(), x * 2))
        x = make(torch.randn(4, 3))
        flat_view, across, product = f(x)
        aliases = [v._is_view() and v._base is x for v in (flat_view, across)]
        flat_view.add_(1)
        return aliases, flat_view, across, product, x

    same(scenario)


@pytest.mark.parametrize("make", [two, nested_two], ids=lambda m: m.__name__)
def test_input_given_back_is_the_input(make: Make) -> None:
    def scenario(compile: Compile) -> Any:
        f = compile(lambda x: (x, x + 1))
        x = make(torch.randn(4, 3))
        back, more = f(x)
        return back is x, more

    same(scenario)


@pytest.mark.parametrize("make", [two, nested_two], ids=lambda m: m.__name__)
def test_detached_input_is_no_view_of_it(make: Make) -> None:
    def scenario(compile: Compile) -> Any:
        f = compile(lambda x: (x.detach(), x[1:]))
        x = make(torch.randn(4, 3))
        detached, rest = f(x)
        return detached, detached._base is None, rest._base is x

    same(scenario)


@pytest.mark.parametrize("make", [two, nested_two], ids=lambda m: m.__name__)
def test_view_of_an_intermediate_in_training(make: Make) -> None:
    def scenario(compile: Compile) -> Any:
        def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            h = x * 2
            return h.view(-1), h

        x = leaf(make, 4, 3)
        flat_view, h = compile(f)(x)
        return flat_view, h, h._is_view(), grads_of(flat_view, x)

    same(scenario)


# Parameters


class Scale(nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight * 2


@pytest.mark.parametrize("make", [two, nested_two, shuffled], ids=lambda m: m.__name__)
def test_parameters(make: Make) -> None:
    def scenario(compile: Compile) -> Any:
        module = Scale(make(torch.randn(4, 3)))
        call = compile(module)
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
        told = []
        for _ in range(3):
            x = make(torch.randn(4, 3))
            out = call(x)
            out.backward(torch.ones_like(out.detach()))
            told.append((out.detach(), module.weight.grad))
            optimiser.step()
            optimiser.zero_grad()
        return told, module.weight.detach()

    same(scenario)


class Quantised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 4)
        for linear in (self.first, self.second):
            weight = Int8Weight.quantise(linear.weight)
            linear.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


@in_shapes
def test_weight_only_quantised_layers(dynamic: bool) -> None:
    def scenario(compile: Compile) -> Any:
        module = Quantised()
        call = compile(module, dynamic=dynamic)
        with torch.no_grad():
            inference = [call(torch.randn(n, 8)) for n in (2, 5)]
        x = torch.randn(3, 8, requires_grad=True)
        out = call(x)
        out.sum().backward()
        return inference, out, x.grad, module.first.bias.grad

    same(scenario)


def test_torchao_weights() -> None:
    """The subclass people have: an int8 weight of torchao's, frozen, in inference and training."""
    from torchao import quantization as quantisation

    def scenario(compile: Compile) -> Any:
        module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
        quantisation.quantize_(module, quantisation.Int8WeightOnlyConfig())
        call = compile(module)
        with torch.no_grad():
            inference = [call(torch.randn(n, 16)) for n in (2, 5)]
        x = torch.randn(3, 16, requires_grad=True)
        out = call(x)
        out.sum().backward()
        return inference, out, x.grad

    same(scenario)


# Jagged


def jagged(*lengths: int, grad: bool = False) -> torch.Tensor:
    parts = [torch.randn(n, 5) for n in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=grad)


def test_jagged_inference() -> None:
    def scenario(compile: Compile) -> Any:
        f = compile(lambda x: x.sin() * 2, dynamic=True)
        return [f(jagged(*lengths)).unbind() for lengths in ((2, 3, 4), (1, 5), (7, 2, 2, 3))]

    same(scenario)


def test_jagged_training() -> None:
    def scenario(compile: Compile) -> Any:
        linear = nn.Linear(5, 6)
        f = compile(lambda x: linear(x).relu(), dynamic=True)
        told = []
        for lengths in ((2, 3, 4), (1, 5)):
            x = jagged(*lengths, grad=True)
            out = f(x)
            (grad,) = grads_of(out, x)
            told.append((out.unbind(), grad.unbind(), out.is_nested))
        return told

    same(scenario)


def test_jagged_from_values_made_inside() -> None:
    """Plain values and offsets in, a jagged tensor out."""

    def scenario(compile: Compile) -> Any:
        def build(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
            return torch.nested.nested_tensor_from_jagged(values * 2, offsets)

        values = torch.randn(9, 5, requires_grad=True)
        out = compile(build)(values, torch.tensor([0, 2, 5, 9]))
        (grad,) = torch.autograd.grad(out.values().sum(), values)
        return out.values(), out.offsets(), grad

    same(scenario)


def test_jagged_beside_plain() -> None:
    def scenario(compile: Compile) -> Any:
        weight = torch.randn(5, requires_grad=True)
        f = compile(lambda x, w: x * w, dynamic=True)
        x = jagged(2, 3, grad=True)
        out = f(x, weight)
        x_grad, w_grad = grads_of(out, x, weight)
        return out.unbind(), x_grad.unbind(), w_grad

    same(scenario)


# DTensor


@pytest.fixture
def mesh() -> Iterator[Any]:
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def test_dtensor(mesh: Any) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    def scenario(compile: Compile) -> Any:
        weight = distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)]).requires_grad_()
        x = distribute_tensor(torch.randn(3, 4), mesh, [Replicate()]).requires_grad_()
        f = compile(lambda x, w: (x @ w.t()).relu())
        told = []
        for _ in range(2):
            out = f(x, weight)
            x_grad, w_grad = grads_of(out, x, weight)
            told.append([t.to_local() for t in (out, x_grad, w_grad)])
            told.append([t.placements for t in (out, w_grad)])
        with torch.no_grad():
            told.append(f(x, weight).to_local())
        return told

    same(scenario)


def test_dtensor_made_and_left_inside(mesh: Any) -> None:
    """`from_local` and `to_local` in the graph: plain tensors at both ends."""
    from torch.distributed.tensor import DTensor, Shard

    def scenario(compile: Compile) -> Any:
        def f(x: torch.Tensor) -> torch.Tensor:
            return (DTensor.from_local(x, mesh, [Shard(0)]) * 2).sin().to_local()

        x = torch.randn(4, 3, requires_grad=True)
        out = compile(f)(x)
        out.sum().backward()
        return out, x.grad

    same(scenario)


def test_dtensor_module(mesh: Any) -> None:
    from torch.distributed.tensor import Replicate, distribute_module, distribute_tensor

    def scenario(compile: Compile) -> Any:
        module = distribute_module(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), mesh)
        call = compile(module)
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
        losses = []
        for _ in range(3):
            loss = call(distribute_tensor(torch.randn(5, 4), mesh, [Replicate()])).pow(2).mean()
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            losses.append(loss.detach().to_local())
        return losses, [p.detach().to_local() for p in module.parameters()]

    same(scenario)


# Errors and reuse


def test_many_sizes_reuse_one_dynamic_program() -> None:
    def scenario(compile: Compile) -> Any:
        f = compile(lambda x: x * x.shape[0], dynamic=True)
        return [f(flat(torch.randn(n, m))) for n in (2, 5, 9) for m in (3, 4)]

    same(scenario)


def test_another_subclass_recompiles() -> None:
    def scenario(compile: Compile) -> Any:
        f = compile(lambda x: x * 2 + 1)
        return [f(make(torch.ones(2, 3))) for make in (two, single, nested_two, lambda t: t)]

    same(scenario)


def test_outputs_hold_no_inputs_they_do_not_share() -> None:
    import weakref

    f = compiled(lambda x: x * 2)
    x = TwoTensor(torch.randn(3), torch.randn(3))
    f(x)
    inner = weakref.ref(x.a)
    out = f(x)
    del x
    assert inner() is None
    assert out.shape == (3,)


def test_members_are_not_changed_by_a_call() -> None:
    f = compiled(lambda x: x * 2)
    x = two(torch.randn(3))
    a, b = x.a, x.b
    before = copy.deepcopy((a, b))
    f(x)
    assert x.a is a
    assert x.b is b
    assert torch.equal(a, before[0])
    assert torch.equal(b, before[1])


def test_mutated_in_two_grad_modes_with_sizes_that_vary() -> None:
    """The saved sizes are counted from the results, whatever torch's record of the members says."""

    class Passes(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad

    def fn(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2.0)
        with torch.no_grad():
            x.unsqueeze(0).mul_(0.5)
            return Passes.apply(x)[0]

    def scenario(compile: Compile) -> Any:
        function = compile(fn, dynamic=True)
        results = []
        for n in (4, 6):
            leaf = two(torch.linspace(0, 1, 3 * n).view(3, n)).requires_grad_()
            x = leaf * 0.5
            results.append((function(x).detach(), x.detach().clone()))
        return results

    same(scenario)


# A wrong type at run time


def bare_callable(fn: Callable[..., Any], *args: torch.Tensor) -> Callable[..., Any]:
    """What the backend returned for `fn`: without Dynamo's guards in front, anything can come."""
    made: list[Callable[..., Any]] = []

    def keeping(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        made.append(torch._dynamo.lookup_backend(BACKEND)(graph, inputs))
        return made[0]

    torch.compile(fn, backend=keeping, fullgraph=True)(*args)
    return made[0]


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(
    ("wrong", "came"), [(lambda t: t, "Tensor"), (single, "Single")], ids=["plain", "another"]
)
def test_wrong_type_of_argument(wrong: Make, came: str, grad: bool) -> None:
    """The error names the argument, what came and what was expected."""

    def scale_both(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return first * 2 + second

    def arg(make: Make) -> torch.Tensor:
        return make(torch.ones(3)).requires_grad_(grad)

    call = bare_callable(scale_both, arg(two), arg(two))
    assert type(call(arg(two), arg(two))[0]) is TwoTensor
    with pytest.raises(Exception, match="second") as caught:
        call(arg(two), arg(wrong))
    assert came in str(caught.value)
    assert "TwoTensor" in str(caught.value)
