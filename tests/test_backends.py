"""The switches of what computes operations: what they turn, and what is compiled anew for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch.backends import python_native

import straightline
from straightline import backends, switches
from straightline.errors import OptionError

X = torch.linspace(-1, 1, 6).reshape(2, 3)


@pytest.fixture(autouse=True)
def all_on(monkeypatch):
    """Every test leaves the switches as it finds them.

    torch's testing tools, which other tests import, forbid to set its flags.
    """
    flags = torch.backends.flags_frozen.__globals__
    monkeypatch.setitem(flags, "__allow_nonbracketed_mutation_flag", True)
    yield
    assert backends.llvm.enabled
    assert not switches.NAMES
    assert not switches.KEYS


def net(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh((x * 2 + 1).relu())


def called(compiled: Any, function: Callable[..., Any] = net) -> str:
    """The lines of its newest program that compute, after a call."""
    torch.testing.assert_close(compiled(X), function(X))
    newest = compiled.source.rpartition("# straightline |")[2]
    lines = (line.strip().partition("  #")[0] for line in newest.splitlines())
    return " ".join(line.partition("(")[0].split(" = ")[-1] for line in lines if "(" in line)


def compilations() -> int:
    return int(counters["stats"]["unique_graphs"])


def test_what_there_is():
    assert backends.all_backends == ["llvm", "aten"]
    assert backends.available_backends == ["llvm", "aten"]
    assert backends.llvm.name == "llvm"
    assert backends.llvm.available
    assert backends.llvm.version is not None
    assert int(backends.llvm.version.split(".")[0]) >= 22
    assert (backends.aten.version, backends.aten.enabled) == (torch.__version__, True)
    assert repr(backends.llvm) == "Backend(llvm, available, enabled)"
    assert "available_backends" in dir(backends)
    with pytest.raises(AttributeError, match="'nothing'"):
        backends.nothing  # noqa: B018 - reading it is the test


def test_kernels_are_switched_off_and_on():
    f = straightline.compile(net)
    with_kernels = called(f)
    assert "k0_tanh" in with_kernels
    backends.llvm.enabled = False
    assert not backends.llvm.enabled
    assert backends.is_backend_disabled("llvm")
    assert repr(backends.llvm) == "Backend(llvm, available, disabled)"
    without = called(f)
    assert "aten_mul_Tensor aten_add_Tensor aten_relu aten_tanh" in without
    backends.llvm.enabled = True
    before = compilations()
    called(f)
    assert compilations() == before, "the first program is there still"


def test_the_context_manager_puts_back_what_was():
    with backends.llvm.disabled():
        assert not backends.llvm.enabled
        with backends.llvm.disabled():
            pass
        assert not backends.llvm.enabled
    assert backends.llvm.enabled


def test_torchs_switch_is_ours():
    torchs = python_native.straightline
    assert "straightline" in python_native.available_dsls
    assert str(torchs.version) == backends.llvm.version
    f = straightline.compile(net)
    assert "k0_tanh" in called(f)
    torchs.enabled = False
    assert not backends.llvm.enabled
    assert "aten_tanh" in called(f)
    torchs.enabled = True
    assert backends.llvm.enabled
    with backends.llvm.disabled():
        assert not torchs.enabled
    with torchs.disabled():
        other = straightline.compile(net, fusion="off")
        assert "aten_tanh" in called(other)
    assert "k0_" in called(other)


def test_an_operation_runs_as_aten():
    f = straightline.compile(net)
    assert "empty_strided k0_tanh return" in called(f)
    with backends.operations_disabled("relu"):
        assert backends.is_operation_disabled("relu")
        text = called(f)
        assert "k0_add aten_relu" in text
        assert "k1_tanh" in text
    assert "k0_tanh" in called(f)


@pytest.mark.parametrize("name", ["add", "add.Tensor", "aten.add.Tensor", "aten::add.Tensor"])
def test_operations_by_name(name):
    with backends.operations_disabled(name):
        assert "aten_add_Tensor" in called(straightline.compile(net))


def test_one_overload_of_several():
    with backends.operations_disabled("add.Scalar"):
        assert not backends.is_operation_disabled("add")
        assert "aten_add" not in called(straightline.compile(net))


def test_a_view_that_is_switched_off_is_an_operation():
    def turned(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).t() * 2

    f = straightline.compile(turned)
    assert "aten_t" not in called(f, turned)
    with backends.operations_disabled("t", "transpose", "permute"):
        assert "aten_" in called(f, turned)


def test_a_dispatch_key_runs_as_aten():
    f = straightline.compile(net)
    called(f)
    backends.disable_dispatch_keys("CPU")
    try:
        assert "k0_" not in called(f)
    finally:
        backends.enable_dispatch_keys("CPU")
    assert "k0_tanh" in called(f)


def test_what_a_switch_matters_to_is_compiled_anew_and_nothing_else():
    def other(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    f, g = straightline.compile(net), straightline.compile(other)
    called(f)
    called(g, other)
    before = compilations()
    with backends.operations_disabled("relu"):
        called(g, other)
        assert compilations() == before
        called(f)
        called(f)
        assert compilations() == before + 1
    called(g, other)
    assert compilations() == before + 1


def test_kernels_off_matters_only_where_there_is_something_for_them():
    def product(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(x).real

    f = straightline.compile(product)
    f(X)
    before = compilations()
    with backends.llvm.disabled():
        f(X)
    assert compilations() == before


def test_switches_may_be_turned_more_often_than_dynamo_recompiles():
    f = straightline.compile(net, fullgraph=True)
    for _ in range(torch._dynamo.config.recompile_limit + 2):
        with backends.operations_disabled("relu"):
            assert "aten_relu" in called(f)
        assert "aten_relu" not in called(f)


def test_a_backward_has_the_switches_of_its_forward():
    def loss(x: torch.Tensor) -> torch.Tensor:
        return x.tanh().sum()

    x = X.clone().requires_grad_()
    f = straightline.compile(loss)
    out = f(x)
    with backends.llvm.disabled():
        out.backward()
    backward = f.source.rpartition("# straightline | backward")[2]
    assert "k0_" in backward
    torch.testing.assert_close(x.grad, 1 - X.tanh().square())


def test_a_switch_that_was_turned_before_backward_was_compiled_counts_there():
    def loss(x: torch.Tensor) -> torch.Tensor:
        return x.tanh().sum()

    x = X.clone().requires_grad_()
    f = straightline.compile(loss)
    out = f(x)
    with backends.operations_disabled("tanh_backward"):
        out.backward()
        assert "aten_tanh_backward" in f.source
    f(x).backward()
    assert "aten_tanh_backward" not in f.source
    torch.testing.assert_close(x.grad, 2 * (1 - X.tanh().square()))


def test_operations_of_backends():
    kernels, all_of_them = map(backends.get_backend_operations, backends.all_backends)
    assert {"relu", "add.Tensor", "_softmax"} <= set(kernels)
    assert kernels == sorted(kernels)
    assert set(kernels) < set(all_of_them)
    assert "mm" in all_of_them


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: backends.disable_operations("rleu"), r"unknown operation 'rleu'; did.*'relu'"),
        (lambda: backends.enable_operations("rleu"), r"the operations are .*, relu, "),
        (lambda: backends.operations_disabled("x").__enter__(), "unknown operation 'x'"),
        (lambda: backends.disable_dispatch_keys("CUDA"), "the dispatch keys are CPU"),
        (lambda: backends.enable_dispatch_keys("CPUU"), "did you mean 'CPU'"),
        (lambda: backends.get_backend_operations("lvm"), "(?s)'llvm'.*backends are llvm, aten"),
        (lambda: backends.aten.disable(), "'aten' cannot be disabled"),
        (lambda: setattr(backends.aten, "enabled", False), "'aten' cannot be disabled"),
    ],
)
def test_what_is_not_known_is_an_error_that_lists_what_is(wrong, says):
    with pytest.raises(OptionError, match=says):
        wrong()


def test_frozen_flags_are_not_set():
    program = (
        "import torch, straightline\n"
        "torch.backends.disable_global_flags()\n"
        "straightline.backends.llvm.enabled = False\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "not allowed to set llvm backend flags" in done.stderr
