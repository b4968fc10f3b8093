"""The short form of `scripts/leaks.py`: nothing is kept that should not be."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from scenario import BACKEND

SCRIPT = Path(__file__).parent.parent / "scripts" / "leaks.py"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Mapping[str, Any]]:
    report = tmp_path_factory.mktemp("leaks") / "leaks.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--short", "--backend", BACKEND, "--json", str(report)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.exists(), done.stderr
    found: list[Mapping[str, Any]] = json.loads(report.read_text())
    return found


@pytest.mark.parametrize("what", ["calls", "recompiles", "cycles", "peak"])
def test_nothing_is_kept(what: str, results: list[Mapping[str, Any]]) -> None:
    checks = [check for check in results if check["name"].startswith(what)]
    assert checks
    assert not [check for check in checks if not check["passes"]]
