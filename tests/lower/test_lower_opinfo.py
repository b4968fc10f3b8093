"""Lowered operations against eager, on torch's own samples of their arguments."""

import itertools
import warnings

import pytest
import torch
from lowering import reasons, run, traced
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_unflatten

from straightline.lower.graph import lower

# Bit for bit what eager gives, zeros' signs and all.
EXACT = """
abs add addcdiv addcmul alias_copy all amax amin aminmax any arange argmax argmin as_strided
as_strided/partial_views as_strided_copy atleast_1d atleast_2d atleast_3d bfloat16 bitwise_and
bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor bool broadcast_tensors
broadcast_to bucketize byte cat ceil char chunk clamp clamp_max clamp_min clone column_stack
constant_pad_nd contiguous copysign count_nonzero cumprod cumsum deg2rad diag_embed
diagonal diagonal_copy diagonal_scatter div/floor_rounding div/no_rounding_mode div/trunc_rounding
double dsplit dstack eq expand expand_as expand_copy eye fill flatten flip fliplr flipud float
floor floor_divide fmax fmin fmod frac full full_like gather ge gt half heaviside hsplit hstack
index_select int isfinite isinf isnan isneginf isposinf kron le lerp logical_and
logical_not logical_or logical_xor long lt masked_fill max/binary max/reduction_no_dim
max/reduction_with_dim maximum meshgrid/list_of_tensors min/binary min/reduction_no_dim
min/reduction_with_dim minimum movedim mul nan_to_num narrow narrow_copy ne neg new_full new_ones
new_zeros nn.functional.embedding nn.functional.hardshrink
nn.functional.hardsigmoid nn.functional.hardswish nn.functional.hardtanh nn.functional.leaky_relu
nn.functional.pad/constant nn.functional.pad/reflect
nn.functional.pad/replicate
nn.functional.prelu nn.functional.relu nn.functional.relu6 nn.functional.softshrink
nn.functional.threshold ones ones_like permute permute_copy positive rad2deg ravel real reciprocal
remainder repeat reshape reshape_as resolve_conj resolve_neg roll rot90 round round/decimals_0
rsub scalar_tensor select select_scatter sgn short sign signbit slice slice_scatter split
split/list_args split_with_sizes split_with_sizes_copy square squeeze squeeze/multiple
squeeze_copy stack sub t t_copy take tile to trace transpose transpose_copy tril triu
true_divide trunc unbind unbind_copy unflatten unfold unfold_copy unsafe_chunk unsafe_split
unsqueeze unsqueeze_copy view view_as view_copy vsplit vstack where zeros zeros_like
__getitem__ __radd__ __rdiv__ __rmod__ __rmul__ __rsub__ __rand__ __ror__ __rxor__
""".split()  # noqa: SIM905 - a list in quotes and commas is no easier to read

# As near as two ways of rounding in each of a few steps are.
NEAR = """
_softmax_backward_data acos acosh asin asinh atan atan2 atanh cos cosh digamma erf erfc erfinv exp
exp2 expm1 float_power hypot ldexp lgamma linalg.norm linalg.vector_norm log log10 log1p log2
log_softmax logaddexp logaddexp2 logcumsumexp logit logsumexp masked.logsumexp masked.mean
masked.norm masked.softmax masked.std masked.sum masked.var mean nansum native_layer_norm
nn.functional.binary_cross_entropy_with_logits nn.functional.celu
nn.functional.cross_entropy nn.functional.elu nn.functional.gelu nn.functional.glu
nn.functional.group_norm nn.functional.huber_loss nn.functional.kl_div nn.functional.l1_loss
nn.functional.layer_norm nn.functional.logsigmoid nn.functional.mish nn.functional.mse_loss
nn.functional.nll_loss
nn.functional.normalize nn.functional.pairwise_distance nn.functional.selu
nn.functional.silu nn.functional.smooth_l1_loss nn.functional.soft_margin_loss
nn.functional.softmin nn.functional.softplus nn.functional.softsign nn.functional.tanhshrink norm
norm/fro pow prod rsqrt sigmoid sin sinc sinh softmax softmax/with_dtype special.entr special.ndtr
special.xlog1py sqrt std std_mean sum sum_to_size tan tanh trapezoid var var_mean xlogy __rpow__
""".split()  # noqa: SIM905

