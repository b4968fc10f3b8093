"""What is not lowered, and why: by what an operation is, and by what its tensors are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from straightline.torch_private import operations

# Families that have no rule, by how their names begin; the longest beginning counts.
FAMILIES: Mapping[str, str] = {
    **dict.fromkeys(
        ("mm", "bmm", "addmm", "addbmm", "baddbmm", "addmv", "addr", "mv", "dot", "vdot", "linear",
         "matmul", "_scaled_mm", "_int_mm"),
        "a matrix product",
    ),
    **dict.fromkeys(
        ("convolution", "_convolution", "convolution_backward", "mkldnn_convolution"),
        "a convolution",
    ),
    **dict.fromkeys(
        ("max_pool", "avg_pool", "adaptive_", "_adaptive_", "fractional_max_pool", "max_unpool",
         "lp_pool", "mkldnn_max_pool"),
        "pooling",
    ),
    **dict.fromkeys(
        ("_scaled_dot_product", "scaled_dot_product", "_flash_attention", "_efficient_attention",
         "_native_multi_head_attention"),
        "attention",
    ),
    **dict.fromkeys(
        ("sort", "topk", "kthvalue", "median", "nanmedian", "mode", "msort", "argsort", "unique",
         "_unique", "searchsorted"),
        "sorting",
    ),
    **dict.fromkeys(("linalg_", "_linalg_", "cholesky", "triangular_solve", "lu_", "ormqr",
                     "geqrf"), "linear algebra"),
    **dict.fromkeys(("_fft", "fft_", "stft", "istft"), "a Fourier transform"),
    **dict.fromkeys(("upsample", "_upsample", "grid_sampler"), "interpolation"),
    **dict.fromkeys(("lstm", "gru", "rnn_", "_thnn", "mkldnn_rnn"), "a recurrent layer"),
    **dict.fromkeys(("nonzero", "masked_select", "_local_scalar_dense", "equal"),
                    "its result's size or value depends on data"),
    **dict.fromkeys(("empty", "new_empty"), "memory whose values are not defined"),
    **dict.fromkeys(("view_as_complex", "complex", "polar", "view_as_real", "_conj", "real",
                     "imag"),
                    "complex"),
    **dict.fromkeys(("sparse", "_sparse", "to_sparse", "_to_sparse", "_coalesced"), "sparse"),
    **dict.fromkeys(("quantize", "dequantize", "q_", "fake_quantize", "_fake_quantize"),
                    "quantised"),
}  # fmt: skip


def reason(target: Any) -> str | None:
    """Why an operation runs as it is whatever its tensors are; None if it may be lowered."""
    if not operations.is_operator(target):
        return "a higher-order operation or a Python function"
    if operations.writes(target):
        return "mutates its input"
    if operations.is_random(target):
        return "random"
    namespace = str(target).partition(".")[0]
    if namespace != "aten":
        return f"an operation of {namespace}"
    return None


def without_rule(target: Any) -> str:
    """Why an operation has no rule."""
    name = str(target).partition(".")[2]
    found = max((begin for begin in FAMILIES if name.startswith(begin)), key=len, default=None)
    return f"no rule for {target}" if found is None else f"{FAMILIES[found]} ({target})"


def unreadable(described: Any) -> str | None:
    """Why computes cannot read or make this; None for a dense tensor on the CPU."""
    if not isinstance(described, torch.Tensor):
        return "a value that is no tensor"
    if described.layout is not torch.strided:
        sparse = "sparse" in str(described.layout)
        return "sparse" if sparse else f"of layout {described.layout}"
    if described.is_complex():
        return "complex"
    if described.is_quantized:
        return "quantised"
    if described.device.type != "cpu":
        return f"on {described.device.type}"
    if described.is_neg():
        return "a tensor whose negation is put off"
    if described.is_nested:
        return "nested"
    return None
