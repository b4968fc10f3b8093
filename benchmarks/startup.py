"""What straightline adds to start-up: to the first call of a one-line function, and to an import.

    python benchmarks/startup.py [--runs 7] [--json out.json] [--backend NAME]

Every measurement is a fresh process; the two sides alternate. The first call is timed from before
`torch.compile` to after the call, so it holds the look-up of the backend by its entry point and all
imports. The exit status is 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from _timing import Spread

FIRST_CALL = """
import sys, time, torch
x = torch.randn(8)
def one_line(x):
    return (x * 2 + 1).relu()
start = time.perf_counter()
torch.compile(one_line, backend=sys.argv[1])(x)
print(time.perf_counter() - start)
"""

IMPORT = """
import time, torch
start = time.perf_counter()
import straightline
print(time.perf_counter() - start)
"""


@dataclass(frozen=True)
class Row:
    """One bar; times are in milliseconds."""

    name: str
    base: Spread | None
    ours: Spread
    over: float
    bar: float

    @property
    def passes(self) -> bool:
        return self.over <= self.bar


def _fresh(program: str, *arguments: str) -> float:
    """Milliseconds that a fresh process reports."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout) * 1e3


def first_call(backend: str, runs: int) -> Row:
    (
        _fresh(FIRST_CALL, "eager"),
        _fresh(FIRST_CALL, backend),
    )  # fill the file cache, write .pyc files
    base, ours = [], []
    for _ in range(runs):
        base.append(_fresh(FIRST_CALL, "eager"))
        ours.append(_fresh(FIRST_CALL, backend))
    before, after = Spread.of(base), Spread.of(ours)
    name = "first call, over backend='eager'"
    return Row(name, before, after, over=after.median - before.median, bar=150.0)


def importing(runs: int) -> Row:
    _fresh(IMPORT)
    ours = Spread.of([_fresh(IMPORT) for _ in range(runs)])
    name = "import straightline, over import torch"
    return Row(name, None, ours, over=ours.median, bar=30.0)


def text(row: Row) -> str:
    base = f"eager {row.base.median:7.1f}" if row.base else " " * 13
    verdict = "pass" if row.passes else "FAIL"
    return (
        f"{row.name:42} {base}  ours {row.ours.median:7.1f} "
        f"({row.ours.low:.1f} to {row.ours.high:.1f})  over {row.over:6.1f} ms  "
        f"{verdict} (bar {row.bar:.0f} ms)"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="straightline", help="the backend called ours")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    rows = [first_call(options.backend, options.runs), importing(options.runs)]
    for row in rows:
        print(text(row))
    if options.json:
        document = [{**asdict(row), "passes": row.passes} for row in rows]
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if all(row.passes for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
