"""Write down a traced program of a higher order as a contract of our own."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import fx
from torch._functorch._aot_autograd.schemas import SubclassMeta, ViewAndMutationMeta

from straightline.capture.contract import (
    Contract,
    Derivation,
    From,
    Given,
    Handles,
    Input,
    Layout,
    Modes,
    Output,
    Plain,
    Role,
    Saved,
    Tangent,
    places,
)
from straightline.errors import DoubleBackwardError
from straightline.torch_private import missing, returns, translate
from straightline.torch_private.layouts import layout, return_layouts, role


def contract(
    lower: Contract,
    order: int,
    forward: fx.GraphModule,
    backward: fx.GraphModule | None,
    meta: ViewAndMutationMeta,
    subclass: SubclassMeta | None,
    *,
    given: Sequence[tuple[str, int]],
    gradients: Sequence[bool],
    differentiable: Sequence[bool],
    influence: Sequence[frozenset[int]],
    live: Mapping[int, DoubleBackwardError],
) -> Contract:
    """The contract of the program of order `order` whose graphs torch's stages described by `meta`.

    `given` are (kind, flat index) of what the graph takes, `live` as in `capture.second_order`.
    `influence` lists for each result what it depends on: inputs of the lower program, and tangents.
    Raises the error of a live input that can be none.
    """
    count = len(lower.inputs)
    layouts = return_layouts(meta)
    back = _gradients(subclass, count + len(lower.tangents))
    described = translate.tangents(meta)
    reached = frozenset(itertools.chain.from_iterable(influence))
    names = _names(lower)
    inputs = (
        *(
            Input(name, item.role, item.layout, requires_grad=i in reached and _tracked(lower, i))
            for i, (name, item) in enumerate(zip(names, lower.inputs, strict=False))
        ),
        *(
            Input(name, Role.TENSOR, tangent.layout, requires_grad=True)
            for name, tangent in zip(names[count:], lower.tangents, strict=True)
        ),
    )
    tangents = tuple(_described(tangent, order, inputs, gradients) for tangent in described)
    passed = tuple(i for i, item in enumerate(inputs) if item.requires_grad)
    keep = bool(lower.handles.values)
    return Contract(
        name=lower.name,
        kind="training",
        arguments=(),
        inputs=inputs,
        modes=Modes(
            grad_enabled=True,
            autocast=lower.modes.autocast,
            backward_casts=lower.modes.backward_casts,
            deterministic=lower.modes.deterministic,
        ),
        outputs=tuple(
            Output(From.VALUE, tensor=True, requires_grad=d, differentiable=d, layout=layout)
            for d, layout in zip(differentiable, layouts, strict=True)
        ),
        saved=_saved(forward, sum(places(layout) for layout in layouts)),
        handles=Handles(
            edges=passed,
            versions=() if keep else passed,
            numbers=lower.handles.numbers,
            values=(*lower.handles.values, *range(count, len(inputs))) if keep else (),
        ),
        derivation=Derivation(
            order,
            _given(lower, given),
            tuple(gradients),
            tuple(_by_tangent(each, inputs, count) for each in influence),
            _lost(lower, live),
        ),
        tangents=tangents,
        missing=missing.missing(meta, tangents, backward, back) if backward else None,
        gradients=back,
    )


def _names(lower: Contract) -> list[str]:
    """Inputs stand for places in the autograd graph: `to_x`. None is called as a lower one is."""
    taken = {item.name for item in lower.inputs} | {item.name for item in lower.arguments}
    names: list[str] = []
    for wanted in [
        *(f"to_{item.name.removeprefix('to_')}" for item in lower.inputs),
        *(tangent.name for tangent in lower.tangents),
    ]:
        name = next(
            each
            for each in itertools.chain([wanted], map(f"{wanted}_{{}}".format, itertools.count(1)))
            if each not in taken
        )
        taken.add(name)
        names.append(name)
    return names


def _described(
    tangent: Tangent, order: int, inputs: Sequence[Input], gradients: Sequence[bool]
) -> Tangent:
    """The cotangent of a gradient, named after what it is the gradient of."""
    having = [i for i, has in enumerate(gradients) if has]
    of = inputs[having[tangent.position]].name.removeprefix("to_")
    return dataclasses.replace(tangent, description=f"order {order} gradient of {of}")


def _tracked(lower: Contract, number: int) -> bool:
    """The lower program's node knows where gradients of this input go."""
    item = lower.inputs[number]
    if lower.derivation is not None:
        return number in lower.handles.edges
    return item.requires_grad and not item.detached


def _saved(forward: fx.GraphModule, results: int) -> Saved:
    kept = returns.output_values(forward)[results:]
    values = [v.meta["val"] for v in kept]
    tensors = [v for v, value in zip(kept, values, strict=True) if isinstance(value, torch.Tensor)]
    numbers = sum(role(value) is Role.NUMBER for value in values)
    looks = [returns.is_view(v) for v in tensors]
    return Saved(
        checked=len(tensors),
        opaque=len(kept) - len(tensors) - numbers,
        numbers=numbers,
        view=tuple(i for i, view in enumerate(looks) if view is True),
        maybe_view=tuple(i for i, view in enumerate(looks) if view is None),
    )


def _given(lower: Contract, given: Sequence[tuple[str, int]]) -> tuple[Given, ...]:
    found = []
    for kind, index in given:
        match kind:
            case "saved":
                found.append(Given("saved", index))
            case "tangent":
                found.append(Given("tangent", index))
            case _:
                found.append(Given("input", *_part(lower, index)))
    return tuple(found)


def _part(lower: Contract, flat: int) -> tuple[int, int]:
    """The input that a flat one is part of, and which part."""
    for number, item in enumerate(lower.inputs):
        if flat < places(item.layout):
            return number, flat
        flat -= places(item.layout)
    raise AssertionError("a flat input belongs to an input")


def _by_tangent(
    reached: Collection[int], inputs: Sequence[Input], count: int
) -> tuple[int, ...] | None:
    """The tangents it depends on; None where it depends on an input that requires grad."""
    if any(i < count and inputs[i].requires_grad for i in reached):
        return None
    return tuple(sorted(i - count for i in reached if i >= count))


def _lost(
    lower: Contract, live: Mapping[int, DoubleBackwardError]
) -> tuple[tuple[int, str, str | None], ...]:
    found: dict[int, tuple[int, str, str | None]] = {}
    for flat, error in live.items():
        number, _ = _part(lower, flat)
        if number not in lower.handles.values and number not in lower.handles.versions:
            raise error
        found[number] = number, error.what, error.where
    return tuple(found.values())


def _gradients(subclass: SubclassMeta | None, count: int) -> tuple[Layout, ...]:
    if subclass is None or subclass.grad_input_metas is None:
        return (Plain(),) * count
    return tuple(layout(m) for m in subclass.grad_input_metas)
