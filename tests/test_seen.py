"""What runs can be seen: in tracebacks, `inspect`, pdb, logs, traces and profiles; always alike."""

from __future__ import annotations

import contextlib
import gc
import inspect
import itertools
import json
import linecache
import os
import re
import shutil
import subprocess
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._functorch._aot_autograd as torchs_runtime
from torch.profiler import profile

import straightline
from straightline.backends import llvm

HERE = Path(__file__).parent
TRACED = HERE / "traced.py"
X = torch.linspace(-1, 1, 6).reshape(2, 3)


def generated() -> list[types.FunctionType]:
    """The generated functions that live."""
    found = [o for o in gc.get_objects() if type(o) is types.FunctionType]
    return [f for f in found if f.__code__.co_filename.startswith("<straightline:")]


def entries() -> set[str]:
    return {name for name in linecache.cache if name.startswith("<straightline:")}


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    torch._dynamo.reset()
    gc.collect()


def python(*arguments: str | Path, stdin: str = "", **environment: str) -> str:
    """Run Python in a process of its own; what it says on both streams."""
    done = subprocess.run(
        [sys.executable, *arguments],
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


# -- Tracebacks ----------------------------------------------------------------------------------


class Unlucky(Exception):
    """Raised when an operation runs."""


@pytest.fixture(scope="module")
def fails() -> Any:
    """Operations that compile and fail when they run: `now` in forward, `later` in backward."""
    library = "straightline_seen"

    @torch.library.custom_op(f"{library}::now", mutates_args=())
    def now(x: torch.Tensor) -> torch.Tensor:
        raise Unlucky

    @torch.library.custom_op(f"{library}::later", mutates_args=())
    def later(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    for op in (now, later):
        op.register_fake(torch.empty_like)
    later.register_autograd(lambda ctx, grad: now(grad))
    now.register_autograd(lambda ctx, grad: grad)
    return types.SimpleNamespace(now=now, later=later)


def generated_frame(error: BaseException) -> traceback.FrameSummary:
    """The frame of generated code that an operation failed in."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f for f in frames if f.filename.startswith("<straightline:")][-1]


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_traceback_of_a_forward(fails: Any, grad: bool) -> None:
    def op_runs(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        z = fails.now(y)  # this line
        return z + 1  # type: ignore[no-any-return]

    first = op_runs.__code__.co_firstlineno
    with pytest.raises(Unlucky) as caught:
        straightline.compile(op_runs)(X.clone().requires_grad_(grad))
    error = caught.value
    inner = generated_frame(error)
    assert inner.line is not None
    assert re.match(r"z = \w*now\w*\(y\)  # test_seen\.py:\d+: z = fails\.now\(y\)", inner.line)
    assert f"test_seen.py:{first + 2}:" in inner.line
    assert inner.name == ("op_runs_forward" if grad else "op_runs")
    assert linecache.getline(inner.filename, inner.lineno or 0).strip() == inner.line
    shown = "".join(traceback.format_exception(error))
    assert inner.line in shown
    assert f'File "{inner.filename}", line {inner.lineno}, in {inner.name}' in shown
    frames = traceback.extract_tb(error.__traceback__)
    names = {f.name for f in frames if f.filename == inner.filename}
    assert names == ({"op_runs", "op_runs_forward"} if grad else {"op_runs"})


def test_traceback_of_a_backward(fails: Any) -> None:
    def op_runs(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return fails.later(y) + 1  # type: ignore[no-any-return]

    first = op_runs.__code__.co_firstlineno
    out = straightline.compile(op_runs)(X.clone().requires_grad_())
    with pytest.raises(Unlucky) as caught:
        out.sum().backward()
    frame = generated_frame(caught.value)
    assert frame.name == "op_runs_backward"
    assert frame.filename.startswith("<straightline:op_runs 0/0 backward")
    assert frame.line is not None
    assert re.match(r"\w+ = \w*now\w*\(\w+\)  # test_seen\.py:", frame.line)
    assert f"test_seen.py:{first + 2}" in frame.line
    assert frame.line in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("kernels", [False, True])
def test_every_operation_names_a_line_of_the_users(kernels: bool) -> None:
    """In programs of every order."""

    def many(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        y = y * x.cos()
        return y.sum()

    x = X.clone().requires_grad_()
    f = straightline.compile(many)
    with contextlib.nullcontext() if kernels else llvm.disabled():
        f(x).backward()
        derivative = f(x)
        for _ in range(3):
            (derivative,) = torch.autograd.grad(derivative.sum(), x, create_graph=True)
        source = f.source
    assert source.count("# straightline | third order forward") == 1
    written = r" +k\d+_\w+\(| +\w+ = empty_\w+\(.*float32\)" if kernels else r" +\w+ = aten_"
    operations = [line for line in source.splitlines() if re.match(written, line)]
    assert len(operations) > (4 if kernels else 30)
    assert [line for line in operations if not re.search(r"  # test_seen\.py:\d+", line)] == []


def test_a_kernel_names_all_lines_that_it_does() -> None:
    def several(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * 2
        z = y.sin()

        y = (z + x).relu()
        return y @ w

    f = straightline.compile(several)
    f(X, torch.ones(3, 2))
    first = several.__code__.co_firstlineno
    lines = f"test_seen.py:{first + 1}-{first + 2}, {first + 4}"
    assert f"    k0_relu(x, y)  # {lines}\n" in f.source


def test_traceback_of_a_kernel() -> None:
    def picked(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y[at] + 1

    f = straightline.compile(picked)
    torch.testing.assert_close(f(X, torch.tensor([1])), picked(X, torch.tensor([1])))
    with pytest.raises(IndexError, match="out of") as caught:
        f(X, torch.tensor([7]))
    line = picked.__code__.co_firstlineno + 2
    frame = generated_frame(caught.value)
    assert frame.line is not None
    assert re.match(rf"k0_\w+\(.*\)  # test_seen\.py:{line - 1}-{line}$", frame.line)
    shown = "".join(traceback.format_exception(caught.value))
    assert frame.line in shown
    assert f"test_seen.py:{line}: return y[at] + 1" in shown


# -- inspect and linecache -----------------------------------------------------------------------


def simple(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    return y * 2


def test_source_of_generated_functions() -> None:
    x = X.clone().requires_grad_()
    f = straightline.compile(simple)
    f(x).sum().backward()
    by_name = {g.__name__: g for g in generated() if g.__name__.startswith("simple")}
    assert sorted(by_name) == ["simple", "simple_backward", "simple_forward"]
    for name, function in by_name.items():
        lines, first = inspect.getsourcelines(function)
        assert lines[0].startswith(f"def {name}(")
        assert lines[-1].startswith("    return ")
        assert first == function.__code__.co_firstlineno
        text = inspect.getsource(function)
        assert text == "".join(lines)
        assert text.strip() in f.source
        assert inspect.getsourcefile(function) == function.__code__.co_filename
    linecache.checkcache()
    assert inspect.getsource(by_name["simple_backward"])


def test_entries_go_with_their_program() -> None:
    before, others = entries(), len(generated())
    x = X.clone().requires_grad_()
    f = straightline.compile(simple)
    f(x).sum().backward()
    (gradient,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    gradient.sum().backward()
    straightline.compile(lambda x: x + 1)(X)
    assert len(entries() - before) == 5
    del gradient
    torch._dynamo.reset()
    gc.collect()
    assert entries() <= before
    assert len(generated()) <= others


def test_entries_stay_while_a_backward_may_come() -> None:
    x = X.clone().requires_grad_()
    before = entries()
    out = straightline.compile(simple)(x)
    torch._dynamo.reset()
    gc.collect()
    assert len(entries() - before) == 1
    out.sum().backward()
    torch.testing.assert_close(x.grad, 2 * X.cos())
    del out
    gc.collect()
    assert entries() <= before


def test_names_are_readable_and_no_two_alike() -> None:
    def called_so(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2

    f = straightline.compile(called_so, dynamic=False)
    x = X.clone().requires_grad_()
    before = entries()
    f(x).sum().backward()
    f(torch.ones(4))
    forward = "<straightline:called_so 0/0 forward>"
    assert entries() - before == {
        forward,
        "<straightline:called_so 0/0 backward>",
        "<straightline:called_so 0/1 inference>",
    }
    text = linecache.getlines(forward)
    held = f(x)
    torch._dynamo.reset()
    gc.collect()
    f(x)
    assert "<straightline:called_so 0/0 forward#2>" in entries(), "the first still lives"
    assert linecache.getlines(forward) == text
    held.sum().backward()


# -- pdb -----------------------------------------------------------------------------------------

DEBUGGED = """
import linecache, pdb, torch
from straightline.backends import llvm

if not {kernels}:
    llvm.disable()

def step(x):
    y = x * 3
    z = y + 1
    return z.sin()

x = torch.ones(2, requires_grad={grad})
f = torch.compile(step, backend="straightline")
out = f(x)
if {grad}:
    out.sum().backward()
file = next(n for n in linecache.cache if n.startswith("<straightline:step") and "{part}" in n)
lines = linecache.getlines(file)
number = next(i for i, line in enumerate(lines, 1) if "{wanted}" in line)
debugger = pdb.Pdb(nosigint=True)
debugger.set_break(file, number)
debugger.set_trace()
out = f(x)
if {grad}:
    out.sum().backward()
print("RESULT", x.grad if {grad} else out)
"""


def debug(tmp_path: Path, commands: str, *, kernels: bool = False, **how: Any) -> str:
    script = tmp_path / "debugged.py"
    script.write_text(DEBUGGED.format(kernels=kernels, **how))
    return python(script, stdin=commands)


def test_pdb_stops_and_steps_in_a_forward(tmp_path: Path) -> None:
    said = debug(
        tmp_path,
        "c\np x.tolist()\nn\np y.tolist()\nn\nn\nl\nw\nclear 1\nc\n",
        grad=False,
        part="inference",
        wanted="y = aten_mul",
    )
    assert "> <straightline:step 0/0 inference>(5)step()" in said
    assert "-> y = aten_mul_Tensor(x, 3)  # debugged.py:9: y = x * 3" in said
    assert "(Pdb) [1.0, 1.0]" in said
    assert "(Pdb) [3.0, 3.0]" in said
    assert "-> z = aten_add_Tensor(y, 1)  # debugged.py:10: z = y + 1" in said
    assert re.search(r"  6 .*\t    z = aten_add_Tensor", said), "`l` lists the generated text"
    assert "debugged.py(24)<module>()" in said, "`w` shows who called"
    assert "RESULT tensor([-0.7568, -0.7568])" in said


def test_pdb_steps_over_a_kernel(tmp_path: Path) -> None:
    said = debug(
        tmp_path,
        "c\nn\np sin.tolist()\nw\nclear 1\nc\n",
        kernels=True,
        grad=False,
        part="inference",
        wanted="k0_sin",
    )
    assert "-> k0_sin(x, sin)  # debugged.py:9-11" in said
    assert re.search(r"\(Pdb\) \[-0\.7568\d*, -0\.7568\d*\]", said)
    assert "debugged.py(24)<module>()" in said
    assert "RESULT tensor([-0.7568, -0.7568])" in said


def test_pdb_stops_and_steps_in_a_backward(tmp_path: Path) -> None:
    said = debug(
        tmp_path,
        "c\np grads[0].tolist()\nn\np grad_out0.tolist()\nclear 1\nc\n",
        grad=True,
        part="backward",
        wanted="grad_out0 = grads[0]",
    )
    assert "step_backward()" in said
    assert "-> grad_out0 = grads[0]" in said
    assert said.count("(Pdb) [1.0, 1.0]") == 2
    assert re.search(r"RESULT tensor\(\[-3\.92\d*, -3\.92\d*\]\)", said)


# -- The structured trace ------------------------------------------------------------------------

Artifact = tuple[str, str, tuple[str, ...]]  # name, compile id, lines


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The trace of a process, and what it said."""
    folder = tmp_path_factory.mktemp("trace")
    said = python(TRACED, TORCH_TRACE=str(folder), TORCH_LOGS="+straightline")
    (file,) = folder.glob("*.log")
    return file, said


@pytest.fixture(scope="module")
def trace(traced: tuple[Path, str]) -> Path:
    return traced[0]


@pytest.fixture(scope="module")
def plain() -> str:
    """What a process says that nobody asked for logs."""
    return python(TRACED, PYTHONHASHSEED="0")


@pytest.fixture(scope="module")
def artifacts(trace: Path) -> list[Artifact]:
    return list(read(trace))


def read(trace: Path) -> Iterator[Artifact]:
    """The artifacts of a trace: a line with JSON, then the payload, indented by a tab."""
    lines = trace.read_text().splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("V")] + [len(lines)]
    for start, end in itertools.pairwise(starts):
        record = json.loads(lines[start][lines[start].index("{") :])
        if "artifact" in record:
            payload = tuple(line[1:] for line in lines[start + 1 : end])
            identifier = f"{record.get('frame_id')}/{record.get('frame_compile_id')}"
            while payload and not payload[-1]:
                payload = payload[:-1]
            yield record["artifact"]["name"], identifier, payload


def torchs_names() -> set[str]:
    """The names that torch gives to what it generates for its runtime layer."""
    text = "".join(f.read_text() for f in Path(torchs_runtime.__path__[0]).glob("*.py"))
    calls = re.findall(r"(?<!def )_compile_and_exec_source\(\s(.*?)\n +\)", text, re.DOTALL)
    return {re.findall(r'"(\w+)"', call)[-1] for call in calls if '"' in call}


OURS = {
    "compiled_function_forward",
    "compiled_function_backward",
    "compiled_fn_wrapper",
    "runtime_wrapper_orchestration",
    "mutation_epilogue",
    "output_alias_wrapper",
    "synthetic_base_wrapper",
    "subclass_wrapper",
    "backward_subclass_wrapper",
    "backward_prologue",
    "backward_epilogue",
    "debug_assert_wrapper",
}


def test_artifacts_have_torchs_names(artifacts: list[Artifact]) -> None:
    theirs = torchs_names()
    assert theirs >= OURS
    # Those that no program here has: on a CPU there is no functional random state, Dynamo never
    # passes a duplicate, tokens have no line of their own, and the last is empty in torch too.
    rest = {
        "functionalized_rng_wrapper",
        "dedup_wrapper",
        "effect_tokens_wrapper",
        "backward_subclass_unwrap",
    }
    assert theirs - OURS == rest
    assert {name for name, _, _ in artifacts} & theirs == OURS


def test_every_duty_of_the_emitters_has_one_of_torchs_names() -> None:
    package = Path(straightline.__file__).parent
    text = "".join(f.read_text() for f in package.rglob("*.py"))
    assert set(re.findall(r'duty\("(\w+)"\)', text)) <= torchs_names()


def test_whole_files_are_artifacts_too(artifacts: list[Artifact]) -> None:
    names = {name for name, _, _ in artifacts if name.startswith("straightline_")}
    assert names == {
        "straightline_inference",
        "straightline_forward",
        "straightline_backward",
        "straightline_second_order_forward",
        "straightline_second_order_backward",
    }


def test_each_artifact_is_made_of_lines_of_its_file(artifacts: list[Artifact]) -> None:
    """Parts follow the file that they are of, and their lines stand in it in this order."""
    file: tuple[str, ...] = ()
    of = ""
    checked = 0
    for name, identifier, lines in artifacts:
        if name.startswith("straightline_"):
            file, of = lines, identifier
        elif name in OURS:
            assert identifier == of
            rest = iter(file)
            assert all(line in rest for line in lines), (name, lines)
            checked += 1
    assert checked > 30


def parts(artifacts: list[Artifact], program: str) -> dict[str, tuple[str, ...]]:
    """The artifacts of the program that is called so, by name."""
    heads = {i for name, i, lines in artifacts if f"| {program} |" in (lines or ("",))[0]}
    (identifier,) = {i for i in heads if i.endswith("/0")}
    return {name: lines for name, i, lines in artifacts if i == identifier and name in OURS}


def test_the_parts_of_a_training_step(artifacts: list[Artifact]) -> None:
    found = parts(artifacts, "training")
    assert found["mutation_epilogue"] == ("    running.copy_(add)",)
    assert found["output_alias_wrapper"] == ("    view = aten_t(x)",)
    assert found["runtime_wrapper_orchestration"] == (
        "    if profiler._is_profiler_enabled:",
        "        record_prologue()",
        "    add, relu = apply(running, x, w)",
    )
    assert found["compiled_fn_wrapper"][-1] == "    return (add, relu)"
    forward = found["compiled_function_forward"]
    assert forward[0] == "def training_forward(ctx, running, x, w):"
    assert forward[-1] == "    return (add, relu)"
    backward = found["compiled_function_backward"]
    assert backward[0] == "def training_backward(ctx, grads, entered=False):"
    prologue, epilogue = found["backward_prologue"], found["backward_epilogue"]
    assert prologue[0] == "    grad_input_mutation_args_0 = grads[0]"
    assert epilogue == backward[-1:]
    assert epilogue[0].startswith("    return (")
    # Between them is the graph, and nothing else.
    start = backward.index(prologue[0])
    assert backward[start : start + len(prologue)] == prologue
    graph = backward[start + len(prologue) : -1]
    plain = r"    (\w+ = (aten_|empty_strided)|k\d+_\w+\(|del )"
    assert [line for line in graph if not re.match(plain, line)] == []
    assert any(line.startswith("    k0_") for line in graph)
    assert [line for line in prologue if "aten_" in line] == []


def test_the_parts_that_have_to_do_with_subclasses(artifacts: list[Artifact]) -> None:
    found = parts(artifacts, "product")
    assert found["subclass_wrapper"] == (
        "    if type(a) is not TwoTensor:",
        "        raise wrong_type('a', a, TwoTensor)",
        "    a_a = a.a",
        "    a_b = a.b",
        "    if type(w) is not TwoTensor:",
        "        raise wrong_type('w', w, TwoTensor)",
        "    w_a = w.a",
        "    w_b = w.b",
        "    wrapped = TwoTensor.__tensor_unflatten__({'a': mul, 'b': mul_1}, None, (3,), (1,))",
    )
    (line,) = found["backward_subclass_wrapper"]
    assert re.match(r"    grad = TwoTensor\.__tensor_unflatten__\(\{'a': mul, 'b': mul_\d\}", line)
    assert found["backward_epilogue"][-1] == found["compiled_function_backward"][-1]


def test_the_parts_that_make_a_shared_base(artifacts: list[Artifact]) -> None:
    assert parts(artifacts, "merged")["synthetic_base_wrapper"] == (
        "    base_of_a_b = a._base",
        "    if base_of_a_b is None:",
        "        base_of_a_b = b._base",
        "    if base_of_a_b is None:",
        "        base_of_a_b = empty((0,), dtype=a.dtype, device=a.device)",
        "        base_of_a_b.set_(a.untyped_storage())",
        "    if a._base is None and a is not base_of_a_b:",
        "        increment_version(a)",
    )


def test_the_parts_that_assert(artifacts: list[Artifact]) -> None:
    lines = parts(artifacts, "asserted")["debug_assert_wrapper"]
    assert lines[0] == "    if x.requires_grad:"
    assert "requires grad, which the guards should have excluded" in lines[1]


def tlparse() -> str | None:
    beside = Path(sys.executable).parent / "tlparse"
    return str(beside) if beside.exists() else shutil.which("tlparse")


@pytest.mark.skipif(tlparse() is None, reason="tlparse is not installed")
def test_tlparse_shows_the_parts(trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "page"
    done = subprocess.run(
        [str(tlparse()), str(trace), "-o", str(page), "--no-browser"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    index = (page / "index.html").read_text()
    for name in OURS | {"straightline_forward", "straightline_second_order_backward"}:
        assert re.search(rf"{name}_\d+\.txt", index), name
    (mutation, *_) = sorted(page.glob("*/mutation_epilogue_*.txt"))
    assert "running.copy_(add)" in mutation.read_text()


# -- Logs ----------------------------------------------------------------------------------------


def test_the_log_shows_what_is_generated(traced: tuple[Path, str]) -> None:
    said = traced[1]
    assert "generated <straightline:training 0/0 forward>" in said
    assert re.search(r"\[0/0\] def training_backward\(ctx, grads, entered=False\):", said)
    assert re.search(r"\[0/0\]     running\.copy_\(add\)$", said, re.MULTILINE)


def test_without_the_setting_nothing_is_said(plain: str) -> None:
    assert "generated <straightline" not in plain


# -- Profiles ------------------------------------------------------------------------------------

RANGE = "AOTDispatcher Runtime Wrapper Prologue"


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("recorded", [False, True])
def test_the_profiler_shows_a_call_where_it_should(grad: bool, recorded: bool) -> None:
    x = X.clone().requires_grad_(grad)
    with llvm.disabled():
        with torch._dynamo.config.patch(record_runtime_overhead=recorded):
            f = straightline.compile(simple)
            f(x)
        with profile() as seen:
            for _ in range(3):
                out = f(x)
            if grad:
                out.sum().backward()
    names = [event.name for event in seen.events()]
    assert names.count(RANGE) == (3 if recorded else 0)
    assert names.count("aten::sin") == 3
    assert ("profiler" in f.source.partition("# straightline |")[2]) == recorded


# -- Always alike --------------------------------------------------------------------------------


def test_the_same_graph_gives_the_same_text() -> None:
    def texts() -> list[str]:
        torch._dynamo.reset()
        gc.collect()
        x = X.clone().requires_grad_()
        f = straightline.compile(simple)
        (gradient,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        gradient.sum().backward()
        f(x).sum().backward()
        return [line for line in f.source.splitlines() if not line.startswith("# when ")]

    assert texts() == texts()


def test_the_same_text_in_every_process(plain: str) -> None:
    assert plain.count("# straightline |") >= 14
    assert python(TRACED, PYTHONHASHSEED="12345") == plain


def fresh() -> Callable[[torch.Tensor], torch.Tensor]:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x @ x.t()).relu().sum(0)

    return function


def test_equal_functions_give_equal_texts() -> None:
    """Two functions with the same code differ by the number of their compilation alone."""
    texts = []
    for _ in range(2):
        torch._dynamo.reset()
        f = straightline.compile(fresh())
        f(X)
        texts.append(f.source[f.source.index("# straightline |") :])
    assert texts[0] == texts[1]
