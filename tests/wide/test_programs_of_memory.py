"""Views, aliases, writes in place and the memory behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracle import leaf, nonleaf, parameter, plain
from torch import Tensor
from wide.table import Programs, some

programs = Programs()
add = programs.add
X = lambda: leaf(4, 6)  # noqa: E731
N = lambda: nonleaf(4, 6)  # noqa: E731
P = lambda: plain(4, 6)  # noqa: E731

# views of inputs, and beside them a result of their own
VIEWS: dict[str, Any] = {
    "view": lambda x: x.view(6, 4),
    "view with -1": lambda x: x.view(2, -1),
    "reshape": lambda x: x.reshape(3, 8),
    "transpose": lambda x: x.transpose(0, 1),
    "t": lambda x: x.t(),
    "mT": lambda x: x.mT,
    "permute": lambda x: x.permute(1, 0),
    "select": lambda x: x[1],
    "slice": lambda x: x[1:3],
    "slice with step": lambda x: x[:, ::2],
    "narrow": lambda x: x.narrow(1, 2, 3),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x.unsqueeze(0).squeeze(0),
    "expand": lambda x: x.unsqueeze(0).expand(2, 4, 6),
    "expand as": lambda x: x[:1].expand_as(x),
    "flatten": lambda x: x.flatten(),
    "unflatten": lambda x: x.unflatten(1, (2, 3)),
    "ravel": lambda x: x.ravel(),
    "diagonal": lambda x: x.diagonal(),
    "as strided": lambda x: x.as_strided((2, 3), (6, 1), 1),
    "unfold": lambda x: x.unfold(1, 2, 2),
    "movedim": lambda x: x.movedim(0, 1),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "detach": lambda x: x.detach(),
    "view as": lambda x: x.view_as(x),
    "alias": lambda x: torch.ops.aten.alias(x),
    "chunk": lambda x: x.chunk(2, 1),
    "split": lambda x: x.split([1, 5], 1),
    "unbind": lambda x: x.unbind(0),
    "tensor split": lambda x: x.tensor_split(3, 1),
    "hsplit": lambda x: x.hsplit(2),
    "one of a chunk": lambda x: x.chunk(2, 0)[1],
    "view of a view": lambda x: x.t()[1:3].unsqueeze(0),
    "itself": lambda x: x,
    "itself twice": lambda x: (x, x),
    "contiguous already": lambda x: x.contiguous(),
    "to nothing new": lambda x: x.to(torch.float32),
    "real of a real": lambda x: x.real,
    "view and itself": lambda x: (x.view(-1), x),
    "two equal views": lambda x: (x.t(), x.t()),
    "overlapping views": lambda x: (x[:3], x[1:]),
    "view as complex": lambda x: torch.view_as_complex(x.view(4, 3, 2)),
    "reinterpreted": lambda x: x.view(torch.int32),
}
MULTIPLE = {"chunk", "split", "unbind", "one of a chunk"}
for name, view in VIEWS.items():
    add(f"{name} of a leaf", view, X)
    add(f"{name} of a nonleaf", lambda x, v=view: (x * 2, v(x)), N)
    # Eager forbids writes to one of several views that one call made, to protect a base which only
    # the program had. They are results of their own when compiled.
    quiet = {"scenarios": ("full", "partial")} if name in MULTIPLE else {}
    add(f"{name} of an intermediate", lambda x, v=view: v(x.sin()), X, **quiet)

add("base and view", lambda x: (y := x * 2, y[0], y.t()), X)
add("views only, base kept", lambda x: ((y := x.exp())[0], y[1], y), X)
add("view of a view returned", lambda x: ((v := (x * 2).t()), v[0]), X)
add("view without grad", lambda x: x.detach().t(), X)
add("view of a plain input", lambda x: (x.t(), x[0] + 1), P)
add("expanded input", lambda x: (x * 2, x[0]), lambda: leaf(1, 6).expand(4, 6))
add("transposed input", lambda x: (x * 2, x.t()), lambda: leaf(6, 4).t())
add("strided input", lambda x: x.relu().sum(0), lambda: leaf(4, 12)[:, ::2])
add("offset input", lambda x: x.view(-1) * 2, lambda: leaf(6, 6)[2:])
add("as strided input", lambda x: x + 1, lambda: leaf(30).as_strided((4, 6), (6, 1), 2))
add("overlapping input", lambda x: x * 2, lambda: leaf(10).as_strided((4, 6), (1, 1)))
add("two views of one tensor", lambda x, y: x * y, lambda: tuple(leaf(2, 4, 6).unbind(0)))
add("one tensor twice", lambda x, y: x * y + x, lambda: (lambda t: (t, t))(leaf(4)))
add(
    "channels last",
    lambda x: (x * 2, x.permute(0, 2, 3, 1)),
    lambda: leaf(2, 3, 4, 4).to(memory_format=torch.channels_last),
)
add(
    "to channels last",
    lambda x: x.contiguous(memory_format=torch.channels_last) * 2,
    lambda: leaf(2, 3, 4, 4),
)
add(
    "clones",
    lambda x: (x.clone(), x.t().contiguous(), x.t().clone(memory_format=torch.contiguous_format)),
    X,
)
add("like its input", lambda x: (torch.zeros_like(x), torch.ones_like(x.t())), X)
add("empty and filled", lambda x: torch.empty_like(x).fill_(2) + x, X)
add("conj", lambda x: x.conj(), lambda: leaf(4, dtype=torch.complex64))
add("conj transposed", lambda x: x.mH * 2, lambda: leaf(4, 3, dtype=torch.complex64))
add("view as real", lambda x: torch.view_as_real(x), lambda: leaf(4, dtype=torch.complex64))
add("imag is a view", lambda x: (x.imag, x.real), lambda: leaf(4, dtype=torch.complex64))
add("conj as input", lambda x: x * 2, lambda: leaf(4, dtype=torch.complex64).conj())
add(
    "quantile returns what was squeezed in place",
    lambda x: x.quantile(torch.tensor([0.25, 0.5]), dim=0),
    lambda: leaf(5, 3),
)


@programs(X)
def squeezed_in_place(x: Tensor) -> Tensor:
    y = x.sin().unsqueeze(0)
    return y.squeeze_(0)


@programs(X)
def transposed_in_place(x: Tensor) -> Tensor:
    y = x * 2
    y.t_()
    return y


@programs(X)
def unsqueezed_in_place_and_written(x: Tensor) -> Tensor:
    y = (x * 2).unsqueeze_(0)
    y.mul_(3)
    return y


@programs(X)
def swapped_in_place_with_a_view(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    y.transpose_(0, 1)
    return y, y[0]


@programs(lambda: leaf(4, 4))
def square_swapped_in_place_with_a_view(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    y.t_()
    return y, y[0]


@programs(lambda: leaf(4, 4))
def square_swapped_after_its_view(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    row = y[0]
    y.t_()
    return y, row


@programs(X)
def views_of_an_intermediate_swapped_in_place(x: Tensor) -> tuple[Tensor, Tensor]:
    y = (x * 2).t_()
    return y[0], y[1:3]


@programs(lambda: leaf(5, 3))
def view_of_a_quantile(x: Tensor) -> tuple[Tensor, Tensor]:
    q = x.quantile(torch.tensor([0.25, 0.5]), dim=0)
    return q, q[0]


@programs(X)
def view_and_the_same_view_detached(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y[0], y.detach()[0]


@programs(X)
def several_detached_beside_their_originals(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    return y, y.detach(), y.t(), y.detach().t(), y[1].detach(), y[1]


# writes to an argument: of what kind, how
WRITES: dict[str, Any] = {
    "add_": lambda x: x.add_(1),
    "mul_ by itself": lambda x: x.mul_(x.detach()),
    "sub_ alpha": lambda x: x.sub_(torch.ones(6), alpha=2),
    "div_": lambda x: x.div_(2),
    "augmented": lambda x: x.__iadd__(2).__imul__(3),
    "relu_": lambda x: F.relu(x, inplace=True),
    "clamp_": lambda x: x.clamp_(-0.5, 0.5),
    "exp_ sin_": lambda x: x.exp_().sin_(),
    "zero_": lambda x: x.zero_(),
    "fill_": lambda x: x.fill_(3.0),
    "copy_": lambda x: x.copy_(torch.arange(6.0)),
    "copy_ of another dtype": lambda x: x.copy_(torch.arange(6)),
    "masked_fill_": lambda x: x.masked_fill_(torch.arange(6) > 2, 0.0),
    "index_put_": lambda x: x.index_put_((torch.tensor([0, 2]),), torch.tensor(1.0)),
    "setitem": lambda x: x.__setitem__((0, slice(None)), 1.0),
    "setitem with tensor": lambda x: x.__setitem__(torch.tensor([1, 3]), torch.ones(6)),
    "setitem with a mask": lambda x: x.__setitem__(torch.arange(6).expand(4, 6) > 2, 0.0),
    "setitem of a view": lambda x: x[1].__setitem__(slice(0, 3), 5.0),
    "index_add_": lambda x: x.index_add_(0, torch.tensor([0, 1]), torch.ones(2, 6)),
    "index_copy_": lambda x: x.index_copy_(0, torch.tensor([2]), torch.ones(1, 6)),
    "index_fill_": lambda x: x.index_fill_(1, torch.tensor([2]), 9.0),
    "scatter_": lambda x: x.scatter_(1, torch.zeros(4, 1, dtype=torch.int64), 2.0),
    "scatter_add_": lambda x: x.scatter_add_(
        0, torch.zeros(1, 6, dtype=torch.int64), torch.ones(1, 6)
    ),
    "write to a view": lambda x: x[0].mul_(2),
    "write to a transposed view": lambda x: x.t()[1].add_(1),
    "write to chunks": lambda x: next(iter([c.add_(i) for i, c in enumerate(x.split(2, 0))])),
    "write to the diagonal": lambda x: x.diagonal().zero_(),
    "addcmul_": lambda x: x.addcmul_(torch.ones(6), torch.ones(6), value=0.5),
    "lerp_": lambda x: x.lerp_(torch.ones(4, 6), 0.1),
    "tril_": lambda x: x.tril_(),
    "round_": lambda x: x.round_(),
    "cumsum_": lambda x: x.cumsum_(0),
    "sigmoid_ and out": lambda x: (x.sigmoid_(), x * 2)[1],
    "pow_": lambda x: x.pow_(2),
    "neg_ abs_ sqrt_": lambda x: x.neg_().abs_().sqrt_(),
    "writes and reads": lambda x: (y := x * 2, x.add_(1), y + x)[2],
    "dropout_ in evaluation": lambda x: F.dropout(x, 0.5, training=False, inplace=True),
    "uniform_": lambda x: x.uniform_(),
    "normal_": lambda x: x.normal_(),
    "foreach add": lambda x: torch._foreach_add_([x], 1.0),
    "out=": lambda x: torch.add(torch.ones(4, 6), 1, out=x) if not x.requires_grad else x.add_(2),
}
# Eager's backward refuses these where a gradient flows: a saved value was written over.
REFUSED = {"mul_ by itself", "exp_ sin_"}
for name, write in WRITES.items():
    add(f"{name} on a plain input", lambda x, w=write: w(x), P)
    add(f"{name} on a leaf without grad", lambda x, w=write: no_grad(w, x), X)
    if name not in REFUSED:
        add(f"{name} on a nonleaf", lambda x, w=write: (w(x), x * 2)[1], N)
        add(f"{name} on an intermediate", lambda x, w=write: (y := x * 1, w(y), y.sin())[2], X)


def no_grad(write: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        write(x)
    return x * 2


@programs(lambda: (plain(4), leaf(4)))
def write_a_result_to_an_input(x: Tensor, w: Tensor) -> Tensor:
    x.copy_(w * 2)
    return x.sin()


@programs(lambda: (plain(4, 6), plain(4, 6)))
def write_to_two(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    y.mul_(x)
    return x - y


@programs(lambda: tuple(plain(2, 4, 6).unbind(0)))
def write_to_one_of_two_views(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return x * y


@programs(lambda: (lambda b: (b[:3], b[1:]))(plain(4, 6)))
def write_to_overlapping_views(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    y.add_(1)
    return x.sum() + y.sum()


@programs(lambda: (lambda b: (b, b.t()))(plain(4, 4)))
def write_to_a_base_beside_its_view(b: Tensor, v: Tensor) -> Tensor:
    b.add_(1)
    return v * 2


@programs(lambda: (lambda b: (b, b[0]))(nonleaf(4, 4)))
def write_to_a_view_beside_its_differentiable_base(b: Tensor, v: Tensor) -> Tensor:
    v.mul_(2)
    return b * 3


@programs(lambda: (lambda t: (t, t))(plain(4)))
def write_to_one_tensor_under_two_names(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    y.mul_(2)
    return x + y


@programs(P)
def returned_view_of_a_written_input(x: Tensor) -> tuple[Tensor, Tensor]:
    x.add_(1)
    return x[0], x


@programs(N)
def returned_view_of_a_written_nonleaf(x: Tensor) -> tuple[Tensor, Tensor]:
    v = x[1]
    x.mul_(2)
    return v, x.t()


# Dynamo breaks the graph at a change of geometry, of storage or of size.
@programs(P, fullgraph=False)
def input_changes_geometry(x: Tensor) -> Tensor:
    x.t_()
    return x * 2


@programs(P, fullgraph=False)
def input_changes_geometry_and_values(x: Tensor) -> Tensor:
    x.unsqueeze_(0)
    x.add_(1)
    return x * 2


@programs(lambda: (plain(4), plain(6)), fullgraph=False)
def data_of_another(x: Tensor, y: Tensor) -> Tensor:
    x.set_(y)  # type: ignore[call-overload] # torch's stubs know storages only
    return x * 2


@programs(lambda: plain(4), fullgraph=False)
def resized(x: Tensor) -> Tensor:
    y = torch.empty(0)
    y.resize_(4)
    y.copy_(x)
    return y * 2


@programs(lambda: (plain(4, 3), plain(3, 5), torch.empty(4, 5)))
def product_into_out(x: Tensor, y: Tensor, out: Tensor) -> Tensor:
    return torch.mm(x, y, out=out)


@programs(lambda: (plain(4), torch.empty(0)), fullgraph=False)
def out_that_is_resized(x: Tensor, out: Tensor) -> Tensor:
    torch.add(x, 1, out=out)
    return out * 2


@programs(lambda: (plain(4, 3), torch.empty(3), torch.empty(3, dtype=torch.int64)))
def two_outs(x: Tensor, values: Tensor, places: Tensor) -> Any:
    return torch.max(x, 0, out=(values, places))


@programs(X)
def data_attribute(x: Tensor) -> Tensor:
    return x.data * 2 + x


@programs(lambda: (parameter(3, 6), plain(4, 6)))
def parameter_written_without_grad(w: Tensor, x: Tensor) -> Tensor:
    y = x @ w.t()
    with torch.no_grad():
        w.mul_(0.9)
    return y


@programs(X)
def intermediate_saved_then_written(x: Tensor) -> Tensor:
    y = x.sin()
    z = y * 2
    y.add_(1)
    return z + y


@programs(X)
def writes_through_an_expanded_view_of_an_intermediate(x: Tensor) -> Tensor:
    y = x * 1
    y.view(-1)[3:9].mul_(5)
    y.t()[0] += 1
    return y


@programs(X)
def list_of_views_written_in_a_loop(x: Tensor) -> Tensor:
    out = torch.zeros(4, 6)
    for i in range(4):
        out[i] = x[i] * i
    return out


@programs(lambda: (leaf(4), nonleaf(4)))
def write_with_differentiable_value(x: Tensor, y: Tensor) -> Tensor:
    y[1:3] = x[:2] * 2
    return y.sum()


@programs(lambda: tuple(plain(4) for _ in range(3)))
def foreach_over_inputs(*xs: Tensor) -> Sequence[Tensor]:
    torch._foreach_mul_(list(xs), 2.0)
    return torch._foreach_add(list(xs), 1.0)


# Which of two results is the base of the other is not kept where no gradient can tell.
@programs(lambda: plain(4), ignore=("_base",))
def storage_is_shared(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    z = y.view(2, 2)
    z.add_(1)
    return y, z


@programs(lambda: plain(0, 3))
def empty_input_written(x: Tensor) -> Tensor:
    x.add_(1)
    return x.sum()


@programs(lambda: plain())
def number_written(x: Tensor) -> Tensor:
    x += 2
    return x * x


@programs(lambda: plain(4, dtype=torch.int64))
def integers_written(x: Tensor) -> Tensor:
    x.bitwise_and_(3).add_(x)
    return x[:2] * 2


@programs(lambda: plain(4, dtype=torch.bool))
def booleans_written(x: Tensor) -> Tensor:
    x.logical_not_()
    x |= torch.tensor([True, False, True, False])
    return x.sum()


@programs(lambda: leaf(4, dtype=torch.complex64) * 1)
def complex_written(x: Tensor) -> Tensor:
    x.mul_(2j)
    return x.abs()


@programs(lambda: plain(2, 3, 4, 4).to(memory_format=torch.channels_last))
def channels_last_written(x: Tensor) -> Tensor:
    x.relu_()
    return x


@programs(lambda: leaf(4, 4).t() * 1)
def transposed_nonleaf_written(x: Tensor) -> Tensor:
    x.add_(1)
    return x.sin()


@programs(P, grad_mode=(False,))
def written_in_inference(x: Tensor) -> tuple[Tensor, Tensor]:
    x.mul_(2)
    return x.t(), x + 1


@programs(lambda: (leaf(4, 3), plain(4)))
def grad_attribute_written(w: Tensor, g: Tensor) -> Tensor:
    return (w * g[:, None]).detach_()


@programs(X)
def detached_in_place(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    z = y.detach()
    z.add_(1)
    return y, z


@programs(X, fullgraph=False)
def intermediate_requires_grad_in_place(x: Tensor) -> Tensor:
    y = torch.zeros(4, 6).requires_grad_()
    return y + x


@pytest.mark.parametrize("name", some(programs, 5))
def test_memory(name: str) -> None:
    programs[name].run()
