"""What can be known of kernels: records of them, what runs as ATen, and whether they are right."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import straightline
from straightline.errors import CompilerBug, OptionError
from straightline.ir.text import parse
from straightline.lower.rules import RULES

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 8)
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.fc(x)
        return self.norm(h).relu()


def scaled(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return torch.tanh(y + 1)


# -- Records -------------------------------------------------------------------------------------


def test_a_kernel_is_recorded():
    f = straightline.compile(scaled)
    assert f.kernels == ()
    f(X)
    (kernel,) = f.kernels
    first = scaled.__code__.co_firstlineno
    assert kernel.name == "k0_tanh"
    assert kernel.lines == (f"{__file__}:{first + 1}", f"{__file__}:{first + 2}")
    assert kernel.ops == ("aten.mul.Tensor", "aten.add.Tensor", "aten.tanh.default")
    assert kernel.modules == ()
    assert kernel.bytes == 2 * 12 * 4
    assert kernel.flops == 3 * 12
    assert f.num_kernels == 1
    assert {kernel} == set(f.kernels)
    with pytest.raises(dataclasses.FrozenInstanceError):
        kernel.name = "another"


def test_its_texts():
    f = straightline.compile(scaled)
    f(X)
    (kernel,) = f.kernels
    assert kernel.ir.startswith("kernel k0_tanh\n")
    assert parse(kernel.ir) == kernel.kernel
    assert 'define i64 @"k0_tanh"(' in kernel.llvm
    assert "k0_tanh:" in kernel.assembly


def test_its_builtin_runs_alone():
    f = straightline.compile(scaled)
    f(X)
    (kernel,) = f.kernels
    assert kernel.tensors[-1] == "tanh"
    out = torch.empty_like(X)
    kernel.call(X, out)
    torch.testing.assert_close(out, scaled(X))


def test_sizes_that_vary_are_not_counted():
    f = straightline.compile(scaled, dynamic=True)
    f(X)
    (kernel,) = f.kernels
    assert (kernel.bytes, kernel.flops) == (None, None)
    assert kernel.lines


def test_what_is_read_several_times_is_counted_once():
    def spread(x: torch.Tensor) -> torch.Tensor:
        return x.expand(5, 4) + 1

    f = straightline.compile(spread)
    f(X[0])
    assert f.kernels[0].bytes == (4 + 20) * 4


def test_modules_and_all_directions():
    twin: Any = straightline.compile(Net())
    twin(X).sum().backward()
    assert twin.num_kernels == len(twin.kernels) >= 2
    assert {module for kernel in twin.kernels for module in kernel.modules} >= {"self.norm"}
    assert all(kernel.name in twin.source for kernel in twin.kernels)


def test_kernels_of_what_torch_compiled():
    f = torch.compile(scaled, backend="straightline")
    f(X)
    (kernel,) = straightline.kernels_of(f)
    assert kernel.name == "k0_tanh"
    with pytest.raises(OptionError, match="kernels_of takes something that was compiled"):
        straightline.kernels_of(scaled)
    other = torch.compile(lambda x: x + 1, backend="eager")
    with pytest.raises(OptionError, match="with the backend 'eager'"):
        straightline.kernels_of(other)


def test_without_kernels_there_are_none():
    f = straightline.compile(scaled)
    with straightline.backends.llvm.disabled():
        f(X)
        assert f.num_kernels == 0
        told = straightline.explain(f)
    assert told.startswith("0 kernels\n3 operations as ATen\n  mul.Tensor: switched off (")


def test_what_runs_is_explained():
    twin: Any = straightline.compile(Net())
    with torch.no_grad():
        twin(X)
    told = straightline.explain(twin)
    line = Net.forward.__code__.co_firstlineno + 1
    assert told.splitlines()[0] == "1 kernel"
    assert f"; self.norm; {twin.kernels[0].bytes:,} bytes;" in told
    assert f"  addmm: a matrix product (aten.addmm.default) (test_kernels.py:{line})" in told
    with straightline.backends.operations_disabled("relu"), torch.no_grad():
        twin(X)
        assert f"  relu: switched off (test_kernels.py:{line + 1})" in straightline.explain(twin)


# -- The option `check` --------------------------------------------------------------------------


def plant(monkeypatch: pytest.MonkeyPatch, name: str, factor: float) -> None:
    """The rule of an operation of one tensor gives something else from now on."""
    right = RULES[name]

    def wrong(builder: Any, x: Any, *args: Any) -> Any:
        return right(builder, RULES["aten.mul.Tensor"](builder, x, factor), *args)

    monkeypatch.setitem(RULES, name, wrong)


@pytest.mark.parametrize("dynamic", [False, True])
def test_right_kernels_pass(dynamic):
    def net(x: Any, w: Any, at: Any) -> Any:
        h = F.layer_norm(x * 2 + w, (4,)).relu()
        parts = torch.softmax(h, -1).split(2, 1)
        return (
            parts[0].sum(0) + h.t()[at].sum(1)[:2],
            h.argmax(1),
            torch.var_mean(h, 0)[0],
            x.half() * 3,
        )

    w = torch.ones(4, requires_grad=True)
    f = straightline.compile(net, check=True, dynamic=dynamic)
    at = torch.tensor([1, 0])
    out = f(X, w, at)
    assert f.source.count("    check_k") == f.num_kernels >= 2
    out[0].sum().backward()
    assert f.source.count("    check_k") == f.num_kernels
    for ours, eager in zip(out, net(X, w, at), strict=True):
        torch.testing.assert_close(ours, eager)


def test_a_wrong_kernel_is_found(monkeypatch):
    plant(monkeypatch, "aten.sin.default", 1.01)

    def wave(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return y * 2, y.sin()

    unchecked = straightline.compile(wave)(X)
    assert not torch.allclose(unchecked[1], wave(X)[1])
    torch._dynamo.reset()
    with pytest.raises(CompilerBug) as caught:
        straightline.compile(wave, check=True)(X)
    line = wave.__code__.co_firstlineno + 2
    told = str(caught.value)
    assert "gives another result of sin than ATen: the largest difference is 0.0" in told
    assert caught.value.where == f"{__file__}:{line}"
    assert "the kernel does add.Tensor, mul.Tensor, sin," in told


def test_a_wrong_kernel_of_a_backward_is_found(monkeypatch):
    plant(monkeypatch, "aten.cos.default", 1.01)

    def wave(x: torch.Tensor) -> torch.Tensor:
        return x.sin().sum()

    x = X.clone().requires_grad_()
    out = straightline.compile(wave, check=True)(x)
    with pytest.raises(CompilerBug, match=r"another result of mul\.Tensor than ATen"):
        out.backward()


def test_integers_are_compared_exactly(monkeypatch):
    plant(monkeypatch, "aten.neg.default", 1)
    right = RULES["aten.neg.default"]

    def wrong(builder: Any, x: Any) -> Any:
        return RULES["aten.add.Tensor"](builder, right(builder, x), 1)

    monkeypatch.setitem(RULES, "aten.neg.default", wrong)
    with pytest.raises(CompilerBug, match=r"difference is 1, at \[0\], where it gives -99 and"):
        straightline.compile(lambda x: -x, check=True)(torch.full((3,), 100))


def test_what_cancels_out_is_rounding():
    def loss(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (4,)).sum()

    x = X.clone().requires_grad_()
    straightline.compile(loss, check=True)(x).backward()
    assert x.grad is not None
    assert x.grad.abs().max() < 1e-4


def test_no_number_is_told_from_another():
    def edges(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.log(), 1 / x, x.sqrt()

    x = torch.tensor([-1.0, 0.0, -0.0, float("inf"), float("nan"), 2.0])
    straightline.compile(edges, check=True)(x)
    empty = straightline.compile(edges, check=True)(torch.empty(0))
    assert [part.shape for part in empty] == [(0,)] * 3


def test_random_numbers_are_not_compared():
    def dropped(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x * 2, 0.5)

    straightline.compile(dropped, check=True)(X)


def test_the_environment_turns_it_on(monkeypatch):
    monkeypatch.setenv("STRAIGHTLINE_CHECK", "1")
    f = straightline.compile(scaled)
    f(X)
    assert "check_k0_tanh" in f.source


def test_a_checked_function_can_be_dumped(tmp_path):
    straightline.compile(scaled, check=True, dump=str(tmp_path))(X)
    (file,) = tmp_path.glob("*.py")
    assert "check_k0_tanh = not_compared\n" in file.read_text()
