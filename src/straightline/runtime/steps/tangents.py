"""Gradients on their way into the backward graph: of the type and format it was traced for."""

from __future__ import annotations

import torch

from straightline.capture.contract import Contract, Format, Opaque, Strides, Subclass, Tangent
from straightline.capture.origins import identifier
from straightline.runtime import support
from straightline.runtime.steps import subclasses
from straightline.runtime.writer import Writer, attribute, literal


def emit(
    writer: Writer, contract: Contract, compile_id: str, names: list[str], *, symbols: bool = False
) -> list[str]:
    """Convert each tangent (bound to `names`); returns the flat expressions the graph takes.

    `symbols`: a subclass's sizes that are known at run time only come after its members.
    """
    flat: list[str] = []
    for tangent, name in zip(contract.tangents, names, strict=True):
        flat += _convert(writer, tangent, name, compile_id, symbols)
    return flat


def _convert(
    writer: Writer, tangent: Tangent, name: str, compile_id: str, symbols: bool
) -> list[str]:
    match tangent.layout:
        case Opaque():
            return [name]
        case Subclass() as layout:
            _check_subclass(writer, tangent, layout, name, compile_id)
            _check_format(writer, tangent, name)
            flat: list[str] = []
            for (member, _), inner in zip(layout.members, tangent.members, strict=True):
                local = writer.name(identifier(f"{name}_{member}"))
                writer.line(f"{local} = {attribute(name, member)}")
                flat += _convert(writer, inner, local, compile_id, symbols)
            return flat + (subclasses.symbols(layout, name) if symbols else [])
        case _:
            _check_type(writer, tangent, torch.Tensor, None, name, compile_id)
            _check_format(writer, tangent, name)
            return [name]


def _check_subclass(
    writer: Writer, tangent: Tangent, layout: Subclass, name: str, compile_id: str
) -> None:
    """The type must be the expected one, and so must what its flatten says about it."""
    expected = writer.bind(layout.type, identifier(layout.type.__name__))
    context = writer.literal(layout.context, identifier(f"{layout.type.__name__}_context"))
    differs = f"{name}.__tensor_flatten__()[1] != {context}"
    _coerce(
        writer, tangent, f"type({name}) is not {expected} or {differs}", expected, context, name,
        compile_id,
    )  # fmt: skip


def _check_type(
    writer: Writer, tangent: Tangent, expected: type, context: object, name: str, compile_id: str
) -> None:
    bound = writer.bind(expected, expected.__name__)
    test = f"type({name}) is not {bound}"
    _coerce(writer, tangent, test, bound, literal(context) or "None", name, compile_id)


def _coerce(
    writer: Writer,
    tangent: Tangent,
    test: str,
    expected: str,
    context: str,
    name: str,
    compile_id: str,
) -> None:
    coerce = writer.bind(support.coerce, "coerce")
    stack = "None"
    if tangent.created_at is not None:
        stack = writer.bind(tangent.created_at, f"{name}_made_at")
    with writer.block(f"if {test}:"):
        writer.line(
            f"{name} = {coerce}({name}, {expected}, {context}, {tangent.description!r}, "
            f"{compile_id!r}, {stack})"
        )


def _check_format(writer: Writer, tangent: Tangent, name: str) -> None:
    match tangent.format:
        case Strides(size, stride):
            fix = writer.bind(support.to_strides, "to_strides")
            with writer.block(f"if {name}.stride() != {stride!r}:"):
                writer.line(f"{name} = {fix}({name}, {size!r}, {stride!r})")
        case Format(memory_format) if memory_format is torch.contiguous_format:
            with writer.block(f"if not {name}.is_contiguous():"):
                writer.line(f"{name} = {name}.contiguous()")
        case Format(memory_format):
            bound = writer.bind(memory_format, str(memory_format).removeprefix("torch."))
            with writer.block(f"if not {name}.is_contiguous(memory_format={bound}):"):
                writer.line(f"{name} = {name}.contiguous(memory_format={bound})")
        case None:
            pass
