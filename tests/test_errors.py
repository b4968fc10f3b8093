"""What happens when something is wrong: a clear error, the user's own error, or a fall-back said
once.
"""

from __future__ import annotations

import contextlib
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from scenario import BACKEND, Compile, compiled, same

ours = pytest.mark.skipif(BACKEND != "straightline", reason="about straightline's own interface")


def double(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin()


def state() -> tuple[object, ...]:
    """What a failure may not leave changed."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch._C._functorch.peek_interpreter_stack(),
        torch._C._len_torch_dispatch_stack(),
        torch._C._len_torch_function_stack(),
        torch._guards.TracingContext.try_get(),
        torch._C._autograd._saved_tensors_hooks_is_enabled(),
        torch._C._autograd._top_saved_tensors_default_hooks(True),
    )


@contextlib.contextmanager
def state_kept() -> Iterator[None]:
    before = state()
    yield
    assert state() == before


# What is asked for is wrong


@ours
@pytest.mark.parametrize(
    "target", [3, "text", None, [double]], ids=["number", "text", "None", "list"]
)
def test_not_callable(target: Any) -> None:
    import straightline

    if target is None:
        assert callable(straightline.compile(target))
        return
    with pytest.raises(straightline.errors.OptionError) as caught:
        straightline.compile(target)
    assert type(target).__name__ in str(caught.value)
    assert "what to do" in str(caught.value)


@ours
def test_unknown_option_of_our_own_compile() -> None:
    """At once, with the nearest name and the list."""
    import straightline

    with pytest.raises(straightline.errors.OptionError) as caught:
        straightline.compile(double, double_bakward="save")
    said = str(caught.value)
    assert "double_bakward" in said
    assert "did you mean 'double_backward'" in said
    assert "fallback" in said


@ours
def test_unknown_option_through_torch() -> None:
    f = torch.compile(double, backend="straightline", options={"dupm": "folder"})
    with state_kept(), pytest.raises(Exception, match="did you mean 'dump'"):
        f(torch.ones(2))


@ours
@pytest.mark.parametrize("mode", ["max-autotune", "max-autotune-no-cudagraphs"])
def test_refused_mode_through_torch(mode: str) -> None:
    f = torch.compile(double, backend="straightline", mode=mode)
    with pytest.raises(Exception, match=mode):
        f(torch.ones(2))


@ours
def test_accepted_mode_through_torch() -> None:
    f = torch.compile(double, backend="straightline", mode="reduce-overhead")
    torch.testing.assert_close(f(torch.ones(2)), double(torch.ones(2)))


# A torch nobody has tested


@ours
@pytest.mark.fallback
def test_unsupported_torch_falls_back_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from straightline.report import fallbacks
    from straightline.torch_private import gate

    odd = gate.GateReport("2.99.0", ("torch.somewhere.name is missing",))
    monkeypatch.setattr(gate, "check", lambda: odd)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        x = torch.randn(3, requires_grad=True)
        out = torch.compile(double, backend="straightline")(x)
        out.sum().backward()
        torch.compile(lambda x: x + 1, backend="straightline")(x)
    torch.testing.assert_close(out, double(x))
    torch.testing.assert_close(x.grad, 2 * (2 * x.detach()).cos())
    said = [str(w.message) for w in seen if w.category is fallbacks.StraightlineFallbackWarning]
    assert len(said) == 1
    assert "torch.somewhere.name is missing" in said[0]
    assert list(fallbacks.counts().values()) == [2]


@ours
@pytest.mark.fallback
def test_unsupported_torch_can_be_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from straightline.torch_private import gate

    odd = gate.GateReport("2.99.0", ("torch.somewhere.name is missing",))
    monkeypatch.setattr(gate, "check", lambda: odd)
    f = torch.compile(double, backend="straightline", options={"fallback": "error"})
    with state_kept(), pytest.raises(Exception, match=r"torch\.somewhere\.name is missing"):
        f(torch.ones(2))


# Compiling inside of a compiled function


def test_calling_a_compiled_function_in_a_compiled_function() -> None:
    def scenario(compile: Compile) -> Any:
        inner = compile(double)
        x = torch.randn(3, requires_grad=True)
        out = compile(lambda x: inner(x) + inner(x * 2))(x)
        out.sum().backward()
        return out, x.grad

    same(scenario)


def test_compiling_what_is_compiled() -> None:
    def scenario(compile: Compile) -> Any:
        return compile(compile(double))(torch.randn(3))

    same(scenario)


@ours
def test_our_compile_in_our_compile() -> None:
    import straightline

    inner = straightline.compile(double)
    outer = straightline.compile(lambda x: inner(x) + 1)
    x = torch.randn(3)
    torch.testing.assert_close(outer(x), double(x) + 1)
    twice = straightline.compile(straightline.compile(double))
    torch.testing.assert_close(twice(x), double(x))


@ours
@pytest.mark.parametrize("how", ["straightline", "torch"])
def test_compiling_while_a_compiled_function_runs(how: str) -> None:
    """`compile` called by the function that is being compiled: right, or refused in words."""
    import straightline

    def outer(x: torch.Tensor) -> torch.Tensor:
        if how == "straightline":
            return straightline.compile(double)(x) + 1  # type: ignore[no-any-return]
        return torch.compile(double, backend="straightline")(x) + 1  # type: ignore[no-any-return]

    x = torch.randn(3)
    with state_kept():
        torch.testing.assert_close(compiled(outer, fullgraph=False)(x), double(x) + 1)


def test_compiling_inside_of_an_op() -> None:
    """A custom op that compiles when it runs, which is while compiled code runs."""

    @torch.library.custom_op("straightline_tests::compiles", mutates_args=())
    def compiles(x: torch.Tensor) -> torch.Tensor:
        return compiled(double)(x)  # type: ignore[no-any-return]

    compiles.register_fake(torch.empty_like)

    def scenario(compile: Compile) -> Any:
        f = compile(lambda x: compiles(x) * 3)
        return [f(torch.randn(3)) for _ in range(2)]

    same(scenario)


# Tensors of other kinds


def test_another_device_than_seen() -> None:
    """A program for each device; the second call is not given the first one's."""

    def scenario(compile: Compile) -> Any:
        f = compile(lambda x: (x * 2 + torch.ones(3, device=x.device)).sin())
        outs = [f(torch.ones(3, device=d)) for d in ("cpu", "meta", "cpu")]
        return [(o.device, o.shape, o.dtype) for o in outs], outs[0], outs[2]

    same(scenario)


def test_devices_that_do_not_go_together() -> None:
    """As in eager: torch's own error, which names both."""

    def scenario(compile: Compile) -> Any:
        with state_kept(), pytest.raises(Exception, match="meta") as caught:
            compile(lambda x, y: x + y)(torch.ones(3), torch.ones(3, device="meta"))
        said = str(caught.value)
        f = compile(lambda x: x + 1)
        return "cpu" in said and "meta" in said, f(torch.ones(3))

    same(scenario)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_meta_tensors(grad: bool) -> None:
    def scenario(compile: Compile) -> Any:
        x = torch.randn(3, 4, device="meta", requires_grad=grad)
        out = compile(lambda x: (x @ x.t()).relu())(x)
        if grad:
            out.sum().backward()
        gradient = None if x.grad is None else (x.grad.shape, x.grad.device)
        return out.shape, out.stride(), out.device, out.requires_grad, gradient

    same(scenario)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_complex_tensors(grad: bool) -> None:
    def scenario(compile: Compile) -> Any:
        x = torch.randn(3, 4, dtype=torch.complex64, requires_grad=grad)
        f = compile(lambda x: ((x @ x.mH).exp() * 1j, x.conj(), x.real, torch.fft.fft(x)))
        outs = f(x)
        if grad:
            sum(o.abs().sum() for o in outs).backward()
        return [o.resolve_conj() for o in outs], [o.is_conj() for o in outs], x.grad

    same(scenario, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_conjugate_and_negative_views_in(grad: bool) -> None:
    def scenario(compile: Compile) -> Any:
        f = compile(lambda a, b: (a * 2, b + 1))
        a = torch.randn(3, dtype=torch.complex64, requires_grad=grad)
        b = torch.randn(3, dtype=torch.complex64)
        outs = f(a.conj(), torch._neg_view(b.real))
        if grad:
            outs[0].abs().sum().backward()
        return [o.resolve_conj().resolve_neg() for o in outs], a.grad

    same(scenario)


@contextlib.contextmanager
def said_at_most_once() -> Iterator[None]:
    """Each reason to fall back is told in one warning, however many graphs it meets."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
    if BACKEND != "straightline":
        return
    from straightline.report import fallbacks

    said = [str(w.message) for w in seen if w.category is fallbacks.StraightlineFallbackWarning]
    assert len(said) == len(set(said)) == len(fallbacks.counts())


def other_kinds() -> dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]]:
    def sparse() -> torch.Tensor:
        return torch.eye(3).to_sparse()

    def quantised() -> torch.Tensor:
        return torch.quantize_per_tensor(torch.randn(3, 4), 0.1, 0, torch.quint8)

    def mkldnn() -> torch.Tensor:
        return torch.randn(3, 4).to_mkldnn()

    return {
        "sparse in": (lambda s, x: torch.sparse.mm(s, x) * 2, lambda: (sparse(), torch.ones(3, 2))),
        "sparse out": (lambda x: (x * 2).to_sparse(), lambda: (torch.eye(3),)),
        "sparse inside": (lambda x: (x * 2).to_sparse().to_dense() + 1, lambda: (torch.eye(3),)),
        "csr in": (
            lambda s, x: (s @ x) + 1,
            lambda: (torch.eye(3).to_sparse_csr(), torch.ones(3, 2)),
        ),
        "quantised in": (lambda q: q.dequantize() * 2, lambda: (quantised(),)),
        "quantised inside": (
            lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8).dequantize() + 1,
            lambda: (torch.ones(3),),
        ),
        "mkldnn in": (lambda m: m.to_dense() * 2, lambda: (mkldnn(),)),
        "strings and numbers": (
            lambda x, n, s: x * n if s == "times" else x + n,
            lambda: (torch.ones(3), 2.5, "times"),
        ),
    }


@pytest.mark.fallback
@pytest.mark.parametrize("name", list(other_kinds()))
def test_other_kinds_of_tensors(name: str) -> None:
    """Right, whoever runs it; where torch's layer does, it is said once."""
    fn, make = other_kinds()[name]
    torch.manual_seed(0)
    args = make()
    want = fn(*args)
    with state_kept(), said_at_most_once():
        f = compiled(fn, fullgraph=False)
        got = [f(*args) for _ in range(2)]
        torch._dynamo.reset()
        got.append(compiled(fn, fullgraph=False)(*args))
    for out in got:
        assert out.layout == want.layout
        torch.testing.assert_close(out.to_dense() if out.is_sparse else out, want.to_dense())


@ours
@pytest.mark.fallback
def test_torchs_message_is_no_part_of_the_reason(recwarn: pytest.WarningsRecorder) -> None:
    """Else what is counted grows with each graph, and each graph warns."""
    from straightline.report import fallbacks

    def untraceable(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        return y.mul_(2)  # backward needs the old value, and torch's message names its size

    for size in (2, 3):
        torch._dynamo.reset()
        x = torch.ones(size, requires_grad=True)
        torch.compile(untraceable, backend="straightline", dynamic=False)(x)
    ((reason, count),) = fallbacks.counts().items()
    assert count == 2
    (said,) = (w for w in recwarn if w.category is fallbacks.StraightlineFallbackWarning)
    head, text = str(said.message).splitlines()[0].split(f": {reason}: ")
    assert head == f"straightline falls back to {fallbacks.AS_CAPTURED}"
    assert text
    assert text not in reason
    assert fallbacks.counts_by_way() == {(reason, fallbacks.AS_CAPTURED): 2}


# The user's own errors


class Unlucky(Exception):
    """Raised by the user's op, at run time only."""


@pytest.fixture(scope="module")
def unlucky() -> Any:
    """An op that raises where any element of its input is over 10, in forward and in backward."""

    @torch.library.custom_op("straightline_tests::unlucky", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        if (x > 10).any():
            raise Unlucky("over ten")
        return x.clone()

    op.register_fake(torch.empty_like)
    op.register_autograd(lambda ctx, g: op(g))
    return op


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_users_exception_surfaces_as_itself(unlucky: Any, grad: bool) -> None:
    def careful(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return unlucky(y) + 1  # type: ignore[no-any-return]

    f = compiled(careful)
    fine, bad = torch.ones(3, requires_grad=grad), torch.full((3,), 9.0, requires_grad=grad)
    f(fine)
    with state_kept(), pytest.raises(Unlucky, match="over ten") as caught:
        f(bad)
    if BACKEND == "straightline":
        shown = "".join(traceback.format_exception(caught.value))
        assert "<straightline:" in shown
        assert "test_errors.py:" in shown, "the generated line names the user's"
    torch.testing.assert_close(f(fine), fine * 2 + 1)


def test_users_exception_in_the_first_call(unlucky: Any) -> None:
    f = compiled(lambda x: unlucky(x) + 1)
    with state_kept(), pytest.raises(Unlucky):
        f(torch.full((3,), 11.0))
    torch.testing.assert_close(f(torch.ones(3)), torch.full((3,), 2.0))


def test_users_exception_in_backward(unlucky: Any) -> None:
    f = compiled(lambda x: unlucky(x) * 3)
    x = torch.ones(3, requires_grad=True)
    out = f(x)
    with state_kept(), pytest.raises(Unlucky) as caught:
        out.backward(torch.full((3,), 5.0))
    if BACKEND == "straightline":
        assert "<straightline:" in "".join(traceback.format_exception(caught.value))
    assert x.grad is None
    f(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 3.0))


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_errors_of_ops(grad: bool) -> None:
    """An index out of range is known at run time only; the op's own error comes through."""

    def scenario(compile: Compile) -> Any:
        f = compile(lambda table, i: table[i] * 2)
        table = torch.randn(3, 2, requires_grad=grad)
        good = f(table, torch.tensor([0, 2]))
        with state_kept(), pytest.raises((IndexError, RuntimeError)) as caught:
            f(table, torch.tensor([0, 7]))
        told = "out of bounds" in str(caught.value)  # which index it is, a kernel does not say
        return good, type(caught.value), told, f(table, torch.tensor([1, 1]))

    same(scenario)


def test_run_time_assertions() -> None:
    def scenario(compile: Compile) -> Any:
        def f(x: torch.Tensor) -> torch.Tensor:
            torch._assert_async((x > 0).all(), "not positive")
            return x.log()

        call = compile(f)
        good = call(torch.ones(3))
        with state_kept(), pytest.raises(RuntimeError, match="not positive"):
            call(-torch.ones(3))
        return good

    same(scenario)


def test_mutations_before_an_error_are_not_undone_twice(unlucky: Any) -> None:
    """After the error the input holds its old value or eager's, and the next call is right."""
    f = compiled(lambda x, y: (x.add_(1), unlucky(y) * x)[1])
    x = torch.zeros(3)
    f(x, torch.ones(3))
    with state_kept(), pytest.raises(Unlucky):
        f(x, torch.full((3,), 11.0))
    assert x[0].item() in (1.0, 2.0)
    x.fill_(5)
    torch.testing.assert_close(f(x, torch.ones(3)), torch.full((3,), 6.0))


# Interrupted while compiling


class Tripwire:
    """An op whose shape function raises at its nth call, which is while something traces."""

    def __init__(self) -> None:
        self.left = -1

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def tripwire() -> tuple[Tripwire, Any]:
    wire = Tripwire()

    @torch.library.custom_op("straightline_tests::tripwire", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def fake(x: torch.Tensor) -> torch.Tensor:
        wire.step()
        return torch.empty_like(x)

    op.register_fake(fake)
    op.register_autograd(lambda ctx, g: op(g))
    return wire, op


@pytest.mark.parametrize("nth", range(1, 6))
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_interrupted_while_tracing(tripwire: tuple[Tripwire, Any], grad: bool, nth: int) -> None:
    """Wherever in the stages it comes, the next call compiles and is right."""
    wire, op = tripwire

    def f(x: torch.Tensor) -> torch.Tensor:
        return op(x.sin()) + 1  # type: ignore[no-any-return]

    call = compiled(f)
    x = torch.randn(3, requires_grad=grad)
    wire.left = nth
    interrupted = False
    with state_kept():
        try:
            call(x)
        except KeyboardInterrupt:
            interrupted = True
    assert interrupted or nth > 1, "Dynamo calls the shape function at least once"
    wire.left = -1
    out = call(x)
    torch.testing.assert_close(out.detach(), x.detach().sin() * 2 + 1)
    if grad:
        out.sum().backward()
        torch.testing.assert_close(x.grad, x.detach().cos() * 2)


STAGES = [
    ("straightline.pipeline", "stages", "trace"),
    ("straightline.pipeline", "translate", "contract"),
    ("straightline.pipeline", "programs", "build_inference"),
    ("straightline.pipeline", "programs", "build_training"),
]


@ours
@pytest.mark.parametrize(
    ("module", "stage", "name"), STAGES, ids=[f"{s}.{n}" for _, s, n in STAGES]
)
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError], ids=lambda e: e.__name__)
def test_interrupted_in_a_stage_of_ours(
    monkeypatch: pytest.MonkeyPatch, module: str, stage: str, name: str, error: type[BaseException]
) -> None:
    import importlib

    owner = getattr(importlib.import_module(module), stage)

    def interrupt(*_: Any, **__: Any) -> Any:
        raise error

    call = compiled(double)
    x = torch.randn(3, requires_grad=name != "build_inference")
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, interrupt)
        with state_kept(), pytest.raises(BaseException) as caught:  # noqa: PT011
            call(x)
    assert error.__name__ in "".join(traceback.format_exception(caught.value))
    if error is MemoryError:
        torch._dynamo.reset()
    out = call(x)
    torch.testing.assert_close(out, double(x))
    if x.requires_grad:
        out.sum().backward()
        torch.testing.assert_close(x.grad, 2 * (2 * x.detach()).cos())


@ours
def test_interrupted_while_the_backward_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backward is compiled on its first use; the next use tries again."""
    from straightline.torch_private import dynamo

    call = compiled(double)
    x = torch.randn(3, requires_grad=True)
    out = call(x).sum()

    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(dynamo, "compiling_backward", interrupt)
        with state_kept(), pytest.raises(KeyboardInterrupt):
            out.backward(retain_graph=True)
    out.backward()
    torch.testing.assert_close(x.grad, 2 * (2 * x.detach()).cos())
