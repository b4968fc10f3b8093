"""What a steady call enters, exactly: our own Python frames, and none of torch's runtime layer.

The counts are the promise of the runtime layer and, unlike times, the same on every machine.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from scenario import BACKEND, compiled
from torch.testing._internal.two_tensor import TwoTensor

import straightline

PACKAGE = str(Path(straightline.__file__).parent)
RUNTIME_LAYER = str(Path(torch.__file__).parent / "_functorch")


def is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(("<straightline:", PACKAGE))


def frames(call: Callable[[], object]) -> Counter[CodeType]:
    """The code of every Python frame that `call` enters."""
    entered: Counter[CodeType] = Counter()

    def profile(frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            entered[frame.f_code] += 1

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)
    return entered


def runtime_layer(call: Callable[[], object]) -> set[CodeType]:
    """The code of torch's AOT autograd that `call` enters."""
    return {code for code in frames(call) if code.co_filename.startswith(RUNTIME_LAYER)}


def guards() -> set[CodeType]:
    """What Dynamo's own guards enter there: they look at the saved-tensor hooks in force."""
    f = torch.compile(lambda x: x + 1, backend="eager")
    x = torch.randn(3, requires_grad=True)
    f(x)
    return runtime_layer(lambda: f(x))


def check(call: Callable[[], object], ours: int) -> None:
    """A steady `call` enters `ours` frames of ours and none of torch's runtime layer."""
    for _ in range(3):
        call()
    names = sorted(c.co_qualname for c in frames(call).elements() if is_ours(c))
    assert len(names) == ours, names
    theirs = runtime_layer(call) - guards()
    assert not [code.co_qualname for code in theirs]


def test_the_counter_sees_generated_frames() -> None:
    scope: dict[str, Any] = {}
    text = "def outer():\n    return inner()\ndef inner():\n    return 1\n"
    exec(compile(text, "<straightline:a test>", "exec"), scope)
    entered = frames(scope["outer"])
    assert sum(n for code, n in entered.items() if is_ours(code)) == 2


def test_the_counter_sees_torchs_runtime_layer() -> None:
    f = torch.compile(lambda x: x * 2 + 1, backend="aot_eager")
    x = torch.randn(8)
    f(x)
    assert runtime_layer(lambda: f(x)) - guards()


def test_inference() -> None:
    f = compiled(lambda x: (x * 2 + 1).relu())
    x = torch.randn(8)
    check(lambda: f(x), ours=1)


def test_inference_of_a_module_without_grad() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    f = compiled(model)
    x = torch.randn(3, 4)

    def call() -> None:
        with torch.no_grad():
            f(x)

    check(call, ours=1)


def test_mutation_and_alias() -> None:
    def program(x):
        x.mul_(-1)
        return x.view(2, 4), x + 1

    f = compiled(program)
    x = torch.randn(8)
    check(lambda: f(x), ours=1)


def test_dynamic_shapes() -> None:
    f = compiled(lambda x: x.view(-1, 2) * x.shape[0], dynamic=True)
    f(torch.randn(6))
    x = torch.randn(8)
    check(lambda: f(x), ours=1)


def test_subclass_in_and_out() -> None:
    f = compiled(lambda x: x * 2 + 1)
    x = TwoTensor(torch.randn(8), torch.randn(8))
    check(lambda: f(x), ours=1)


TRAINING = {
    "plain": lambda x, w: x * w + 1,
    "reductions": lambda x, w: (x * w).softmax(0).sum() * w,
    "no_saved_tensors": lambda x, w: x + w,
    "several_outputs": lambda x, w: (x * w, w.sin(), w.view(2, 4)),
    "dropout": lambda x, w: torch.nn.functional.dropout(x * w),
    "detached_output": lambda x, w: (x * w, w.detach() * 2),
}


@pytest.mark.parametrize("name", TRAINING)
def test_training(name: str) -> None:
    f = compiled(TRAINING[name])
    x, w = torch.randn(8), torch.randn(8, requires_grad=True)
    check(lambda: f(x, w), ours=2)

    out = f(x, w)
    out = out[0] if isinstance(out, tuple) else out
    tangent = torch.randn_like(out)
    check(lambda: torch.autograd.grad(out, w, tangent, retain_graph=True), ours=2)
    # And as people call it: forward, then backward into .grad.
    check(lambda: (lambda o: o[0] if isinstance(o, tuple) else o)(f(x, w)).backward(tangent), 4)


def test_training_in_the_middle_of_a_graph() -> None:
    """Inputs that are results of earlier operations, as between two eager layers."""
    f = compiled(lambda h, w: (h * w).sin() + h)
    leaf, w = torch.randn(8, requires_grad=True), torch.randn(8, requires_grad=True)
    h = leaf * 1
    check(lambda: f(h, w), ours=2)
    check(lambda: f(h, w).sum().backward(retain_graph=True), ours=4)


