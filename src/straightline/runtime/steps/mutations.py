"""The mutation epilogue: what the graph computed reaches the inputs it was meant for."""

from __future__ import annotations

from collections.abc import Sequence

from straightline.capture.contract import Contract, Mutation, Write
from straightline.runtime.steps import modes
from straightline.runtime.writer import Writer

_STREAM_ERROR = (
    "Mutations on inputs with user-specified streams are not yet supported. "
    "See: https://github.com/pytorch/pytorch/issues/172522"
)


def emit(writer: Writer, contract: Contract, values: Sequence[str]) -> None:
    """Write each new value (an expression per mutation) into its input."""
    for mutation, value in zip(contract.mutations, values, strict=True):
        with writer.duty("mutation_epilogue"):
            target = contract.inputs[mutation.input].name
            _write(writer, target, mutation, value, contract.modes.grad_enabled)


def _write(writer: Writer, target: str, mutation: Mutation, value: str, grad_enabled: bool) -> None:
    restride = f"{target}.as_strided_({value}.size(), {value}.stride(), {value}.storage_offset())"
    if mutation.grows:
        writer.line(f"{target}.resize_({value}.size())")
    match mutation.write:
        case Write.COPY:
            writer.line(f"{target}.copy_({value})")
        case Write.COPY_DETACHED:
            writer.line(f"{target}.detach().copy_({value})")
        case Write.RESTRIDE:
            writer.line(restride)
        case Write.RESTRIDE_COPY:
            writer.line(restride)
            writer.line(f"{target}.copy_({value})")
        case Write.RESTRIDE_COPY_DETACHED:
            writer.line(restride)
            writer.line(f"{target}.detach().copy_({value})")
        case Write.SET:
            with modes.grad_mode(writer, grad_enabled, wanted=False):
                writer.line(f"{target}.set_({value})")
        case Write.STREAM_ERROR:
            writer.line(f"raise RuntimeError({_STREAM_ERROR!r})")


def emit_restrided(writer: Writer, contract: Contract, values: Sequence[str]) -> None:
    """Geometry of arguments that were merged into a shared base; the graph returns it last."""
    for argument, value in zip(contract.restrided, values, strict=True):
        target = contract.arguments[argument].name
        with writer.duty("synthetic_base_wrapper"):
            writer.line(
                f"{target}.as_strided_({value}.size(), {value}.stride(), {value}.storage_offset())"
            )
