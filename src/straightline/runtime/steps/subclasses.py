"""Wrapper subclasses: taken apart on the way in, put together on the way out."""

from __future__ import annotations

from collections.abc import Iterator

from straightline.capture.contract import Input, Layout, Opaque, Plain, Subclass
from straightline.capture.origins import identifier
from straightline.runtime import support
from straightline.runtime.writer import Writer, attribute, tuple_of


def unwrap(writer: Writer, item: Input, variable: str, source: str) -> list[str]:
    """Flat expressions for one input, after a check that it is of the type it was compiled for."""
    if item.waits:
        writer.line(f"{variable} = {variable}.trigger_wait()")
    if not isinstance(item.layout, Subclass):
        return [variable]
    if item.frozen:
        return ["None"]
    expected = writer.bind(item.layout.type, identifier(item.layout.type.__name__))
    with writer.duty("subclass_wrapper"):
        refuse = writer.bind(support.wrong_type, "wrong_type")
        with writer.block(f"if type({variable}) is not {expected}:"):
            writer.line(f"raise {refuse}({source!r}, {variable}, {expected})")
        return members(writer, item.layout, variable)


def members(writer: Writer, layout: Subclass, variable: str) -> list[str]:
    """Flat expressions for the parts of `variable`; sizes not known before follow the members."""
    result: list[str] = []
    for name, inner in layout.members:
        local = writer.name(identifier(f"{variable}_{name}"))
        writer.line(f"{local} = {attribute(variable, name)}")
        if isinstance(inner, Subclass):
            result += members(writer, inner, local)
        else:
            result.append(local)
    return result + symbols(layout, variable)


def symbols(layout: Subclass, variable: str) -> list[str]:
    """Expressions for the sizes and strides of `variable` that are known at run time only."""
    sizes = [f"{variable}.size({i})" for i, v in enumerate(layout.size) if v is None]
    strides = [f"{variable}.stride({i})" for i, v in enumerate(layout.stride) if v is None]
    return sizes + strides


def wrap(writer: Writer, layout: Layout, flat: Iterator[str]) -> str:
    """The expression of one value of this layout, made of the next flat expressions."""
    match layout:
        case Plain() | Opaque():
            return next(flat)
        case Subclass():
            parts = [f"{name!r}: {wrap(writer, inner, flat)}" for name, inner in layout.members]
            size = tuple_of([next(flat) if v is None else repr(v) for v in layout.size])
            stride = tuple_of([next(flat) if v is None else repr(v) for v in layout.stride])
            cls = writer.bind(layout.type, identifier(layout.type.__name__))
            context = writer.literal(layout.context, identifier(f"{layout.type.__name__}_context"))
            return (
                f"{cls}.__tensor_unflatten__({{{', '.join(parts)}}}, {context}, {size}, {stride})"
            )


def wrap_named(
    writer: Writer,
    layout: Layout,
    flat: Iterator[str],
    wanted: str,
    *,
    duty: str = "subclass_wrapper",
) -> str:
    """As `wrap`; a subclass is bound to a name of its own, so that it is made once."""
    expression = wrap(writer, layout, flat)
    if not isinstance(layout, Subclass):
        return expression
    name = writer.name(wanted)
    with writer.duty(duty):
        writer.line(f"{name} = {expression}")
    return name