def test_backward_under_autocast() -> None:
    """The function that backward is under autocast takes one frame more, and nothing to find it."""
    f = compiled(lambda x, w: (x @ w).sin())
    x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)

    def call() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            torch.autograd.grad(out, w, tangent, retain_graph=True)

    out = f(x, w)
    tangent = torch.randn_like(out)
    check(call, ours=3)
    entered = [code for code in frames(call) if is_ours(code)]
    assert all(code.co_filename.startswith("<straightline:") for code in entered)


def test_training_with_a_mutated_buffer() -> None:
    def program(x, w, running):
        running.mul_(0.9).add_(x.detach(), alpha=0.1)
        return (x * w + running).sum()

    f = compiled(program)
    x, w, running = torch.randn(8), torch.randn(8, requires_grad=True), torch.zeros(8)
    check(lambda: f(x, w, running), ours=2)
    check(lambda: f(x, w, running).backward(), ours=4)


def test_training_of_a_subclass() -> None:
    f = compiled(lambda x, w: x * w + 1)

    def pair() -> TwoTensor:
        return TwoTensor(torch.randn(8), torch.randn(8))

    x, w, tangent = pair(), pair().requires_grad_(), pair()
    check(lambda: f(x, w), ours=2)
    out = f(x, w)
    check(lambda: torch.autograd.grad(out, w, tangent, retain_graph=True), ours=2)


# No frame of ours is ever traced by Dynamo.


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[CodeType]]:
    """The code of every frame Dynamo starts to trace, by itself or inlined into another."""
    from torch._dynamo import convert_frame, symbolic_convert

    codes: list[CodeType] = []
    compile_frame = convert_frame._compile
    inline = symbolic_convert.InliningInstructionTranslator.__init__

    def tracing(code: CodeType, *args: Any, **kwargs: Any) -> Any:
        codes.append(code)
        return compile_frame(code, *args, **kwargs)

    def inlining(self: Any, parent: Any, code: CodeType, *args: Any, **kwargs: Any) -> Any:
        codes.append(code)
        return inline(self, parent, code, *args, **kwargs)

    monkeypatch.setattr(convert_frame, "_compile", tracing)
    monkeypatch.setattr(symbolic_convert.InliningInstructionTranslator, "__init__", inlining)
    yield codes
    assert codes, "Dynamo traced nothing, so the test has shown nothing"
    ours = [code.co_qualname for code in codes if is_ours(code)]
    assert not ours


@contextmanager
def _no_new_frames(traced: list[CodeType]) -> Iterator[None]:
    before = len(traced)
    yield
    assert not [code.co_qualname for code in traced[before:]]


def test_calls_and_backward_are_not_traced(traced: list[CodeType]) -> None:
    f = compiled(lambda x, w: (x * w).sin())
    x, w = torch.randn(8), torch.randn(8, requires_grad=True)
    out = f(x, w).sum()
    with _no_new_frames(traced):
        out.backward()
        f(x, w).sum().backward()


def _train_step(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean()
    torch._dynamo.graph_break()
    loss.backward()
    return loss.detach() * 2


def test_backward_inside_a_compiled_region(traced: list[CodeType]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    step = torch.compile(_train_step, backend=BACKEND)
    x = torch.randn(3, 4)
    step(model, x)
    step(model, x)
    with _no_new_frames(traced):
        step(model, x)


def test_create_graph_inside_a_compiled_region(traced: list[CodeType]) -> None:
    def penalty(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        out = (x * w).sin().sum()
        torch._dynamo.graph_break()
        (slope,) = torch.autograd.grad(out, w, create_graph=True)
        torch._dynamo.graph_break()
        slope.square().sum().backward()
        return slope.detach() + 1

    f = torch.compile(penalty, backend=BACKEND)
    x, w = torch.randn(8), torch.randn(8, requires_grad=True)
    f(x, w)
    f(x, w)
    with _no_new_frames(traced):
        f(x, w)


def test_a_compiled_function_called_from_a_compiled_region(traced: list[CodeType]) -> None:
    inner = compiled(lambda x, w: (x * w).sin())
    x, w = torch.randn(8), torch.randn(8, requires_grad=True)
    inner(x, w).sum().backward()

    def outer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = inner(x + 1, w)
        torch._dynamo.graph_break()
        y.sum().backward()
        return y.detach() + 1

    f = torch.compile(outer, backend=BACKEND)
    f(x, w)
    with _no_new_frames(traced):
        f(x, w)


def test_hooks_that_call_a_compiled_function_in_backward(traced: list[CodeType]) -> None:
    f = compiled(lambda x, w: (x * w).sin())
    x, w = torch.randn(8), torch.randn(8, requires_grad=True)
    hook = w.register_hook(lambda grad: f(grad, torch.ones(8)))
    f(x, w).sum().backward()
    f(x, w).sum().backward()
    with _no_new_frames(traced):
        f(x, w).sum().backward()
    hook.remove()
