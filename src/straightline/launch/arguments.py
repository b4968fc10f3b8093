"""The arguments of a kernel as Python looks at them: where the launcher finds that they are not as
expected, and where there is no launcher that takes tensors.

An input of another layout is copied into the expected one. All else is an error, which says what
came and what was expected.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from straightline.ir.dtypes import DType
from straightline.launch.descriptor import Description, Expected, Fact, Number

_TORCH = {
    "b1": torch.bool,
    "u8": torch.uint8,
    "u16": torch.uint16,
    "u32": torch.uint32,
    "u64": torch.uint64,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "f64": torch.float64,
}


def torch_dtype(dtype: DType) -> torch.dtype:
    return _TORCH[dtype.name]


def settle(
    description: Description, args: Sequence[object]
) -> tuple[list[torch.Tensor], list[int]]:
    """The tensors with which the kernel may run, and the integers."""
    tensors, facts = description.tensors, description.facts
    if len(args) != len(tensors) + len(facts):
        raise TypeError(
            f"{description.name} takes {len(tensors)} tensors and {len(facts)} integers, "
            f"not {len(args)} arguments"
        )
    integers = []
    for arg in args[len(tensors) :]:
        if not isinstance(arg, int):
            raise TypeError(f"{description.name}: {type(arg).__name__} came for an integer")
        integers.append(arg)
    return [
        _settled(description.name, expected, arg, integers)
        for expected, arg in zip(tensors, args, strict=False)
    ], integers


def _settled(kernel: str, expected: Expected, arg: object, integers: Sequence[int]) -> torch.Tensor:
    def numbers(values: Sequence[Number]) -> tuple[int, ...]:
        return tuple(integers[v.at] if isinstance(v, Fact) else v for v in values)

    dtype, shape = torch_dtype(expected.dtype), numbers(expected.shape)
    strides = numbers(expected.strides)
    wanted = f"a {_name(dtype)} tensor of sizes {shape}, strides {strides} on the CPU"
    what = f"{kernel}: {wanted} was expected for `{expected.name}`"
    if not isinstance(arg, torch.Tensor):
        raise TypeError(f"{what}, not {type(arg).__name__}")
    if arg.layout != torch.strided or arg.device.type != "cpu" or arg.dtype != dtype:
        raise TypeError(f"{what}, not {_describe(arg)}")
    if tuple(arg.shape) != shape:
        raise RuntimeError(f"{what}, not {_describe(arg)}")
    if not arg.is_neg() and same_strides(arg, strides):
        settled = arg
    elif expected.written or _overlap(shape, strides):
        raise RuntimeError(f"{what}, not {_describe(arg)}")
    else:
        settled = torch.empty_strided(shape, strides, dtype=dtype).copy_(arg.detach())
    if settled.numel() and not settled.data_ptr():
        raise RuntimeError(f"{what}, not {_describe(arg)} without memory")
    return settled


def same_strides(tensor: torch.Tensor, strides: Sequence[int]) -> bool:
    """Whether the elements lie where these strides say."""
    return tensor.numel() == 0 or all(
        size <= 1 or stride == wanted
        for size, stride, wanted in zip(tensor.shape, tensor.stride(), strides, strict=True)
    )


def _overlap(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements of a tensor may share memory, so that none can be made from another."""
    reach = 0
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1 and stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def _describe(tensor: torch.Tensor) -> str:
    layout = "" if tensor.layout == torch.strided else f" {_name(tensor.layout)}"
    strides = f", strides {tuple(tensor.stride())}" if not layout else ""
    kind = "" if type(tensor) is torch.Tensor else f" ({type(tensor).__name__})"
    return (
        f"a{layout} {_name(tensor.dtype)} tensor{kind} of sizes {tuple(tensor.shape)}{strides} "
        f"on {tensor.device}"
    )


def _name(thing: object) -> str:
    return str(thing).removeprefix("torch.")