DTYPES = (torch.float32, torch.bfloat16, torch.int64)
MORE_DTYPES = (torch.float64, torch.bool, torch.float16, torch.int8, torch.uint8)
KNOWN = {op.name + (f"/{op.variant_test_name}" if op.variant_test_name else ""): op for op in op_db}
# Relative and absolute. Eager's own error in `bfloat16` is of some units: it rounds between steps.
NEARNESS = {
    torch.float32: (4e-6, 1e-6),
    torch.float64: (1e-13, 1e-14),
    torch.float16: (4e-3, 2e-3),
    torch.bfloat16: (2e-2, 1e-2),
}


def samples(name, dtype, count):
    """A few of the arguments that torch tests an operation with: a function of their tensors, and
    those.
    """
    op = KNOWN[name]
    if not op.supports_dtype(dtype, "cpu"):
        return
    torch.manual_seed(0)
    for sample in itertools.islice(op.sample_inputs("cpu", dtype), 0, 5 * count, 5):
        leaves, spec = tree_flatten(((sample.input, *sample.args), sample.kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

        def function(*tensors, leaves=leaves, spec=spec, places=places):
            filled = list(leaves)
            for place, tensor in zip(places, tensors, strict=True):
                filled[place] = tensor
            args, kwargs = tree_unflatten(filled, spec)
            return tree_flatten(op.op(*args, **kwargs))[0]

        yield function, [leaves[place] for place in places]


# Some of their further samples stay ATen's: sizes are not known, or an operand is written to.
IN_PART = {
    "as_strided/partial_views", "bucketize", "diagonal", "diagonal_copy", "kron", "narrow",
    "nn.functional.embedding", "nn.functional.group_norm",
}  # fmt: skip


def agree(name, dtype, dynamic=False, count=1):
    ran = 0
    for function, tensors in samples(name, dtype, count):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wanted = function(*tensors)
            graph = traced(function, *tensors, dynamic=dynamic)
        lowered = lower(graph)
        if reasons(lowered) and name in IN_PART and count > 1:
            continue
        assert set(reasons(lowered).values()) <= {"a result without elements"}
        made = run(graph, lowered, *tensors)
        for got, want in zip(made, wanted, strict=True):
            compare(name, got, want)
        ran += 1
    return ran


def compare(name, got, want):
    assert got.dtype is want.dtype
    assert got.shape == want.shape
    if want.numel() > 1:
        assert _steps(got) == _steps(want)
    if name in EXACT or not want.is_floating_point():
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        if want.is_floating_point():
            assert torch.equal(got.signbit() & ~got.isnan(), want.signbit() & ~want.isnan())
    else:
        rtol, atol = NEARNESS[want.dtype]
        torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)


def _steps(tensor):
    return [step for n, step in zip(tensor.shape, tensor.stride(), strict=True) if n > 1]


@pytest.mark.parametrize("name", [*EXACT, *NEAR])
def test_a_lowered_operation_gives_what_eager_gives(name):
    assert sum(agree(name, dtype) for dtype in DTYPES)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*EXACT, *NEAR])
def test_a_lowered_operation_gives_what_eager_gives_in_other_types(name):
    for dtype in MORE_DTYPES:
        agree(name, dtype, count=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*EXACT, *NEAR])
def test_a_lowered_operation_gives_what_eager_gives_with_symbolic_sizes(name):
    for dtype in (torch.float32, torch.int64):
        agree(name, dtype, dynamic=True, count=3)
