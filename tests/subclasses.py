"""Tensor subclasses for tests: every shape that `__tensor_flatten__` may have.

`Wrapper` runs each op on every tensor member; what differs between the classes is the form of
their members. None of them takes a plain tangent for one of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._library.opaque_object import MemberType, register_opaque_type
from torch._opaque_base import OpaqueBase
from torch.utils._python_dispatch import return_and_correct_aliasing


class Wrapper(torch.Tensor):
    """Applies each op to every one of `MEMBERS`, which is also the order of flattening."""

    MEMBERS: tuple[str, ...] = ("value",)

    @staticmethod
    def __new__(
        cls: type[Wrapper],
        members: Mapping[str, torch.Tensor],
        outer_size: Any = None,
        outer_stride: Any = None,
    ) -> Wrapper:
        like = members[cls.MEMBERS[0]]
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined, no-any-return]
            cls,
            like.size() if outer_size is None else outer_size,
            strides=like.stride() if outer_stride is None else outer_stride,
            storage_offset=like.storage_offset(),
            dtype=like.dtype,
            device=like.device,
            requires_grad=like.requires_grad,
        )

    def __init__(
        self, members: Mapping[str, torch.Tensor], outer_size: Any = None, outer_stride: Any = None
    ) -> None:
        # Sorted, so that the order of the instance's dictionary is not the order of flattening.
        for name in sorted(members):
            setattr(self, name, members[name])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.members()})"

    def members(self) -> dict[str, torch.Tensor]:
        return {name: getattr(self, name) for name in self.MEMBERS}

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return list(self.MEMBERS), None

    @classmethod
    def __tensor_unflatten__(
        cls, inner: Mapping[str, torch.Tensor], meta: Any, outer_size: Any, outer_stride: Any
    ) -> Wrapper:
        return cls(inner, outer_size, outer_stride)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}

        def run(name: str) -> Any:
            pick = lambda t: getattr(t, name)  # noqa: E731
            return func(
                *pytree.tree_map_only(cls, pick, args), **pytree.tree_map_only(cls, pick, kwargs)
            )

        outs = [pytree.tree_flatten(run(name)) for name in cls.MEMBERS]
        spec = outs[0][1]
        leaves = [
            cls(dict(zip(cls.MEMBERS, per_member, strict=True)))
            if isinstance(per_member[0], torch.Tensor)
            else per_member[0]
            for per_member in zip(*(flat for flat, _ in outs), strict=True)
        ]
        return return_and_correct_aliasing(func, args, kwargs, pytree.tree_unflatten(leaves, spec))


class Shuffled(Wrapper):
    """Members flattened in no natural order, under names that generated code may use itself."""

    MEMBERS = ("z", "args", "_a", "out")


class OddNames(Wrapper):
    """Members whose names are no identifiers.

    Dynamo cannot guard such members of an input (it writes the names into Python expressions), so
    these come into being inside of a graph: each op on a `Seed` makes one.
    """

    MEMBERS = ("with space", "class", "0th", "_a")


class Seed(Wrapper):
    """Becomes `OddNames` by any op."""

    MEMBERS = ("value",)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            return super().__torch_dispatch__(func, types, args, kwargs)
        value = lambda t: t.value  # noqa: E731
        odd = lambda t: OddNames(  # noqa: E731
            {name: t * (i + 1) for i, name in enumerate(OddNames.MEMBERS)}
        )
        args, kwargs = pytree.tree_map_only(cls, value, (args, kwargs))
        if any(isinstance(a, OddNames) for a in pytree.arg_tree_leaves(*args, **kwargs)):
            unwrap = lambda t: sum(t.members().values())  # noqa: E731
            args, kwargs = pytree.tree_map_only(OddNames, unwrap, (args, kwargs))
        return pytree.tree_map_only(torch.Tensor, odd, func(*args, **kwargs))


class Single(Wrapper):
    """One member only; the tuple in the generated code has one element."""

    MEMBERS = ("value",)


class Coercing(Wrapper):
    """Becomes plain where a plain tangent is expected."""

    MEMBERS = ("value",)

    def __coerce_same_metadata_as_tangent__(
        self, expected_metadata: Any, expected_type: type | None = None
    ) -> torch.Tensor | None:
        if expected_type is torch.Tensor:
            return self.value  # type: ignore[attr-defined, no-any-return]
        return None


class Label(OpaqueBase):
    """An opaque member: torch carries it through the graph without looking inside."""

    def __init__(self, text: str) -> None:
        self.text = text


register_opaque_type(Label, typ="reference", members={"text": MemberType.USE_REAL})


class Labelled(torch.Tensor):
    """A tensor member and an opaque one, the opaque one first."""

    @staticmethod
    def __new__(
        cls: type[Labelled], value: torch.Tensor, label: Label, size: Any = None, stride: Any = None
    ) -> Labelled:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined, no-any-return]
            cls,
            value.size() if size is None else size,
            strides=value.stride() if stride is None else stride,
            storage_offset=value.storage_offset(),
            dtype=value.dtype,
            device=value.device,
            requires_grad=value.requires_grad,
        )

    def __init__(
        self, value: torch.Tensor, label: Label, size: Any = None, stride: Any = None
    ) -> None:
        self.value = value
        self.label = label

    def __repr__(self) -> str:
        return f"Labelled({self.value!r})"

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["label", "value"], None

    @staticmethod
    def __tensor_unflatten__(
        inner: Mapping[str, Any], meta: Any, outer_size: Any, outer_stride: Any
    ) -> Labelled:
        return Labelled(inner["value"], inner["label"], outer_size, outer_stride)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        labels = [a.label for a in pytree.arg_tree_leaves(*args, **kwargs) if isinstance(a, cls)]
        value = lambda t: t.value  # noqa: E731
        out = func(
            *pytree.tree_map_only(cls, value, args), **pytree.tree_map_only(cls, value, kwargs)
        )
        out = pytree.tree_map_only(torch.Tensor, lambda t: cls(t, labels[0]), out)
        return return_and_correct_aliasing(func, args, kwargs, out)


class Flat(torch.Tensor):
    """Keeps its values in one dimension: its own sizes cannot be read off its member."""

    @staticmethod
    def __new__(cls: type[Flat], values: torch.Tensor, size: Any, stride: Any = None) -> Flat:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined, no-any-return]
            cls,
            size,
            dtype=values.dtype,
            device=values.device,
            requires_grad=values.requires_grad,
        )

    def __init__(self, values: torch.Tensor, size: Any, stride: Any = None) -> None:
        self.values_1d = values

    def __repr__(self) -> str:
        return f"Flat({self.values_1d!r}, {tuple(self.shape)})"

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["values_1d"], None

    @staticmethod
    def __tensor_unflatten__(
        inner: Mapping[str, torch.Tensor], meta: Any, outer_size: Any, outer_stride: Any
    ) -> Flat:
        return Flat(inner["values_1d"], outer_size, outer_stride)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        shaped = lambda t: t.values_1d.view(t.shape)  # noqa: E731
        out = func(
            *pytree.tree_map_only(cls, shaped, args), **pytree.tree_map_only(cls, shaped, kwargs)
        )
        out = pytree.tree_map_only(
            torch.Tensor, lambda t: cls(t.contiguous().view(-1), t.shape), out
        )
        return return_and_correct_aliasing(func, args, kwargs, out)


class ColumnMajor(torch.Tensor):
    """A matrix held transposed: its strides are not those of its member."""

    @staticmethod
    def __new__(
        cls: type[ColumnMajor], rows: torch.Tensor, size: Any = None, stride: Any = None
    ) -> ColumnMajor:
        across = rows.t()
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined, no-any-return]
            cls,
            across.size() if size is None else size,
            strides=across.stride() if stride is None else stride,
            dtype=rows.dtype,
            device=rows.device,
            requires_grad=rows.requires_grad,
        )

    def __init__(self, rows: torch.Tensor, size: Any = None, stride: Any = None) -> None:
        self.rows = rows

    def __repr__(self) -> str:
        return f"ColumnMajor({self.rows!r})"

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["rows"], None

    @staticmethod
    def __tensor_unflatten__(
        inner: Mapping[str, torch.Tensor], meta: Any, outer_size: Any, outer_stride: Any
    ) -> ColumnMajor:
        return ColumnMajor(inner["rows"], outer_size, outer_stride)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        across = lambda t: t.rows.t()  # noqa: E731
        out = func(
            *pytree.tree_map_only(cls, across, args), **pytree.tree_map_only(cls, across, kwargs)
        )
        rewrap = lambda t: cls(t.t().contiguous()) if t.dim() == 2 else t  # noqa: E731
        return return_and_correct_aliasing(
            func, args, kwargs, pytree.tree_map_only(torch.Tensor, rewrap, out)
        )


class Int8Weight(torch.Tensor):
    """A weight kept as int8 with a scale per row, in the manner of weight-only quantisation.

    `F.linear` is taken over in `__torch_function__`; the product is of another type than the
    weight, and the weight itself takes no gradient.
    """

    @staticmethod
    def __new__(
        cls: type[Int8Weight],
        packed: torch.Tensor,
        scale: torch.Tensor,
        size: Any = None,
        stride: Any = None,
    ) -> Int8Weight:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined, no-any-return]
            cls,
            packed.size() if size is None else size,
            strides=packed.stride() if stride is None else stride,
            dtype=scale.dtype,
            device=packed.device,
            requires_grad=False,
        )

    def __init__(
        self, packed: torch.Tensor, scale: torch.Tensor, size: Any = None, stride: Any = None
    ) -> None:
        self.packed = packed
        self.scale = scale

    @classmethod
    def quantise(cls, weight: torch.Tensor) -> Int8Weight:
        scale = weight.detach().abs().amax(1, keepdim=True) / 127
        return cls((weight.detach() / scale).round().to(torch.int8), scale)

    def __repr__(self) -> str:
        return f"Int8Weight({self.packed!r}, {self.scale!r})"

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["packed", "scale"], None

    @staticmethod
    def __tensor_unflatten__(
        inner: Mapping[str, torch.Tensor], meta: Any, outer_size: Any, outer_stride: Any
    ) -> Int8Weight:
        return Int8Weight(inner["packed"], inner["scale"], outer_size, outer_stride)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.linear:
            return _int8_linear(*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            weight = args[0]
            out = cls(func(weight.packed), func(weight.scale))
            return return_and_correct_aliasing(func, args, kwargs, out)
        raise NotImplementedError(f"Int8Weight does not take {func}")


def _int8_linear(
    x: torch.Tensor, weight: Int8Weight, bias: torch.Tensor | None = None
) -> torch.Tensor:
    out = (x @ weight.packed.to(x.dtype).t()) * weight.scale.view(-1)
    return out if bias is None else out + bias
