"""`straightline doctor`, the fall-back counts that it shows, and the logger."""

import dataclasses
import json
import os
import subprocess
import sys
import threading
import warnings
from dataclasses import dataclass

import pytest
import torch

import straightline
from straightline.cli import main
from straightline.errors import Unsupported
from straightline.report import doctor, fallbacks
from straightline.torch_private import gate


@dataclass(frozen=True)
class Record:
    """What the version gate returns."""

    ok: bool = True
    differences: tuple[str, ...] = ()
    torch_version: str = torch.__version__


@pytest.fixture(autouse=True)
def healthy(monkeypatch):
    """A process in which nothing is degraded; each test breaks one thing."""
    for name in list(os.environ):
        if name.startswith("STRAIGHTLINE_") or name in (
            "TORCH_COMPILE_DISABLE",
            "TORCHDYNAMO_DISABLE",
        ):
            monkeypatch.delenv(name)
    monkeypatch.setattr(gate, "check", Record)


def test_nothing_degraded(capsys):
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert f"torch          {torch.__version__}" in printed
    assert f"straightline   {straightline.__version__}" in printed
    assert "runtime layer  straight-line" in printed
    assert "fall-backs     0 in this process" in printed
    assert printed.endswith("Nothing is degraded.\n")


def test_json_says_the_same(capsys):
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": torch.__version__,
        "straightline": straightline.__version__,
        "runtime_layer": "straight-line",
        "options": dataclasses.asdict(straightline.Config()),
        "fallbacks": {},
        "findings": [],
    }


def only_finding() -> doctor.Finding:
    [finding] = straightline.doctor().findings
    return finding


def test_an_untested_torch_is_degraded(monkeypatch, capsys):
    untested = Record(False, ("ViewAndMutationMeta.traced_tangents is new",), "2.99.0")
    monkeypatch.setattr(gate, "check", lambda: untested)
    assert straightline.doctor().runtime_layer == "torch's aot_autograd"
    assert "traced_tangents" in only_finding().why
    assert "2.99.0" in only_finding().why
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "runtime layer  torch's aot_autograd" in printed
    assert f"what to do: {only_finding().todo}" in printed


def test_a_wrong_option_in_the_environment_is_degraded(monkeypatch):
    monkeypatch.setenv("STRAIGHTLINE_FALLBACK", "loud")
    assert "STRAIGHTLINE_FALLBACK" in only_finding().why
    assert "'warn' or 'error'" in only_finding().todo


def test_a_misspelt_variable_is_degraded(monkeypatch):
    monkeypatch.setenv("STRAIGHTLINE_FALBACK", "error")
    assert "STRAIGHTLINE_FALBACK" in only_finding().what
    assert "STRAIGHTLINE_FALLBACK" in only_finding().why


@pytest.mark.parametrize("variable", ["TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"])
def test_compilation_switched_off_is_degraded(monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    assert only_finding().todo == f"unset {variable}"


@pytest.mark.parametrize("variable", ["TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"])
def test_the_variables_named_do_switch_torch_off(variable):
    program = (
        "import torch\n"
        "def backend(graph, inputs): raise SystemExit('compiled')\n"
        "torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1))\n"
    )
    done = run(program, **{variable: "1"})
    assert done.returncode == 0, done.stderr


def test_a_missing_entry_point_is_degraded(monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    assert "pip install" in only_finding().todo


@pytest.mark.fallback
def test_fallbacks_are_degraded(capsys):
    with pytest.warns(fallbacks.StraightlineFallbackWarning):
        fallbacks.record("sparse input", "model.py:3")
    fallbacks.record("sparse input", "model.py:4")
    assert straightline.doctor().fallbacks == {"sparse input": 2}
    assert only_finding().why == "sparse input"
    assert only_finding().what.startswith("2 graphs")
    assert main(["doctor"]) == 1
    assert "fall-backs     2 in this process" in capsys.readouterr().out


@pytest.mark.fallback
def test_what_runs_instead_is_told():
    ways = (fallbacks.STOCK, fallbacks.AS_CAPTURED, fallbacks.AS_CAPTURED)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for to, detail in zip(ways, ("", "first", "second"), strict=True):
            fallbacks.record("sparse input", "model.py:3", to=to, detail=detail)
    assert [str(each.message).splitlines()[0] for each in caught] == [
        f"straightline falls back to {fallbacks.STOCK}: sparse input",
        f"straightline falls back to {fallbacks.AS_CAPTURED}: sparse input: first",
    ]
    diagnosis = straightline.doctor()
    assert diagnosis.fallbacks == {"sparse input": 3}
    assert [each.what for each in diagnosis.findings] == [
        "1 graph of this process fell back to torch's aot_autograd",
        "2 graphs of this process fell back to the captured graph, one operation after the other",
    ]
    for to in ways:
        error = fallbacks.refuse("sparse input", to=to)
        assert f'fallback="warn" runs {to} instead' in str(error)


@pytest.mark.fallback
def test_a_fallback_warns_once_per_reason_and_is_counted_each_time():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for reason in ("sparse input", "quantised input", "sparse input"):
            fallbacks.record(reason, "model.py:3")
    assert [str(each.message).splitlines()[0] for each in caught] == [
        "straightline falls back to torch's aot_autograd: sparse input",
        "straightline falls back to torch's aot_autograd: quantised input",
    ]
    assert "at model.py:3" in str(caught[0].message)
    assert fallbacks.counts() == {"sparse input": 2, "quantised input": 1}
    fallbacks.clear()
    assert fallbacks.counts() == {}
    with pytest.warns(fallbacks.StraightlineFallbackWarning):
        fallbacks.record("sparse input")


@pytest.mark.fallback
@pytest.mark.filterwarnings("ignore::straightline.report.fallbacks.StraightlineFallbackWarning")
def test_fallbacks_of_many_threads_are_all_counted():
    def many() -> None:
        for _ in range(1000):
            fallbacks.record("sparse input")

    threads = [threading.Thread(target=many) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fallbacks.counts() == {"sparse input": 8000}


def test_a_fallback_can_be_refused():
    error = fallbacks.refuse("sparse input", "model.py:3")
    assert isinstance(error, Unsupported)
    assert "sparse input\n  at model.py:3\n  what to do: " in str(error)


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "straightline", "doctor", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    diagnosis = json.loads(done.stdout)
    assert diagnosis["torch"] == torch.__version__
    assert done.returncode == (1 if diagnosis["findings"] else 0), done.stderr


SPEAK = (
    "import sys, torch\n"
    "loaded = [name for name in sys.modules if name.partition('.')[0] == 'straightline']\n"
    "print(all(hasattr(sys.modules[name], '__path__') for name in loaded), bool(loaded))\n"
    "from straightline.report.log import logger\n"
    "logger.debug('in detail')\n"
    "logger.info('in short')\n"
)


@pytest.mark.parametrize(
    ("setting", "heard"),
    [
        ("aot", []),
        ("straightline", ["in short"]),
        ("+straightline,+dynamo", ["in detail", "in short"]),
    ],
)
def test_torch_logs_turns_the_logger_on(setting, heard):
    """torch loads our packages, in the middle of its own import, but none of our modules."""
    done = run(SPEAK, TORCH_LOGS=setting)
    assert done.returncode == 0, done.stderr
    lines = [line.split("] ", 1)[-1] for line in done.stderr.splitlines()]
    assert [line for line in lines if line.startswith("in ")] == heard
    assert done.stdout.split() == ["True", str(bool(heard))]
