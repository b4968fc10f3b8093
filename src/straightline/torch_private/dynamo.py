"""What Dynamo says about a graph it captured."""

from __future__ import annotations

import contextlib
import itertools
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import fx
from torch._C import _DisableAutocast
from torch._C._dynamo.eval_frame import reset_code
from torch._dynamo.callback import CallbackTrigger, callback_handler
from torch._dynamo.convert_frame import compile_lock
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._dynamo.utils import GmWrapper, counters, flatten_graph_inputs
from torch._guards import CompileContext, TracingContext, compile_context, tracing
from torch.compiler import _compile_session_context
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import keystr, tree_leaves_with_path

from straightline.torch_private import owners

COMPILE_LOCK = compile_lock
"""Held by Dynamo, by its thread as often as it likes, for as long as it compiles a frame. Whoever
traces must hold it, for tracing changes what all threads see, and before any lock of its own."""
RestartAnalysis = TensorifyScalarRestartAnalysis
flatten_inputs = flatten_graph_inputs
_unnamed = itertools.count()


def function_name() -> str:
    """The name of the user's function that is being compiled: `Net` for `Net.forward`."""
    traced = code()
    if traced is None:
        return "graph"
    qualified = owners.called_name() if owners.is_inline(traced) else traced.co_qualname
    parts = [p for p in (qualified or "function").split(".") if p != "<locals>"]
    name = parts[-1]
    if name in ("forward", "__call__", "_call_impl", "_wrapped_call_impl") and len(parts) > 1:
        name = parts[-2]
    return "function" if name == "<lambda>" else name.strip("<>")


def code() -> types.CodeType | None:
    """The user's code that is being compiled, where that is known."""
    context = TracingContext.try_get()
    return context.traced_code[0] if context is not None and context.traced_code else None


def forget(codes: Iterable[types.CodeType]) -> None:
    """Have Dynamo compile these anew when they are called next."""
    with COMPILE_LOCK:
        for each in dict.fromkeys(codes):
            reset_code(each)


def compile_id() -> str:
    """Dynamo's number for this compilation, `0/0`."""
    current = CompileContext.current_compile_id()
    return str(current) if current is not None else f"-/{next(_unnamed)}"


def sources(gm: Any, count: int) -> list[str]:
    """How the user's program reaches each of the graph's `count` inputs, those in lists too."""
    if isinstance(gm, GmWrapper):
        nested = gm.unflatten_fn(list(range(count)))
        found = [""] * count
        for source, part in zip(_sources(gm.gm), nested, strict=True):
            for path, position in tree_leaves_with_path(part):
                found[position] = source + keystr(path)
        return found
    return _sources(gm)


def _sources(gm: fx.GraphModule) -> list[str]:
    found = []
    for node in gm.graph.find_nodes(op="placeholder"):
        source = getattr(node, "_dynamo_source", None)
        found.append(source.name if source is not None else str(node.target))
    return found


def takes_boxed_arguments(gm: object) -> bool:
    """The caller hands over its arguments as one list, to be emptied."""
    return isinstance(gm, GmWrapper)


def lifted_names(gm: Any) -> list[str]:
    """Names of the tensors that the captured module holds itself."""
    gm = gm.gm if isinstance(gm, GmWrapper) else gm
    parameters = [n for n, _ in gm.named_parameters(remove_duplicate=False)]
    return parameters + [n for n, _ in gm.named_buffers(remove_duplicate=False)]


def count_compilation() -> None:
    """Dynamo's own count of graphs that went through AOTAutograd."""
    counters["aot_autograd"]["total"] += 1
    counters["aot_autograd"]["ok"] += 1


def report_strides(forward: fx.GraphModule) -> None:
    """Tell who splits a graph into several what the strides of this part's results are."""
    context = TracingContext.try_get()
    if context is None or context.output_strides is None:
        return
    (output,) = forward.graph.find_nodes(op="output")
    for result in output.args[0]:
        value = result.meta.get("val") if isinstance(result, fx.Node) else None
        strided = isinstance(value, torch.Tensor) and value.layout is torch.strided
        context.output_strides.append(tuple(value.stride()) if strided else None)  # type: ignore[union-attr]


@contextlib.contextmanager
def compiling_backward(
    tracing_context: TracingContext | None, context: CompileContext | None
) -> Iterator[None]:
    """The state in which a backward is compiled after its forward ran."""
    with (
        tracing(tracing_context),
        compile_context(context),
        _DisableAutocast(),
        callback_handler.install_callbacks(
            CallbackTrigger.LAZY_BACKWARD, str(CompileContext.current_compile_id())
        ),
    ):
        yield


@contextlib.contextmanager
def tracing_backward() -> Iterator[None]:
    """What Dynamo puts around a compilation, for what is traced outside of one: one trace at a time
    in the process, of which no mode of the user's sees anything, and which does not look like
    symbolic tracing by the user to what other threads call meanwhile.
    """
    with COMPILE_LOCK, _disable_current_modes(), _compile_session_context():
        yield
