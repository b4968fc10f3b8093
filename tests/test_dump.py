"""The option `dump`: its files run by themselves and compute what eager does.

Each program is compiled and called in this process. Its files then run in a process of their own,
both as `python file.py` and called with the arguments that eager was called with here.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from straightline.report import dump
from straightline.runtime import standalone

_CALL = """
import runpy, sys, torch
file, given, result, grad = sys.argv[1:]
names = runpy.run_path(file)
arguments = torch.load(given, weights_only=False)
torch.manual_seed(3)
with torch.set_grad_enabled(grad == "True"):
    out = names["_entry"](*arguments)
gradients = []
ends = [o for o in out if o.requires_grad]
if grad == "True" and ends:
    torch.autograd.backward(ends, [torch.ones_like(o) for o in ends])
    gradients = [getattr(a, "grad", None) for a in arguments]
bases = [[o._base is a for a in arguments] for o in out]
detached = [o.detach() for o in out]
given = [a.detach() if isinstance(a, torch.Tensor) else a for a in arguments]
torch.save((detached, given, gradients, bases), result)
"""


def python(*arguments: object) -> str:
    """Run Python in a fresh process and return what it printed."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def called(file: Path, arguments: Any, *, grad: bool) -> Any:
    """(results, arguments, gradients, which result views which argument) of a dumped file."""
    given, result = file.with_suffix(".given"), file.with_suffix(".result")
    torch.save(arguments, given)
    python("-c", _CALL, file, given, result, grad)
    return torch.load(result, weights_only=False)


def expected(function: Callable[..., Any], arguments: Any, *, grad: bool) -> Any:
    """The same of the user's function, run eagerly here."""
    torch.manual_seed(3)
    with torch.set_grad_enabled(grad):
        out = function(*arguments)
    gradients = []
    ends = [o for o in out if o.requires_grad]
    if grad and ends:
        torch.autograd.backward(ends, [torch.ones_like(o) for o in ends])
        gradients = [getattr(a, "grad", None) for a in arguments]
    bases = [[o._base is a for a in arguments] for o in out]
    values = [a.detach() if isinstance(a, torch.Tensor) else a for a in arguments]
    return [o.detach() for o in out], values, gradients, bases


def dumped(
    function: Callable[..., Any], arguments: Any, folder: Path, *, grad: bool, **keywords: Any
) -> dict[str, Path]:
    """Compile `function`, call it, and differentiate it; its files by direction."""
    compiled = torch.compile(
        function, backend="straightline", fullgraph=True, options={"dump": str(folder)}, **keywords
    )
    with torch.set_grad_enabled(grad):
        out = compiled(*arguments)
    ends = [o for o in out if o.requires_grad]
    if grad and ends:
        torch.autograd.backward(ends, [torch.ones_like(o) for o in ends])
    return {file.stem.rpartition("_")[2]: file for file in folder.glob("*.py")}


def check(
    function: Callable[..., Any],
    arguments: Any,
    folder: Path,
    *,
    grad: bool = False,
    other: Any = None,
) -> dict[str, str]:
    """Dump `function`, hold its files against eager; returns what each prints when it is run.

    `other` are further arguments to compare with. The graph must take its arguments in their order.
    """
    files = dumped(function, copy.deepcopy(arguments), folder, grad=grad)
    main = files["forward" if grad else "inference"]
    for each in filter(None, (arguments, other)):
        want = expected(function, copy.deepcopy(each), grad=grad)
        got = called(main, copy.deepcopy(each), grad=grad)
        for ours, eager in zip(got[:3], want[:3], strict=True):
            assert_same(ours, eager)
        assert got[3] == want[3]
    return {direction: python(file) for direction, file in files.items()}


def assert_same(got: Any, want: Any) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert type(a) is type(b)
        if isinstance(b, TwoTensor):
            assert_same([a.a, a.b], [b.a, b.b])
        else:
            torch.testing.assert_close(a, b)


def test_inference(tmp_path):
    def scaled(x, weight):
        return ((x @ weight * 2 + 1).relu(),)

    printed = check(scaled, [torch.randn(4, 3), torch.randn(3, 2)], tmp_path)
    assert list(printed) == ["inference"]
    assert "result 0: float32[4, 2]" in printed["inference"]


def test_training_in_both_directions(tmp_path):
    def loss(x, weight):
        return ((x @ weight).sigmoid().sum(),)

    weight = torch.randn(3, 2, requires_grad=True)
    printed = check(loss, [torch.randn(4, 3), weight], tmp_path, grad=True)
    assert set(printed) == {"forward", "backward"}
    for text in printed.values():
        assert "result 0: float32[]" in text
        assert "gradient of weight: float32[3, 2]" in text


def test_a_mutation_and_an_alias(tmp_path):
    def update(running, x):
        running.mul_(0.9).add_(x.mean(0))
        return x - running, x.t()

    printed = check(update, [torch.zeros(3), torch.randn(4, 3)], tmp_path)
    assert "running was written to: float32[3]" in printed["inference"]
    assert "x was written to" not in printed["inference"]


