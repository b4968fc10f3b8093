"""What start-up loads, exactly: modules, not milliseconds (`benchmarks/startup.py` has those)."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from scenario import BACKEND

# What we may load beyond backend="eager", each with its reason.
ALLOWED: dict[str, str] = {
    "torch._inductor.fx_passes": "the next one's package, which is empty",
    "torch._inductor.fx_passes.dedupe_symint_uses": "make_fx ends every trace with it",
}

# Inductor's compiler proper: about a second of imports, and no part of what we do.
NEVER = (
    "torch._inductor.codegen.cpp",
    "torch._inductor.compile_fx",
    "torch._inductor.graph",
    "torch._inductor.ir",
    "torch._inductor.lowering",
    "torch._inductor.scheduler",
)

STEP = """
import json, sys, torch
def loaded():
    return sorted(name for name in sys.modules if name.partition(".")[0] == "torch")
def model(x, w):
    return (x * w).softmax(0).sum()
x, w = torch.randn(8), torch.randn(8, requires_grad=True)
f = torch.compile(model, backend=sys.argv[1])
for _ in range(2):
    f(x, w).backward()
with torch.no_grad():
    f(x, w)
print(json.dumps(loaded()))
"""

IMPORT = """
import json, sys, torch
before = set(sys.modules)
import straightline
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def run(program: str, *arguments: str) -> set[str]:
    """The module names that a fresh process prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    return set(json.loads(done.stdout))


@pytest.fixture(scope="module")
def ours() -> set[str]:
    return run(STEP, BACKEND)


@pytest.mark.parametrize("module", NEVER)
def test_a_training_step_never_loads(module: str, ours: set[str]) -> None:
    assert "torch._dynamo" in ours
    assert module not in ours


def test_a_training_step_loads_what_eager_loads(ours: set[str]) -> None:
    def inductor(modules: set[str]) -> set[str]:
        return {name for name in modules if name.startswith("torch._inductor")}

    extra = inductor(ours) - inductor(run(STEP, "eager"))
    assert extra <= ALLOWED.keys(), sorted(extra - ALLOWED.keys())
    # An entry that nothing loads any more would let it come back unseen.
    assert ALLOWED.keys() <= extra, sorted(ALLOWED.keys() - extra)


def test_import_loads_no_compiler() -> None:
    added = run(IMPORT)
    assert "straightline" in added
    heavy = ("torch._dynamo", "torch._functorch.aot_autograd", "torch._inductor", "sympy")
    assert not [name for name in added if name.startswith(heavy)]
