"""`straightline demo`: what it prints and its exit status. Never how long a call takes."""

import ast
import math
import re
import subprocess
import sys

import pytest
import torch

from straightline import demo
from straightline.api import compile as compile_model


@pytest.fixture(scope="module")
def printed():
    """What the command prints, as a user runs it."""
    done = subprocess.run(
        [sys.executable, "-m", "straightline", "demo"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(demo, "_ROUNDS", 1)
    monkeypatch.setattr(demo, "_ROUND_US", 1.0)


def sections(text):
    """What stands under each heading."""
    parts = re.split(r"^-- (.*?) -+$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def functions(text):
    return [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]


def test_it_fits_the_page(printed):
    assert [line for line in printed.splitlines() if len(line) > demo.WIDTH] == []


def test_it_shows_the_functions_of_each_direction(printed):
    inference, training, *_ = sections(printed).values()
    # What is shown parses, folded lines included.
    assert functions(inference) == ["PatchNet"]
    assert functions(training) == ["PatchNet_forward", "PatchNet", "PatchNet_backward"]
    assert "aten_copy_(norm_running_mean" in training
    assert "aten_copy_" not in inference
    assert "# when " not in printed


def test_it_checks_values_gradients_and_buffers(printed):
    checks = sections(printed)["The same as eager?"]
    for what in (
        "inference: values",
        "training: values",
        "training: gradients",
        "training: buffers",
    ):
        (row,) = [line for line in checks.splitlines() if line.startswith(what)]
        tensors, difference, verdict, *_ = row.removeprefix(what).split()
        assert int(tensors) > 0
        assert float(difference) <= demo.TOLERANCE
        assert verdict == "same"
    assert "patches are a view of the argument" in checks
    assert "instead: 0" in checks


def test_it_compares_three_sides_for_each_direction(printed):
    costs = sections(printed)["What a call costs"]
    rows = {
        words[0].strip(): [float(word) for word in words[1:]]
        for line in costs.splitlines()
        if (words := re.split(r"\s{2,}", line.strip()))
        and words[0].startswith(("inference", "training"))
    }
    assert {name: len(values) for name, values in rows.items()} == {
        "inference, whole call": 5,
        "inference, without Dynamo": 3,
        "training step, whole": 5,
        "training step, without Dynamo": 3,
    }
    assert all(value > 0 for values in rows.values() for value in values)


def test_a_difference_from_eager_shows_and_fails(quick, monkeypatch, capsys):
    def wrong(model, **keywords):
        with torch.no_grad():
            model.head.bias.add_(0.5)
        return compile_model(model, **keywords)

    monkeypatch.setattr(demo.api, "compile", wrong)
    assert demo.main() == 1
    checks = sections(capsys.readouterr().out)["The same as eager?"]
    assert re.search(r"^inference: values .* 5\.0e-01  DIFFERS", checks, re.MULTILINE)


def test_a_lost_view_fails():
    assert not demo.Check("values", 1, 0.0, also=False).holds
    assert demo.Check("values", 1, 0.0).holds


def test_a_value_that_is_no_number_fails():
    assert not demo.Check("values", 1, math.nan).holds


@pytest.mark.fallback
def test_a_fall_back_fails(quick, capsys):
    demo.fallbacks.counts()
    with pytest.warns(match="planted"):
        demo.fallbacks.record("planted", None)
    assert demo.main() == 1
    assert "instead: 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    "line",
    [
        "    x = f(a, b)  # net.py:3",
        f"    {', '.join(f'name_{i}' for i in range(20))}, = ctx.saved_tensors",
        f"    x = f({', '.join(f'name_{i}' for i in range(20))})  # net.py:3: {'long ' * 30}",
        f"    return (g({', '.join(f'name_{i}' for i in range(8))}), [{', '.join('abcd' * 20)}],)",
    ],
)
def test_a_folded_line_is_the_same_code(line):
    folded = demo.fold(line)
    assert all(len(part) <= demo.WIDTH for part in folded.splitlines())
    header = "def f():\n"
    assert ast.dump(ast.parse(header + folded)) == ast.dump(ast.parse(header + line))
