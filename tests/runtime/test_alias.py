"""Outputs that share memory, objects or history with inputs, intermediates and one another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from oracle import BACKEND, Case, Cases, leaf, nonleaf, parameter, plain
from torch import Tensor

NO_GRAD = {"grad_mode": (True, False)}

# Views of an intermediate by a custom function: eager refuses writes to them, all of torch's
# backends return them without the mark, and nothing wrong follows from a write that is allowed.
NO_WRITES = {"scenarios": ("full", "partial")}

inputs = Cases()


# --- outputs that are inputs ------------------------------------------------------------------


@inputs(lambda n: plain(n, 3), **NO_GRAD)
def return_input(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x + 1


@inputs(lambda n: leaf(n, 3), **NO_GRAD)
def return_leaf_input(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, x


@inputs(lambda n: nonleaf(n, 3))
def return_nonleaf_input(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, x


@inputs(lambda n: (plain(n, 3), plain(n, 3)))
def return_input_twice(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x, x, x + y


@inputs(lambda n: (parameter(n, 3), plain(n, 3)))
def return_parameter(p: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return p, p * x


@inputs(lambda n: plain(n, 3))
def return_mutated_input_and_intermediate(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    x.add_(y)
    return x, y


def one_tensor_twice(n: int) -> tuple[Tensor, Tensor]:
    x = leaf(n, 3)
    return x, x


@inputs(one_tensor_twice)
def return_both_of_one_tensor_given_twice(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x, y, x * y


@inputs(lambda n: [plain(n, 3), plain(n, 3)])
def return_input_list(tensors: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    return tensors, tensors[0] + tensors[1]


@inputs(lambda n: plain(n, 3, dtype=torch.int64))
def return_integer_input(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x + 1


@inputs(lambda n: rows_of_one_tensor(n), **NO_GRAD)
def return_written_row_of_one_tensor(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.add_(1), y * 2


def rows_of_one_tensor(n: int) -> tuple[Tensor, Tensor]:
    base = plain(n, 3)
    return base[1], base[1:]


# --- views of inputs --------------------------------------------------------------------------

views = Cases()


@views(lambda n: plain(n, 3), **NO_GRAD)
def transpose(x: Tensor) -> Tensor:
    return x.t()


@views(lambda n: leaf(n, 3), **NO_GRAD)
def view_of_leaf(x: Tensor) -> Tensor:
    return x.view(-1)


@views(lambda n: nonleaf(n, 3), **NO_GRAD)
def view_of_nonleaf(x: Tensor) -> Tensor:
    return x.view(-1)


@views(lambda n: nonleaf(n, 3))
def view_and_compute(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[1:], x.sin()


@views(lambda n: nonleaf(n, 3))
def detached_input(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.detach(), x * 2


@views(lambda n: leaf(n, 3))
def view_of_detached_input(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.detach().view(-1), x * 2


@views(lambda n: nonleaf(n, 3))
def detached_view_of_input(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.view(-1).detach(), x * 2


@views(lambda n: nonleaf(n, 3))
def view_under_no_grad(x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        v = x.view(-1)
    return v, x * 2


@views(lambda n: plain(n, 3))
def view_of_plain_input_under_no_grad(x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        v = x.view(-1)
    return v, x * 2


@views(lambda n: nonleaf(n, 3))
def chain_of_views(x: Tensor) -> Tensor:
    return x.t()[1:].unsqueeze(0).transpose(0, 2)


@views(lambda n: nonleaf(n, 4), **NO_GRAD)
def chunks_of_input(x: Tensor) -> tuple[Tensor, ...]:
    return x.chunk(2, dim=1)


@views(lambda n: plain(n, 4))
def chunks_of_plain_input(x: Tensor) -> tuple[Tensor, ...]:
    return x.chunk(2, dim=1)


@views(lambda n: nonleaf(3, n))
def unbound_input(x: Tensor) -> tuple[Tensor, ...]:
    return x.unbind(0)


@views(lambda n: nonleaf(3, n))
def one_of_unbound_input(x: Tensor) -> Tensor:
    return x.unbind(0)[1]


@views(lambda n: nonleaf(n, 5))
def split_of_input(x: Tensor) -> list[Tensor]:
    return list(x.split([2, 3], dim=1))


@views(lambda n: nonleaf(n, 4))
def view_of_chunk_of_input(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = x.chunk(2, dim=1)
    return first.t(), second.unsqueeze(0)


@views(lambda n: nonleaf(n, 4))
def chunk_and_whole_input(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.chunk(2, dim=1)[0], x


@views(lambda n: nonleaf(n, 3))
def reshape_that_is_a_view(x: Tensor) -> Tensor:
    return x.reshape(-1)


@views(lambda n: nonleaf(3, n).t())
def reshape_that_copies(x: Tensor) -> Tensor:
    return x.reshape(-1)


@views(lambda n: nonleaf(n, 3))
def contiguous_that_is_the_input(x: Tensor) -> Tensor:
    return x.contiguous()


@views(lambda n: nonleaf(n, 3))
def to_same_dtype_is_the_input(x: Tensor) -> Tensor:
    return x.to(torch.float32)


@views(lambda n: nonleaf(n, 1))
def expand_of_input(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.expand(-1, 3), x * 2


@views(lambda n: plain(1, 3), scenarios=("full",))
def expand_of_plain_input(x: Tensor) -> Tensor:
    return x.expand(4, 3)


@views(lambda n: nonleaf(n, n))
def diagonal_of_input(x: Tensor) -> Tensor:
    return x.diagonal()


@views(lambda n: plain(n, 4))
def view_as_other_dtype(x: Tensor) -> Tensor:
    return x.view(torch.int32)


@views(lambda n: plain(n, 4))
def view_as_narrower_dtype(x: Tensor) -> Tensor:
    return x.view(torch.int16)


@views(lambda n: nonleaf(n, 3, dtype=torch.complex64))
def real_and_imaginary_parts(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.real, x.imag


@views(lambda n: nonleaf(n, 3, dtype=torch.complex64))
def complex_as_real(x: Tensor) -> Tensor:
    return torch.view_as_real(x)


@views(lambda n: nonleaf(n, 2))
def real_as_complex(x: Tensor) -> Tensor:
    return torch.view_as_complex(x)


@views(lambda n: plain(n, 3, dtype=torch.complex64))
def conjugate_of_input(x: Tensor) -> Tensor:
    return x.conj()


@views(lambda n: nonleaf(n, 6))
def as_strided_of_input(x: Tensor) -> Tensor:
    return x.as_strided((2, 2), (6, 2), 1)


@views(lambda n: nonleaf(2 * n, 3)[n:])
def view_of_input_with_offset(x: Tensor) -> Tensor:
    return x[1:, :2]


@views(lambda n: leaf(n, 3).view(-1))
def view_of_input_that_is_a_view(x: Tensor) -> Tensor:
    return x[2:]


@views(lambda n: nonleaf(n, 4))
def unfold_of_input(x: Tensor) -> Tensor:
    return x.unfold(1, 2, 2)


@views(lambda n: nonleaf(n, 3, 2))
def permute_movedim_flatten(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.permute(2, 0, 1), x.movedim(0, -1), x.flatten(1)


@views(lambda n: nonleaf(n, 1, 3))
def squeeze_select_narrow(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.squeeze(1), x.select(2, 0), x.narrow(0, 1, 2)


@views(lambda n: nonleaf(n, 3))
def alias_ops(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.ops.aten.alias(x), x.view_as(x)


@views(lambda n: (plain(n, 3), plain(n, 3)))
def views_of_two_inputs(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.t(), y.t(), x + y


@views(lambda n: plain(n, 3), **NO_GRAD)
def mutate_then_view(x: Tensor) -> Tensor:
    x.add_(1)
    return x.t()


@views(lambda n: nonleaf(n, 3))
def view_then_mutate_nonleaf(x: Tensor) -> Tensor:
    v = x.t()
    x.mul_(2)
    return v


@views(lambda n: nonleaf(n, 3))
def mutate_through_view_and_return_both(x: Tensor) -> tuple[Tensor, Tensor]:
    v = x.view(-1)
    v.mul_(2)
    return v, x


@views(lambda n: nonleaf(n, 3))
def mutate_row_and_return_it(x: Tensor) -> tuple[Tensor, Tensor]:
    row = x[0]
    row.mul_(2)
    return row, x.sin()


@views(lambda n: plain(0, 3))
def view_of_empty(x: Tensor) -> Tensor:
    return x.view(3, 0)


@views(lambda n: plain(n, 3), contexts=(torch.inference_mode,), scenarios=("full",))
def view_in_inference_mode(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.view(-1), x * 2


@views(lambda n: nonleaf(n, 2, 3), grad_mode=(False,))
def views_that_need_grad_replayed_without(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.view(-1, 3), x.transpose(0, 1)


@views(lambda n: (leaf(n, 3), leaf(n, 3)))
def views_of_leaves_beside_compute(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.view(-1), x @ y.t(), y[0]


@views(lambda n: leaf(n, 3), **NO_GRAD)
def detached_input_and_its_view(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.detach()
    return y.view(-1)[1:], y


@views(lambda n: leaf(n, 3), **NO_GRAD)
def input_as_its_own_dtype_and_a_view_of_that(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.view(x.dtype)
    return y, y[1:]


@views(lambda n: nonleaf(n, 3))
def detached_input_written_to(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.detach().copy_(x + 1)
    return y[1:], y


@views(lambda n: (leaf(n, 3), nonleaf(n, 3)))
def part_of_detached_leaf_written_to(x: Tensor, y: Tensor) -> Tensor:
    row = x.detach()[1:]
    row.mul_(y[1:])
    return row.t()


@views(lambda n: nonleaf(n, 3), scenarios=("full", "partial"))
def part_of_input_written_to_unseen(x: Tensor) -> Tensor:
    _, second = x.split([1, x.shape[0] - 1])
    second.data.mul_(0.5)
    return second


@views(lambda n: leaf(n, 4), scenarios=("full", "partial"))
def part_of_leaf_written_to_under_no_grad(x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        x.sin_()
    first, _ = x.chunk(2)
    return first * 2, first[0]


@views(lambda n: nonleaf(4, n), scenarios=("full", "partial"))
def parts_of_written_input(x: Tensor) -> tuple[Tensor, ...]:
    x.sigmoid_()
    first, second = x.chunk(2)
    return second, first, second.detach()


# --- views of intermediates -------------------------------------------------------------------

intermediates = Cases()


@intermediates(lambda n: leaf(n, 3), **NO_GRAD)
def view_of_intermediate(x: Tensor) -> Tensor:
    return (x * 2).t()


@intermediates(lambda n: leaf(n, 3), **NO_GRAD)
def intermediate_and_its_view(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y, y.view(-1)


@intermediates(lambda n: plain(n, 3))
def plain_intermediate_and_its_view(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y.view(-1), y


@intermediates(lambda n: leaf(n, 3), **NO_GRAD)
def two_views_of_one_intermediate(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y.t(), y.view(-1)


@intermediates(lambda n: plain(n, 3))
def two_views_of_one_plain_intermediate(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y.t(), y.view(-1)


@intermediates(lambda n: leaf(n, 3))
def two_views_of_two_intermediates(x: Tensor) -> tuple[Tensor, ...]:
    y, z = x * 2, x + 1
    return y.t(), z.view(-1), y.view(-1), z.t()


@intermediates(lambda n: leaf(n, 3))
def same_intermediate_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y, y


@intermediates(lambda n: leaf(n, 3))
def same_view_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    y = (x * 2).t()
    return y, y


@intermediates(lambda n: leaf(n, 3))
def view_of_view_of_intermediate_output(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x * 2
    v = y.view(-1)
    return y, v, v[1:]


@intermediates(lambda n: leaf(n, 4))
def chunks_of_intermediate(x: Tensor) -> tuple[Tensor, ...]:
    return (x * 2).chunk(2, dim=1)


@intermediates(lambda n: leaf(n, 4))
def chunks_of_intermediate_and_itself(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    return (*y.chunk(2, dim=1), y)


@intermediates(lambda n: leaf(3, n))
def unbound_intermediate(x: Tensor) -> tuple[Tensor, ...]:
    return (x * 2).unbind(0)


@intermediates(lambda n: leaf(n, 6))
def split_of_intermediate_beside_other_output(x: Tensor) -> tuple[Tensor, ...]:
    y = x.sin()
    a, b, c = y.split(2, dim=1)
    return a, c, b * 2


@intermediates(lambda n: leaf(n, 4))
def view_of_chunk_of_intermediate(x: Tensor) -> tuple[Tensor, Tensor]:
    first, _ = (x * 2).chunk(2, dim=1)
    return first.t(), x.cos()


@intermediates(lambda n: leaf(n, 3))
def written_view_of_intermediate_twice(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = (x * 2).t()
    return y, y.tanh_(), y * 2


@intermediates(lambda n: leaf(n, 3), **NO_GRAD)
def one_object_by_two_ways(x: Tensor) -> tuple[Tensor, Tensor]:
    row = (x * 2)[0]
    return row, row.flatten()


@intermediates(lambda n: plain(1, n))
def viewed_then_reshaped_in_place(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    wide = y.expand(4, -1)
    y.unsqueeze_(1)
    return wide, y


@views(lambda n: leaf(n, 3)[1:], scenarios=("full",))
def nothing_reaches_the_argument(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x.flatten()
    return y.abs()


def test_the_product_of_a_vector_and_a_matrix_is_no_view() -> None:
    function = torch.compile(lambda x: x[0] @ x.t(), backend=BACKEND, dynamic=True)
    assert function(leaf(4, 3))._base is None


def test_a_view_of_another_type_starts_where_its_base_stands() -> None:
    """torch records the views from the first owner of the memory; the base is one of them."""
    x = leaf(4, 25).detach().flatten().requires_grad_()
    function = torch.compile(lambda x: torch.stft(x, 10, return_complex=False), backend=BACKEND)
    got, want = function(x), torch.stft(x, 10, return_complex=False)
    torch.testing.assert_close(got, want)
    assert got.stride() == want.stride()
    (gradient,) = torch.autograd.grad(got.square().sum(), x)
    torch.testing.assert_close(gradient, torch.autograd.grad(want.square().sum(), x)[0])


@intermediates(lambda n: leaf(n, 3), **NO_GRAD)
def dropout_that_drops_nothing(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    idle = torch.nn.functional.dropout(y, 0.5, training=False)
    return y, idle, torch.nn.functional.dropout(y, 0.0), torch.dropout(x, 0.5, False)


@intermediates(lambda n: leaf(n, 3))
def detached_intermediate(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y, y.detach()


@intermediates(lambda n: leaf(n, 3))
def detached_view_of_intermediate(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y.detach().t(), y


@intermediates(lambda n: leaf(n, 3))
def expand_of_intermediate(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.sum(0, keepdim=True)
    return y.expand(4, -1), y


@intermediates(lambda n: leaf(n, 3))
def intermediate_mutated_then_viewed(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    y.add_(1)
    return y.t(), y


@intermediates(lambda n: leaf(n, 3))
def intermediate_mutated_through_view(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    v = y.view(-1)
    v[1:].mul_(3)
    return y, v


@intermediates(lambda n: leaf(n, 3))
def view_saved_for_backward(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.exp()
    return y.view(-1), y * y


@intermediates(lambda n: leaf(n, 2, 3))
def unsafe_view(x: Tensor) -> Tensor:
    return torch.ops.aten._unsafe_view(x * 2, [-1, 3])


@intermediates(lambda n: (leaf(n, 2, 3), leaf(3, 4)))
def matmul_ends_in_unsafe_view(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


@intermediates(lambda n: leaf(n, 3))
def reshape_of_transposed_intermediate(x: Tensor) -> Tensor:
    return (x * 2).t().reshape(-1)


@intermediates(lambda n: plain(n, 3, dtype=torch.complex64))
def real_part_of_intermediate(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y.real, y.imag


@intermediates(lambda n: leaf(n, 3, dtype=torch.complex64))
def complex_gradients(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * (1 + 2j)
    return y.abs(), torch.view_as_real(y)


@intermediates(lambda n: plain(n, 3))
def fresh_tensor_and_its_view(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.arange(6.0)
    return y.view(2, 3), y


@intermediates(lambda n: plain(3))
def constant_outputs(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.ones(3), torch.full((2,), 3, dtype=torch.int64)


@intermediates(lambda n: (leaf(n, 3), plain(n, 3)))
def plain_view_beside_differentiable_view(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    a, b = x * 2, y * 2
    return a.t(), b.t(), a, b


@intermediates(lambda n: leaf(n, 3))
def intermediate_under_no_grad_and_view(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    with torch.no_grad():
        y = x * 2
        v = y.view(-1)
    return y, v, x * y


# --- memory format ----------------------------------------------------------------------------

layout = Cases()


@layout(lambda n: leaf(2, 4, n, n).detach().to(memory_format=torch.channels_last).requires_grad_())
def channels_last_through_pointwise(x: Tensor) -> Tensor:
    return (x * 2).relu()


@layout(lambda n: leaf(2, 4, n, n))
def to_channels_last(x: Tensor) -> Tensor:
    return (x * 2).to(memory_format=torch.channels_last)


@layout(lambda n: (leaf(1, 2, n, n), leaf(4, 2, 3, 3)))
def convolution(x: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.conv2d(x, w, padding=1)


@layout(lambda n: (leaf(1, 2, n, n).to(memory_format=torch.channels_last), leaf(4, 2, 3, 3)))
def convolution_in_channels_last(x: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.conv2d(x, w).relu()


@layout(lambda n: (leaf(n, 3), leaf(3, n)))
def result_follows_strides_of_operands(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.t() * 2, x.t() + y


@layout(lambda n: leaf(n, 3, 2))
def empty_like_of_permuted(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.permute(2, 0, 1)
    return torch.zeros_like(y), y.contiguous()


# --- custom Functions -------------------------------------------------------------------------

functions = Cases()


class ViewFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        return x.view(-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 3 * grad.view(ctx.shape)


class ReturnsInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 5


class ValueAndIndex(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        values, indices = x.sort(dim=0)
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(indices)
        return values, indices

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Tensor:
        (indices,) = ctx.saved_tensors
        return torch.zeros_like(grad).scatter(0, indices, grad)


class FloatNonDifferentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        mask = (x > 0).to(x.dtype)
        ctx.mark_non_differentiable(mask)
        ctx.save_for_backward(mask)
        return x * mask, mask

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Tensor:
        (mask,) = ctx.saved_tensors
        return grad * mask


class NoMaterialize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> Tensor | None:
        if first is None:
            return None if second is None else second * 3
        return first * 2 if second is None else first * 2 + second * 3


@functions(lambda n: leaf(n, 3), **NO_WRITES)
def view_of_intermediate_by_function(x: Tensor) -> Tensor:
    return ViewFunction.apply(x * 2)


@functions(lambda n: leaf(n, 3), scenarios=("full", "partial"))
def view_of_input_by_function(x: Tensor) -> tuple[Tensor, Tensor]:
    return ViewFunction.apply(x), x * 2


@functions(lambda n: nonleaf(n, 3))
def view_of_written_input_by_function(x: Tensor) -> tuple[Tensor, Tensor]:
    x.sin_()
    y = ViewFunction.apply(x)
    return y, y[1:]


@functions(lambda n: nonleaf(n, 3))
def view_of_view_of_input_by_function(x: Tensor) -> Tensor:
    return ViewFunction.apply(x)[1:]


@functions(lambda n: leaf(n, 3))
def view_of_returned_intermediate_by_function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x * 2
    z = ViewFunction.apply(y)
    return z, y, z[2:]


@functions(lambda n: leaf(n, 3))
def input_returned_by_function(x: Tensor) -> Tensor:
    return ReturnsInput.apply(x * 2) * 3


@functions(lambda n: leaf(n, 3))
def non_differentiable_indices(x: Tensor) -> tuple[Tensor, Tensor]:
    return ValueAndIndex.apply(x)


@functions(lambda n: leaf(n, 3))
def non_differentiable_float(x: Tensor) -> tuple[Tensor, Tensor]:
    y, mask = FloatNonDifferentiable.apply(x)
    return y * 2, mask


@functions(lambda n: leaf(n, 3))
def non_differentiable_float_used_further(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y, mask = FloatNonDifferentiable.apply(x)
    return y * mask, mask, mask * 2


@functions(lambda n: leaf(n, 3))
def unmaterialized_gradients(x: Tensor) -> tuple[Tensor, Tensor]:
    return NoMaterialize.apply(x)


# --- outputs that are no tensors --------------------------------------------------------------

others = Cases()


@others(lambda n: leaf(n, 3))
def none_and_numbers(x: Tensor) -> tuple[Any, ...]:
    return None, x * 2, 3, 2.5, "text", True, None


@others(lambda n: leaf(n, 3))
def sizes(x: Tensor) -> tuple[Any, ...]:
    return x.shape[0], x * 2, x.numel() + 1, x.shape


@others(lambda n: plain(n, 3))
def sizes_only(x: Tensor) -> tuple[int, int]:
    return x.shape[0] * 2, x.stride(0)


@others(lambda n: (leaf(n, 3), n))
def integer_argument(x: Tensor, k: int) -> tuple[Tensor, int]:
    return x * k, k + 1


@others(lambda n: (leaf(n, 3), n / 2))
def float_argument(x: Tensor, k: float) -> tuple[Tensor, float]:
    return x * k, k


@others(lambda n: leaf(n, 3))
def integer_and_boolean_outputs(x: Tensor) -> tuple[Tensor, ...]:
    return x.argmax(0), x > 0, x * 2, (x > 0).sum()


@others(lambda n: leaf(n, 3))
def nested_structure(x: Tensor) -> dict[str, Any]:
    y = x * 2
    return {"a": [y, (y.t(), None)], "n": x.shape[0], "deep": {"x": x}}


@others(lambda n: plain(n, 3))
def nothing(x: Tensor) -> None:
    x + 1


@others(lambda n: leaf(n, 3))
def named_tuple(x: Tensor) -> Any:
    return (x * 2).max(dim=0)


@others(lambda n: plain(n, 3), scenarios=("full",))
def scalar_tensor_outputs(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sum(), torch.tensor(3.0)


ALL = [*inputs, *views, *intermediates, *layout, *functions, *others]


@pytest.mark.parametrize("case", ALL, ids=str)
def test_alias(case: Case) -> None:
    case.run()
