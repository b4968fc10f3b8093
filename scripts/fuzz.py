"""Random programs against eager: thousands of them, each in a process that may die of it.

    python scripts/fuzz.py --programs 10000 --seed 0 --json out.json

The seeds are `--seed` and those after it; a program depends on its seed alone. A failing program
is made smaller, and written with `--failures DIR`. Exit status 1 when there is a finding.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from isolate import Worker, serve

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "fuzz"))

from compare import judge
from language import Program
from programs import generate
from shrink import shrink

OTHER = ("dynamo", "stock", "refused", "untraceable")
"""What is not ours: see `compare.Verdict`."""


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """What became of one program, as JSON."""
    start = time.perf_counter()
    source = question.get("source") or generate(question["seed"]).source()
    verdict = judge(source, question["name"], question["backend"])
    stock = judge(source, question["name"], "aot_eager").status if question["stock"] else None
    return {
        "status": verdict.status,
        "kinds": verdict.kinds(),
        "signature": verdict.signature(),
        "aot_eager_too": verdict.aot_eager_too,
        "differences": [str(difference) for difference in verdict.differences[:8]],
        "graphs": verdict.graphs,
        "stock_status": stock,
        "seconds": round(time.perf_counter() - start, 3),
    }


class Fuzzer:
    """One worker's view: judges seeds, and shrinks what fails."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        command = [sys.executable, "-W", "ignore", __file__, "--worker"]
        self._worker = Worker(command, options.timeout, options.batch)

    def judge(self, seed: int, source: str | None = None, stock: bool = False) -> dict[str, Any]:
        reply = self._worker.ask(
            {
                "seed": seed,
                "name": f"seed_{seed}",
                "source": source,
                "backend": self._options.backend,
                "stock": stock,
            }
        )
        if "crash" not in reply:
            return reply
        return {
            "status": "crash",
            "kinds": ["crash"],
            "signature": f"crash: {reply['crash']}",
            "aot_eager_too": False,
            "differences": [reply["crash"]],
            "graphs": 0,
            "stock_status": None,
            "seconds": 0.0,
        }

    def shrunk(self, program: Program, result: dict[str, Any]) -> Program:
        def still_fails(candidate: Program) -> bool:
            reply = self.judge(program.seed, candidate.source())
            return all(
                reply[key] == result[key] for key in ("status", "signature", "aot_eager_too")
            )

        return shrink(program, still_fails)

    def close(self) -> None:
        self._worker.close()


def fuzz(options: argparse.Namespace, seeds: range) -> list[dict[str, Any]]:
    """The result of every seed; findings with their source, the first of a kind made smaller."""
    fuzzer = Fuzzer(options)
    results: list[dict[str, Any]] = []
    shrunk: Counter[str] = Counter()
    for seed in seeds:
        result = {"seed": seed} | fuzzer.judge(seed, stock=options.stock)
        if result["status"] in ("finding", "crash"):
            program = generate(seed)
            signature = result["signature"]
            print(
                f"seed {seed}: {result['status']}: {signature}",
                *result["differences"][:2],
                sep="\n    ",
            )
            if shrunk[signature] < options.shrink:
                program = fuzzer.shrunk(program, result)
                result["differences"] = fuzzer.judge(seed, program.source())["differences"]
                result["shrunk"] = True
            shrunk[signature] += 1
            result["source"] = program.source()
            if options.failures and result.get("shrunk"):
                write_failure(options.failures, result)
        elif result["status"] not in ("ok", "skipped"):
            print(f"seed {seed}: {result['status']}: {result['signature']}")
        results.append(result)
        if len(results) % 100 == 0:
            print(f"{len(results)} of {len(seeds)} from seed {seeds.start}", flush=True)
    fuzzer.close()
    return results


def write_failure(folder: Path, result: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    notes = "".join(f"# {line}\n" for line in result["differences"])
    (folder / f"seed_{result['seed']}.py").write_text(notes + result["source"])


def summary(
    options: argparse.Namespace, results: list[dict[str, Any]], seconds: float
) -> dict[str, Any]:
    findings = [result for result in results if result["status"] in ("finding", "crash")]
    groups = Counter(result["signature"] for result in findings)
    times = sorted(result["seconds"] for result in results)
    return {
        "backend": options.backend,
        "torch": torch.__version__,
        "seeds": [options.seed, options.seed + options.programs],
        "programs": len(results),
        "seconds": round(seconds, 1),
        "median_seconds_a_program": times[len(times) // 2],
        "slowest_program_seconds": times[-1],
        "statuses": Counter(result["status"] for result in results),
        "kinds": Counter(kind for result in findings for kind in result["kinds"]),
        "dynamo": sum(result["status"] == "dynamo" for result in results),
        "graphs": sum(result["graphs"] for result in results),
        "programs_without_a_graph": sum(not result["graphs"] for result in results),
        "aot_eager_statuses": Counter(r["stock_status"] for r in results if r["stock_status"]),
        "findings_that_aot_eager_passes": [r["seed"] for r in findings if not r["aot_eager_too"]],
        "groups": dict(groups.most_common()),
        "findings": findings,
        "other": [r for r in results if r["status"] in OTHER],
    }


def split(seeds: range, count: int) -> list[range]:
    step = -(-len(seeds) // count)
    return [seeds[start : start + step] for start in range(0, len(seeds), step)]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--json", type=Path, help="where the result goes")
    parser.add_argument("--backend", default="straightline")
    parser.add_argument("--failures", type=Path, help="a folder for the shrunk failing programs")
    parser.add_argument("--shrink", type=int, default=2, help="programs made smaller per signature")
    parser.add_argument("--stock", action="store_true", help="judge aot_eager on every program too")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=200, help="programs a process sees")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds a program may take")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = parse()
    if options.worker:
        serve(answer)
        return 0
    start = time.perf_counter()
    seeds = range(options.seed, options.seed + options.programs)
    with ThreadPoolExecutor(options.jobs) as pool:
        parts = pool.map(lambda part: fuzz(options, part), split(seeds, options.jobs))
        results = [result for part in parts for result in part]
    report = summary(options, results, time.perf_counter() - start)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    for key, value in report.items():
        if key not in ("findings", "other"):
            print(f"{key}: {dict(value) if isinstance(value, Counter) else value}")
    return 1 if report["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
