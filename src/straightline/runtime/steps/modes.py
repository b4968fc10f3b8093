"""Global state around the graph: set for the call, put back whatever happens."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from straightline.capture.contract import Contract
from straightline.runtime.writer import Writer
from straightline.torch_private import switches

# torch's name for what happens around the graph.
_DUTY = "runtime_wrapper_orchestration"


@contextlib.contextmanager
def without_autocast(writer: Writer, casts: bool) -> Iterator[None]:
    """A graph that holds its casts already must not be cast again."""
    if not casts:
        yield
        return
    disable = writer.bind(switches.DisableAutocast, "DisableAutocast")
    with writer.block(f"with {disable}():"):
        yield


def emit_under_autocast(writer: Writer, function: object) -> None:
    """Leave a call to `function(ctx, grads)` when autocast is on."""
    enabled = writer.bind(switches.is_autocast_enabled, "is_autocast_enabled")
    cast = writer.bind(function, "under_autocast")
    with writer.block(f"if {enabled}():"):
        writer.line(f"return {cast}(ctx, grads)")


@contextlib.contextmanager
def grad_mode(
    writer: Writer,
    now: bool,
    *,
    wanted: bool,
    needed: bool = True,
) -> Iterator[None]:
    """Grad mode is `wanted` inside and `now` again after, exceptions included.

    In inference mode, which Dynamo compiles like no-grad, it stays off.
    """
    if now == wanted or not needed:
        yield
        return
    switch = writer.bind(switches.set_grad_enabled, "set_grad_enabled")
    mode = f"not {in_inference_mode(writer)}" if wanted else wanted
    with writer.duty(_DUTY):
        writer.line(f"{switch}({mode})")
    with _tried(writer):
        yield
    with writer.duty(_DUTY), writer.block("finally:"):
        writer.line(f"{switch}({now})")


def in_inference_mode(writer: Writer) -> str:
    """The test for it: programs for grad mode switched off are called in inference mode too."""
    return writer.bind(switches.is_inference_mode_enabled, "is_inference_mode_enabled") + "()"


@contextlib.contextmanager
def _tried(writer: Writer) -> Iterator[None]:
    """A `try` around lines that do another job."""
    with contextlib.ExitStack() as stack:
        with writer.duty(_DUTY):
            stack.enter_context(writer.block("try:"))
        yield


@contextlib.contextmanager
def view_tracking(writer: Writer, *, needed: bool) -> Iterator[None]:
    """Views made inside can be replayed on another base."""
    if not needed:
        yield
        return
    enabled = writer.bind(switches.is_view_replay_enabled, "is_view_replay_enabled")
    switch = writer.bind(switches.set_view_replay_enabled, "set_view_replay_enabled")
    before = writer.name("view_replay")
    with writer.duty(_DUTY):
        writer.line(f"{before} = {enabled}()")
        writer.line(f"{switch}(True)")
    with _tried(writer):
        yield
    with writer.duty(_DUTY), writer.block("finally:"):
        writer.line(f"{switch}({before})")


@contextlib.contextmanager
def without_saved_tensor_hooks(writer: Writer, contract: Contract) -> Iterator[None]:
    """Saved-tensor hooks are part of the graphs, and must not run a second time."""
    if not contract.modes.hooks_inlined:
        yield
        return
    read = writer.bind(switches.saved_hooks_disabled_message, "saved_hooks_disabled_message")
    disable = writer.bind(switches.disable_saved_hooks, "disable_saved_hooks")
    enable = writer.bind(switches.enable_saved_hooks, "enable_saved_hooks")
    message = writer.bind(switches.HOOKS_INLINED, "HOOKS_INLINED")
    before = writer.name("hooks_disabled")
    with writer.duty(_DUTY):
        writer.line(f"{before} = {read}()")
        writer.line(f"{disable}({message}, False)")
    with _tried(writer):
        yield
    with writer.duty(_DUTY), writer.block("finally:"):
        with writer.block(f"if {before} is None:"):
            writer.line(f"{enable}()")
        with writer.block("else:"):
            writer.line(f"{disable}({before}, False)")


def emit_grad_after(writer: Writer, contract: Contract) -> None:
    """The user's function leaves grad mode changed."""
    if contract.modes.grad_after is not None:
        switch = writer.bind(switches.set_grad_enabled, "set_grad_enabled")
        with writer.duty(_DUTY):
            writer.line(f"{switch}({contract.modes.grad_after})")


def emit_prologue_range(writer: Writer, contract: Contract) -> None:
    """Under a profiler, the range that torch shows for what runs ahead of the graph.

    It is empty: whatever has to happen ahead of the graph stands in the function's own lines.
    """
    if not contract.profile:
        return
    profiler = writer.bind(switches.profiler, "profiler")
    record = writer.bind(switches.record_prologue, "record_prologue")
    with writer.duty(_DUTY), writer.block(f"if {profiler}._is_profiler_enabled:"):
        writer.line(f"{record}()")