def test_training_with_a_mutation_and_an_alias(tmp_path):
    def update(running, x):
        running.mul_(0.9)
        return x * running, x.view(-1)

    x = torch.randn(4, 3, requires_grad=True)
    printed = check(update, [torch.ones(3), x], tmp_path, grad=True)
    assert "running was written to" in printed["forward"]
    assert "gradient of x" in printed["backward"]


def test_subclasses(tmp_path):
    def scaled(x, y):
        return (x.sin() * y,)

    x = TwoTensor(torch.randn(3), torch.randn(3))
    printed = check(scaled, [x, torch.randn(3)], tmp_path)
    assert "result 0: float32[3] TwoTensor" in printed["inference"]


def test_dynamic_shapes(tmp_path):
    def rows(x, y):
        return (x * x.shape[0] + y,)

    arguments = [torch.randn(5, 3), torch.randn(5, 3)]
    other = [torch.randn(7, 2), torch.randn(7, 2)]

    files = dumped(rows, copy.deepcopy(arguments), tmp_path, grad=False, dynamic=True)
    for each in (arguments, other):
        want = expected(rows, each, grad=False)
        # The sizes that vary are arguments of the graph too.
        given = [*each[0].shape, *each]
        assert_same(called(files["inference"], given, grad=False)[0], want[0])
    assert "result 0: float32[5, 3]" in python(files["inference"])


def test_random_numbers(tmp_path):
    def dropped(x):
        return (torch.nn.functional.dropout(x, 0.5) * 2,)

    printed = check(dropped, [torch.ones(64, requires_grad=True)], tmp_path, grad=True)
    assert printed["forward"] == python(next(tmp_path.glob("*_forward.py")))


def test_gradients_of_gradients(tmp_path):
    def cube(x):
        return ((x * x * x).sum(),)

    x = torch.tensor([2.0, 3.0], requires_grad=True)
    compiled = torch.compile(cube, backend="straightline", options={"dump": str(tmp_path)})
    (gradient,) = torch.autograd.grad(compiled(x)[0], x, create_graph=True)
    gradient.sum().backward()
    file = next(tmp_path.glob("*_second_order_backward.py"))
    forward = str(file).replace("second_order_backward", "forward")
    program = (
        "import runpy, torch\n"
        f"entry = runpy.run_path({forward!r})['_entry']\n"
        "x = torch.tensor([2.0, 3.0], requires_grad=True)\n"
        "g, = torch.autograd.grad(entry(x)[0], x, create_graph=True)\n"
        "h, = torch.autograd.grad(g.sum(), x)\n"
        "print(h.tolist())\n"
    )
    assert python("-c", program) == "[12.0, 18.0]\n"
    assert "gradient of order 2 of x" in python(file)


def test_gradients_under_autocast(tmp_path):
    """Each file finds the one that is for its callers with autocast on."""
    program = """
import torch

def run(entry):
    torch.manual_seed(0)
    x = torch.randn(4, 4, requires_grad=True)
    told = []
    for enabled in (False, True):
        out = entry(x)[0]
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            told += torch.autograd.grad(out, x, retain_graph=True)
            (first,) = torch.autograd.grad(out, x, create_graph=True)
        told += [first, *torch.autograd.grad(first.square().sum(), x)]
    return [gradient.tolist() for gradient in told]
"""
    scope: dict[str, Any] = {}
    exec(program, scope)

    def wave(x):
        return ((x @ x).sin().sum(),)

    compiled = torch.compile(wave, backend="straightline", options={"dump": str(tmp_path)})
    expected = scope["run"](compiled)
    assert expected[:3] != expected[3:]
    assert len(list(tmp_path.glob("*_under_autocast.py"))) == 2
    (forward,) = (f for f in tmp_path.glob("*_forward.py") if "order" not in f.name)
    end = f"import runpy\nprint(run(runpy.run_path({str(forward)!r})['_entry']))\n"
    assert python("-c", program + end) == f"{expected}\n"


def test_graphs_that_are_arguments(tmp_path):
    def choose(x):
        return (torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (x,)),)

    check(choose, [torch.ones(3)], tmp_path, other=[-torch.ones(3)])


def test_constants_are_saved_beside_the_file(tmp_path):
    table = torch.arange(6.0)

    class Lookup(torch.nn.Module):
        def forward(self, x):
            return (x + torch.tensor([1.5, float("inf")]) + table[:2],)

    x = torch.ones(2)
    files = dumped(Lookup(), [x], tmp_path, grad=False)
    (result,) = called(files["inference"], [x, table], grad=False)[0]
    assert torch.equal(result, Lookup()(x)[0])
    assert files["inference"].with_suffix(".pt").exists()


def test_integers_stay_in_the_range_that_was_seen(tmp_path):
    def picked(table, index):
        return (table[index],)

    printed = check(picked, [torch.randn(3, 2), torch.tensor([2, 0, 1, 2])], tmp_path)
    assert "result 0: float32[4, 2]" in printed["inference"]


