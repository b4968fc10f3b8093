"""What a program does at its first call only."""

from __future__ import annotations

from straightline.capture.contract import Contract
from straightline.runtime import firstcall
from straightline.runtime.writer import Writer


def emit_check(writer: Writer, contract: Contract, function: str) -> None:
    """Custom operations must not alias their inputs: looked at once, by running under a mode."""
    if not contract.first_call.check_custom_ops:
        return
    pending = writer.bind([True], "unchecked")
    checked = writer.bind(firstcall.checked, "call_checked")
    passed = [a.name for a in contract.arguments if not a.lifted]
    call = "args" if contract.boxed else ", ".join(passed)
    with writer.duty("runtime_wrapper_orchestration"), writer.block(f"if {pending}:"):
        writer.line(f"{pending}.clear()")
        writer.line(f"return {', '.join(filter(None, [f'{checked}({function}', call]))})")
