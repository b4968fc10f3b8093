"""From what the caller passes to what the graph takes."""

from __future__ import annotations

import torch

from straightline.capture.contract import Contract, Role, SharedBase
from straightline.runtime import support
from straightline.runtime.writer import Writer


def emit_signature(writer: Writer, contract: Contract, function: str) -> str:
    """The function's header; lifted constants are globals and not passed."""
    passed = [a.name for a in contract.arguments if not a.lifted]
    return f"def {function}({'args' if contract.boxed else ', '.join(passed)}):"


def emit(writer: Writer, contract: Contract) -> None:
    """Unpack boxed arguments, check duplicates, make shared bases, assert what was promised."""
    passed = [a.name for a in contract.arguments if not a.lifted]
    if contract.boxed:
        if passed:
            writer.line(f"{', '.join(passed)}{',' if len(passed) == 1 else ''} = args")
        writer.line("args.clear()")
    for duplicate in contract.duplicates:
        dropped, kept = contract.arguments[duplicate.dropped], contract.arguments[duplicate.kept]
        refuse = writer.bind(support.not_a_duplicate, "not_a_duplicate")
        differ = f"if {dropped.name} is not {kept.name}:"
        with writer.duty("dedup_wrapper"), writer.block(differ):
            writer.line(f"raise {refuse}({dropped.source!r}, {kept.source!r})")
    for position, base in enumerate(contract.bases):
        with writer.duty("synthetic_base_wrapper"):
            _emit_base(writer, contract, base, contract.inputs[position].name)
    _emit_asserts(writer, contract)


def _emit_base(writer: Writer, contract: Contract, base: SharedBase, name: str) -> None:
    members = [contract.arguments[m].name for m in base.members]
    writer.line(f"{name} = {members[0]}._base")
    for member in members[1:]:
        with writer.block(f"if {name} is None:"):
            writer.line(f"{name} = {member}._base")
    empty = writer.bind(torch.empty, "empty")
    first = members[0]
    with writer.block(f"if {name} is None:"):
        writer.line(f"{name} = {empty}((0,), dtype={first}.dtype, device={first}.device)")
        writer.line(f"{name}.set_({first}.untyped_storage())")


def _emit_asserts(writer: Writer, contract: Contract) -> None:
    """Under torch's `debug_assert`: what the guards promised about gradients holds."""
    tensor = writer.bind(torch.Tensor, "Tensor") if contract.debug_requires_grad else ""
    for item, may_require in zip(contract.inputs, contract.debug_requires_grad, strict=False):
        with writer.duty("debug_assert_wrapper"):
            if may_require is None and item.role is not Role.TENSOR:
                with writer.block(f"if isinstance({item.name}, {tensor}):"):
                    writer.line(
                        f'raise AssertionError("expected non-Tensor for {item.name}, got Tensor")'
                    )
            elif may_require is False:
                with writer.block(f"if {item.name}.requires_grad:"):
                    writer.line(
                        "raise AssertionError("
                        f'"{item.name} requires grad, which the guards should have excluded")'
                    )


def emit_version_bumps(writer: Writer, contract: Contract) -> None:
    """Members whose base was made from the storage do not share its version: move it by hand."""
    for position, base in enumerate(contract.bases):
        names = [contract.arguments[m].name for m in base.mutated]
        shared = contract.inputs[position].name
        bump = writer.bind(torch.autograd.graph.increment_version, "increment_version")
        for name in names:
            no_base = f"if {name}._base is None and {name} is not {shared}:"
            with writer.duty("synthetic_base_wrapper"), writer.block(no_base):
                writer.line(f"{bump}({name})")
