"""What the runtime layer costs a call: straightline's one function a direction against torch's own.

    python benchmarks/runtime.py [--json out.json] [--plot docs/runtime-cost.svg] [--backend NAME]

One process, interleaved rounds. Each side is the callable that a backend returned, called directly,
without Dynamo. The floor is a hand-written function of the operations that must run; raw is what a
call takes, net is raw less the floor of the same round, and the ratio is ours to torch's, net.
Torch's side runs the same graph through its own layer with a straight-line body, so that only the
layer differs. All sides are checked to compute the same; `operations` counts what each dispatches.
The exit status is 1 where a row with a bar misses it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import _stock
import torch
from _cases import CORE, TABLES, Case, Direction
from _timing import Call, Spread, interleave
from torch.autograd import grad
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

from straightline import backends

SIDES = ("floor", "torch", "ours")


@dataclass(frozen=True)
class Row:
    """One measured case; times are in microseconds a call."""

    group: str
    name: str
    arguments: int | None
    operations: dict[str, int]
    raw: dict[str, Spread]
    net: dict[str, Spread]
    ratio: Spread
    bar: float | None

    @property
    def passes(self) -> bool | None:
        return None if self.bar is None else self.ratio.median <= self.bar


def _call(case: Case, run: Callable[..., Any], inputs: Sequence[Any], result: Any) -> Call:
    """One measured call as a function of nothing; `result` picks the tensor to differentiate."""
    arguments = tuple(inputs)
    fresh, tangent = case.fresh, case.tangent() if case.tangent else None
    leaves = [x for x in arguments if isinstance(x, torch.Tensor) and x.requires_grad]
    match case.direction:
        case Direction.FORWARD if fresh is not None:
            return lambda: run(*fresh(arguments))
        case Direction.FORWARD:
            return lambda: run(*arguments)
        case Direction.STEP:
            return lambda: grad(result(run(*arguments)), leaves, tangent)
        case Direction.BACKWARD:
            output = result(run(*arguments))
            return lambda: grad(output, leaves, tangent, retain_graph=True)


def _sides(case: Case, backend: str) -> dict[str, Call]:
    sides = {"floor": _call(case, case.floor, _inputs(case), lambda out: out)}
    for name, compiler in (("torch", _stock.layer), ("ours", _stock.ours(backend))):
        inputs = _inputs(case)
        traced = case.fresh(inputs) if case.fresh else inputs
        compiled, passed = _stock.capture(case.function, traced, compiler)
        if any(x is not y for x, y in zip(traced, passed, strict=True)):
            raise AssertionError(f"{case.name}: the graph takes its inputs in another order")
        sides[name] = _call(case, compiled, _inputs(case), lambda out: out[0])
    return sides


def _inputs(case: Case) -> tuple[Any, ...]:
    torch.manual_seed(0)
    return case.inputs()


def _plain(result: Any) -> list[torch.Tensor]:
    """The plain tensors in a result, in order."""
    if isinstance(result, TwoTensor):
        return [*_plain(result.a), *_plain(result.b)]
    if isinstance(result, torch.Tensor):
        return [result]
    return [tensor for part in result for tensor in _plain(part)]


def _check(case: Case, sides: Mapping[str, Call]) -> None:
    """All sides compute the same, so that what is compared is the cost of one thing."""
    expected = _plain(sides["floor"]())
    for name in ("torch", "ours"):
        found = _plain(sides[name]())
        if not all(torch.equal(a, b) for a, b in zip(expected, found, strict=True)):
            raise AssertionError(f"{case.name}: {name} and the floor differ")


class _Count(TorchDispatchMode):
    """Counts the operations that reach dispatch."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        return func(*args, **kwargs or {})


def _operations(call: Call) -> int:
    """How many operations one call runs."""
    with _Count() as count:
        call()
    return count.operations


def measure(case: Case, *, backend: str, rounds: int, round_ms: float) -> Row:
    sides = _sides(case, backend)
    _check(case, sides)
    operations = {name: _operations(call) for name, call in sides.items()}
    times = interleave(sides, rounds=rounds, round_ms=round_ms)
    net = {
        name: [t - floor for t, floor in zip(times[name], times["floor"], strict=True)]
        for name in ("torch", "ours")
    }
    ratio = [ours / theirs for ours, theirs in zip(net["ours"], net["torch"], strict=True)]
    return Row(
        group=case.group,
        name=case.name,
        arguments=case.arguments,
        operations=operations,
        raw={name: Spread.of(values) for name, values in times.items()},
        net={name: Spread.of(values) for name, values in net.items()},
        ratio=Spread.of(ratio),
        bar=case.bar,
    )


def slope(rows: Sequence[Row], side: str) -> float:
    """Nanoseconds of net cost that one more argument adds (least squares over the rows)."""
    points = [(row.arguments, row.net[side].median * 1e3) for row in rows if row.arguments]
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    rise = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return rise / sum((x - mean_x) ** 2 for x, _ in points)


HEADER = (
    f"{'':44} {'raw, us a call':>26}   {'net, us a call':>17}   {'ours / torch, net':>22}\n"
    f"{'':44} {'floor':>8} {'torch':>8} {'ours':>8}   {'torch':>8} {'ours':>8}   "
    f"{'median':>7} {'10 to 90%':>14}   operations"
)


def text(row: Row) -> str:
    raw = " ".join(f"{row.raw[s].median:8.2f}" for s in SIDES)
    net = " ".join(f"{row.net[s].median:8.2f}" for s in ("torch", "ours"))
    spread = f"{row.ratio.low:.2f} to {row.ratio.high:.2f}"
    operations = "/".join(str(row.operations[s]) for s in SIDES)
    verdict = {None: "", True: f"pass (bar {row.bar})", False: f"FAIL (bar {row.bar})"}[row.passes]
    return (
        f"{row.name:44} {raw}   {net}   {row.ratio.median:7.2f} {spread:>14}   "
        f"{operations:10} {verdict}"
    ).rstrip()


def _machine() -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="straightline", help="the backend called ours")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--round-ms", type=float, default=2.0, help="time of one side in a round")
    parser.add_argument("--only", default="", help="only rows whose group or name contains this")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args(argv)

    # The floor is made of torch's operations; so is what is measured against it.
    backends.llvm.disable()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows: list[Row] = []
    print(HEADER)
    for case in (*CORE, *TABLES):
        if options.only not in f"{case.group} {case.name}":
            continue
        if not rows or rows[-1].group != case.group:
            print(f"\n{case.group}")
        row = measure(
            case, backend=options.backend, rounds=options.rounds, round_ms=options.round_ms
        )
        rows.append(row)
        print(text(row), flush=True)

    slopes = {}
    prologue = [row for row in rows if row.group == "backward prologue"]
    if len(prologue) > 1:
        slopes = {side: slope(prologue, side) for side in ("torch", "ours")}
        print(
            f"\nbackward prologue, net cost of one more saved tensor: "
            f"torch {slopes['torch']:.1f} ns, ours {slopes['ours']:.1f} ns"
        )
    missed = [row.name for row in rows if row.passes is False]
    barred = sum(row.bar is not None for row in rows)
    print(f"\n{barred - len(missed)} of {barred} rows with a bar pass")
    if options.json:
        document = {
            "backend": options.backend,
            "machine": _machine(),
            "rounds": options.rounds,
            "nanoseconds_per_saved_tensor": slopes,
            "rows": [{**asdict(row), "passes": row.passes} for row in rows],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    if options.plot:
        from _plot import draw

        draw(rows, options.plot)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