def test_arguments_that_share_memory_still_do(tmp_path):
    def shift(a, b):
        a.add_(1)
        return (b * 2,)

    memory = torch.zeros(4)
    files = dumped(shift, [memory[:3], memory[1:]], tmp_path, grad=False)
    printed = python(files["inference"])
    assert "was written to" in printed
    text = files["inference"].read_text()
    assert "memory_0 = standalone.tensor((4,))" in text
    assert "memory_0.as_strided((3,), (1,), 1)" in text


def test_a_written_argument_that_requires_grad_is_no_leaf(tmp_path):
    def scale(y, x):
        y.mul_(x)
        return (y * 1,)

    leaf = torch.randn(3, requires_grad=True)
    files = dumped(scale, [leaf * 1, torch.randn(3)], tmp_path, grad=True)
    assert "leaf=False" in files["forward"].read_text()
    assert "y was written to" in python(files["forward"])


def test_programs_of_one_name_do_not_overwrite_each_other(tmp_path):
    def make(factor):
        def scaled(x):
            return (x * factor,)

        return scaled

    for factor in (2.0, 3.0):
        torch._dynamo.reset()
        dumped(make(factor), [torch.ones(2)], tmp_path, grad=False)
    texts = [file.read_text() for file in tmp_path.glob("*.py")]
    assert sorted(f for t in texts for f in (2.0, 3.0) if f", {f}:f32)" in t) == [2.0, 3.0]


def test_a_backward_that_was_not_generated_is_an_error_that_says_so(tmp_path):
    def double(x):
        return (x * 2,)

    compiled = torch.compile(double, backend="straightline", options={"dump": str(tmp_path)})
    compiled(torch.ones(2, requires_grad=True))
    (file,) = tmp_path.glob("*.py")
    assert "no gradients" in python(file)
    sibling = standalone.Sibling(str(file), "double_backward.py")
    with pytest.raises(standalone.NotDumped, match="double_backward was not generated"):
        sibling(None, [])


def test_an_object_that_cannot_be_written_down_is_an_error_where_it_is_used():
    scope = dump._Scope()
    source = dump._object(lambda: None, "hook", scope)
    assert scope.saved == {}
    missing = eval(source, {"standalone": standalone})
    assert "not dumped" in repr(missing)
    with pytest.raises(standalone.NotDumped, match="'hook' was the function"):
        missing()


def test_a_kernel_is_text_that_can_be_changed(tmp_path):
    def scaled(x):
        return (x.t() * 2 + 1,)

    files = dumped(scaled, [torch.ones(3, 2)], tmp_path, grad=False)
    text = files["inference"].read_text()
    assert "from straightline.kernels.standalone import load_kernel" in text
    assert ' = load_kernel(\n    """kernel k0_add\n' in text
    changed = text.replace("2.0:f32", "5.0:f32")
    assert changed != text
    files["inference"].write_text(changed)
    (result,) = called(files["inference"], [torch.ones(3, 2)], grad=False)[0]
    assert torch.equal(result, torch.full((2, 3), 6.0))


def test_a_kernel_of_another_shape_than_its_tensors(tmp_path):
    def scaled(x):
        return (x * 2 + 1,)

    check(scaled, [torch.randn(2, 3, 4)], tmp_path)
    assert 'tensors="""kernel ' in next(tmp_path.glob("*.py")).read_text()


def test_a_kernel_that_fails_says_what_and_where(tmp_path):
    def picked(x, at):
        return (x[at] * 2,)

    files = dumped(picked, [torch.ones(3, 2), torch.tensor([1, 2])], tmp_path, grad=False)
    program = (
        "import runpy, torch\n"
        f"entry = runpy.run_path({str(files['inference'])!r})['_entry']\n"
        "try:\n"
        "    entry(torch.ones(3, 2), torch.tensor([1, 7]))\n"
        "except IndexError as error:\n"
        "    print(error, *error.__notes__)\n"
    )
    line = picked.__code__.co_firstlineno + 1
    told = python("-c", program)
    assert "out of" in told
    assert f"raised by a kernel, for {__file__}:{line}: return (x[at] * 2,)" in told


def test_nothing_is_written_without_the_option(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.compile(lambda x: x + 1, backend="straightline")(torch.ones(2))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "source"),
    [
        (torch.float16, "torch.float16"),
        (torch.channels_last, "torch.channels_last"),
        (torch.device("cpu"), "torch.device('cpu')"),
        (float("inf"), "float('inf')"),
        (1 + 2j, "complex('(1+2j)')"),
        (torch.Size([2, 3]), "torch.Size([2, 3])"),
        ([True], "[True]"),
        (torch.ops.aten.mul.Tensor, "torch.ops.aten.mul.Tensor"),
        (torch.ops.higher_order.cond, "torch.ops.higher_order.cond"),
        (torch.empty, "torch.empty"),
        (TwoTensor, "TwoTensor"),
    ],
)
def test_an_object_is_written_as(value, source):
    assert dump._object(value, "TwoTensor", dump._Scope()) == source
