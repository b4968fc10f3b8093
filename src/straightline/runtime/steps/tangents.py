"""Gradients on their way into the backward graph: of the type and format it was traced for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from straightline.capture.contract import (
    Contract,
    Format,
    Opaque,
    Rng,
    Strides,
    Subclass,
    Tangent,
    Zero,
)
from straightline.capture.origins import identifier
from straightline.runtime import support
from straightline.runtime.steps import saved, subclasses
from straightline.runtime.steps.flow import returned
from straightline.runtime.writer import Writer, attribute, literal, tuple_of
from straightline.torch_private.marks import RESULTS


def emit_received(
    writer: Writer, contract: Contract, names: Sequence[str]
) -> Callable[[int, str], str]:
    """Bind each tangent to its name, zeros where none came; `grads` is emptied.

    Returns what turns gradient number i into the expression to return: None where all that it
    depends on was left out.
    """
    positions = {number: i for i, number in enumerate(returned(contract))}
    places = [positions[tangent.position] for tangent in contract.tangents]
    for place, name in zip(places, names, strict=True):
        writer.line(f"{name} = grads[{place}]")
    writer.line("grads.clear()")
    missing = contract.missing
    if missing is None:
        return lambda _number, gradient: gradient
    needed = missing.needed
    idle = _idle(contract)
    if idle:
        # As in eager, where none of the operations inside would run.
        with writer.block(f"if {' and '.join(f'{name} is None' for name in names)}:"):
            saved.emit_drop(writer, contract)
            leading = contract.derivation is not None
            writer.line(f"return {tuple_of(['None'] * (leading + len(contract.gradients)))}")
        if len(names) == 1:
            return lambda _number, gradient: gradient
    asked = {k for each in needed if len(each) < len(names) or not idle for k in each}
    flags = {k: writer.name(f"no_{names[k]}") for k in sorted(asked)}
    for k, (place, name) in enumerate(zip(places, names, strict=True)):
        if k in flags:
            writer.line(f"{flags[k]} = {name} is None")
        with writer.block(f"if {flags.get(k, f'{name} is None')}:"):
            _emit_zero(writer, name, contract.tangents[k], missing.zeros[k], place)

    def gradient_or_none(number: int, gradient: str) -> str:
        deciding = needed[number]
        if gradient == "None" or not deciding or (idle and len(deciding) == len(names)):
            return gradient
        return f"None if {' and '.join(flags[k] for k in deciding)} else {gradient}"

    return gradient_or_none


def _idle(contract: Contract) -> bool:
    """Nothing has to happen in a backward that no gradient arrives in."""
    assert contract.missing is not None
    rest = contract.backward_tokens or contract.backward_mutates or contract.rng != Rng()
    return not (contract.missing.fixed or rest)


def _emit_zero(
    writer: Writer, name: str, tangent: Tangent, parts: Sequence[Zero | str], place: int
) -> None:
    zeros = writer.bind(torch.zeros, "zeros")
    like = f"ctx.{RESULTS}[{place}]"
    if not isinstance(tangent.layout, Subclass):
        result = writer.name("result")
        writer.line(f"{result} = {like}")
        writer.line(
            f"{name} = {zeros}({result}.shape, dtype={result}.dtype, device={result}.device)"
        )
        return
    size = writer.name("size")
    writer.line(f"{size} = {like}.shape")
    made = []
    for part in parts:
        match part:
            case Zero(sizes, dtype, device):
                kind = writer.bind(dtype, str(dtype).removeprefix("torch."))
                where = writer.bind(device, identifier(f"device_{device}"))
                shape = tuple_of(str(s).replace("size[", f"{size}[") for s in sizes)
                made.append(f"{zeros}({shape}, dtype={kind}, device={where})")
            case str():
                made.append(part.replace("size[", f"{size}["))
    writer.line(f"{name} = {subclasses.wrap(writer, tangent.layout, iter(made))}")


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
    # The sum of a result gives an expanded gradient: a helper here would be a frame of every step.
    dense = f"({name}.to_dense() if {name}.is_sparse else {name})"
    match tangent.format:
        case Strides(size, stride):
            empty = writer.bind(torch.empty_strided, "empty_strided")
            like = f"dtype={name}.dtype, device={name}.device"
            with writer.block(f"if {name}.stride() != {stride!r}:"):
                writer.line(f"{name} = {empty}({size!r}, {stride!r}, {like}).copy_{dense}")
        case Format(memory_format) if memory_format is torch.contiguous_format:
            with writer.block(f"if not {name}.is_contiguous():"):
                writer.line(f"{name} = {dense}.contiguous()")
        case Format(memory_format):
            bound = writer.bind(memory_format, str(memory_format).removeprefix("torch."))
            with writer.block(f"if not {name}.is_contiguous(memory_format={bound}):"):
                writer.line(f"{name} = {dense}.contiguous(memory_format={bound})")
        case None:
            pass
