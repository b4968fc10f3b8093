"""Random functions of tensors against eager: thousands, each in a process that may die of it.

    python scripts/fuzz_graphs.py --programs 5000 --seed 0 --json out.json --failures found/
    python scripts/fuzz_graphs.py --show 17                      the text of a seed's program

The seeds are `--seed` and those after it. Findings are made smaller and printed as text that can be
run. Exit status 1 when there is a finding.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from isolate import Worker, serve

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "kernels"))

from graph_judge import judge
from graphs import Program, generate, shrink


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """What became of one program, as JSON."""
    start = time.perf_counter()
    source = question.get("source") or generate(question["seed"]).source()
    verdict = judge(source, question["backend"])
    return {
        "status": verdict.status,
        "detail": verdict.detail,
        "seconds": round(time.perf_counter() - start, 3),
    }


def ask(worker: Worker, question: dict[str, Any]) -> dict[str, Any]:
    reply = worker.ask(question)
    if "crash" in reply:
        return {"status": "crash", "detail": reply["crash"], "seconds": 0.0}
    return reply


def signature(result: dict[str, Any]) -> str:
    """What findings of one cause have in common, about."""
    detail: str = result["detail"]
    return detail.split(": ", maxsplit=1)[0] if result["status"] == "error" else result["status"]


def smaller(worker: Worker, options: argparse.Namespace, program: Program, first: str) -> Program:
    def still_fails(candidate: Program) -> bool:
        question = {"seed": candidate.seed, "backend": options.backend}
        reply = ask(worker, question | {"source": candidate.source()})
        return reply["status"] in ("wrong", "error", "crash") and signature(reply) == first

    return shrink(program, still_fails)


def fuzz(options: argparse.Namespace) -> list[dict[str, Any]]:
    command = [sys.executable, "-W", "ignore", __file__, "--worker"]
    worker = Worker(command, options.timeout, options.batch)
    results: list[dict[str, Any]] = []
    shrunk: Counter[str] = Counter()
    for seed in range(options.seed, options.seed + options.programs):
        question = {"seed": seed, "backend": options.backend}
        result = {"seed": seed} | ask(worker, question)
        results.append(result)
        if result["status"] in ("wrong", "error", "crash"):
            print(f"seed {seed}: {result['status']}: {result['detail']}", flush=True)
            program, kind = generate(seed), signature(result)
            if shrunk[kind] < options.shrink:
                program = smaller(worker, options, program, kind)
                shrunk[kind] += 1
            result["source"] = program.source()
            if options.failures:
                options.failures.mkdir(parents=True, exist_ok=True)
                note = f"# {result['status']}: {result['detail']}\n"
                (options.failures / f"seed_{seed}.py").write_text(note + result["source"])
        if len(results) % 100 == 0:
            print(f"{len(results)} of {options.programs}", flush=True)
    worker.close()
    return results


def summary(options: argparse.Namespace, results: list[dict[str, Any]]) -> dict[str, Any]:
    findings = [r for r in results if r["status"] in ("wrong", "error", "crash")]
    times = sorted(result["seconds"] for result in results)
    return {
        "backend": options.backend,
        "torch": torch.__version__,
        "seeds": [options.seed, options.seed + options.programs],
        "statuses": Counter(result["status"] for result in results),
        "median_seconds": times[len(times) // 2],
        "slowest_seconds": times[-1],
        "kinds": Counter(map(signature, findings)),
        "fallbacks": Counter(r["detail"] for r in results if r["status"] == "fallback"),
        "findings": findings,
        "unstable": [r for r in results if r["status"] == "unstable"],
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--json", type=Path, help="where the result goes")
    parser.add_argument("--failures", type=Path, help="a folder for the failing programs")
    parser.add_argument("--backend", default="straightline")
    parser.add_argument("--shrink", type=int, default=3, help="programs made smaller per kind")
    parser.add_argument("--batch", type=int, default=200, help="programs a process sees")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds a program may take")
    parser.add_argument("--show", type=int, help="print the program of a seed, and nothing else")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = parse()
    if options.worker:
        serve(answer)
        return 0
    if options.show is not None:
        print(generate(options.show).source(), end="")
        return 0
    results = fuzz(options)
    report = summary(options, results)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    for key, value in report.items():
        if key not in ("findings", "unstable"):
            print(f"{key}: {dict(value) if isinstance(value, Counter) else value}")
    return 1 if report["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
