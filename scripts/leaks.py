"""Whether anything is kept that should not be: calls, recompiles, reference cycles, peak memory.

    python scripts/leaks.py [--short] [--json out.json] [--backend NAME]

Each measurement runs in a fresh process. The exit status is 1 where a check fails.

calls       after a warm-up, N steady calls leave reference counts, allocated blocks and RSS as
            they were
recompiles  N rounds of `torch._dynamo.reset()` and compiling keep no more than backend="eager"
            does, and no program, contract, generated function or linecache entry stays reachable
cycles      with the collector off, inputs, outputs and graphs die with their last reference
peak        a training step's peak of allocated memory is at most that of backend="aot_eager"
"""

from __future__ import annotations

import argparse
import gc
import json
import linecache
import os
import subprocess
import sys
import types
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

Step = Callable[..., Any]
Inputs = tuple[Tensor, ...]
Facts = dict[str, Any]


@dataclass(frozen=True)
class Check:
    """One verdict: what was measured and what it may be at most."""

    name: str
    found: float
    limit: float

    @property
    def passes(self) -> bool:
        return self.found <= self.limit


# The programs: each a function, its inputs, and whether a backward follows.


def _inference(x: Tensor) -> Tensor:
    return (x * 2 + 1).relu()


def _mutation_and_alias(x: Tensor) -> tuple[Tensor, Tensor]:
    x.mul_(-1)
    return x.view(2, -1), x + 1


def _training(x: Tensor, w: Tensor) -> Tensor:
    return (x * w).softmax(0).square().sum()


def _training_with_aliases(x: Tensor, w: Tensor, running: Tensor) -> tuple[Tensor, ...]:
    running.mul_(0.9).add_(x, alpha=0.1)
    y = x * w
    return y.sum(), y.view(2, -1), w.view(2, -1), running.view(2, -1)


def _subclass(x: Tensor, w: Tensor) -> Tensor:
    return x * w + 1


def _vector() -> Tensor:
    return torch.randn(64)


def _pair() -> Tensor:
    pair: Tensor = TwoTensor(_vector(), _vector())
    return pair


PROGRAMS: dict[str, tuple[Step, Callable[[], Inputs], bool]] = {
    "inference": (_inference, lambda: (_vector(),), False),
    "mutation and alias": (_mutation_and_alias, lambda: (_vector(),), False),
    "training": (_training, lambda: (_vector(), _vector().requires_grad_()), True),
    "training with aliases": (
        _training_with_aliases,
        lambda: (_vector(), _vector().requires_grad_(), _vector()),
        True,
    ),
    "subclass": (_subclass, lambda: (_pair(), _pair().requires_grad_()), True),
}


def _run(compiled: Step, inputs: Inputs, *, backward: bool) -> Any:
    result = compiled(*inputs)
    if backward:
        head = result[0] if isinstance(result, tuple) else result
        head.backward(torch.ones_like(head))
        for x in inputs:
            x.grad = None
    return result


def _rss() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _gains(compiled: Step, inputs: Inputs, backward: bool, count: int) -> dict[str, int]:
    """What `count` calls leave behind."""
    gc.collect()
    references = [sys.getrefcount(inputs[i]) for i in range(len(inputs))]
    blocks, rss = sys.getallocatedblocks(), _rss()
    for _ in range(count):
        _run(compiled, inputs, backward=backward)
    gc.collect()
    after = [sys.getrefcount(inputs[i]) for i in range(len(inputs))]
    return {
        "references": sum(abs(a - b) for a, b in zip(after, references, strict=True)),
        "blocks": sys.getallocatedblocks() - blocks,
        "rss": _rss() - rss,
    }


def measure_calls(backend: str, count: int) -> Facts:
    """The least of three windows: a leak grows in each of them, noise does not."""
    facts: Facts = {}
    for name, (function, make, backward) in PROGRAMS.items():
        compiled = torch.compile(function, backend=backend)
        inputs = make()
        windows = [_gains(compiled, inputs, backward, count) for _ in range(4)][1:]
        facts[name] = {fact: min(window[fact] for window in windows) for fact in windows[0]}
    return facts


def _ours() -> Counter[str]:
    """Reachable objects of ours that belong to one compilation, by kind."""
    gc.collect()
    found: Counter[str] = Counter()
    for thing in gc.get_objects():
        kind = type(thing)
        if kind is types.FunctionType:
            if thing.__code__.co_filename.startswith("<straightline:"):
                found["generated function"] += 1
        elif str(kind.__module__).partition(".")[0] == "straightline":
            found[kind.__qualname__] += 1
    found["linecache entry"] = sum(name.startswith("<straightline:") for name in linecache.cache)
    found["autograd.Function"] = len(torch.autograd.Function.__subclasses__())
    return found


def _compile_all(backend: str) -> None:
    torch._dynamo.reset()
    for function, make, backward in PROGRAMS.values():
        _run(torch.compile(function, backend=backend), make(), backward=backward)


def measure_recompiles(backend: str, count: int) -> Facts:
    # torch keeps the metrics of its last 64 compiles; the warm-up fills that.
    for _ in range(min(count, 64 // len(PROGRAMS) + 2)):
        _compile_all(backend)
    torch._dynamo.reset()
    ours = _ours()
    blocks, objects, rss = sys.getallocatedblocks(), len(gc.get_objects()), _rss()
    for _ in range(count):
        _compile_all(backend)
    torch._dynamo.reset()
    kept = _ours()
    return {
        "blocks": (sys.getallocatedblocks() - blocks) / count,
        "objects": (len(gc.get_objects()) - objects) / count,
        "rss": (_rss() - rss) / count,
        "ours": {kind: n - ours[kind] for kind, n in kept.items() if n != ours[kind]},
        "generated": kept["generated function"] + kept["linecache entry"],
    }


def measure_cycles(backend: str, count: int) -> Facts:
    """How many of the tensors of a steady call outlive it, with the collector off."""
    facts: Facts = {}
    for name, (function, make, backward) in PROGRAMS.items():
        compiled = torch.compile(function, backend=backend)
        for _ in range(3):
            _run(compiled, make(), backward=backward)
        gc.collect()
        gc.disable()
        try:
            for also_backward in (False, True) if backward else (False,):
                held: list[weakref.ref[Tensor]] = []
                for _ in range(count):
                    inputs = make()
                    result = _run(compiled, inputs, backward=also_backward)
                    outputs = result if isinstance(result, tuple) else (result,)
                    held += [weakref.ref(t) for t in (*inputs, *outputs)]
                    del inputs, result, outputs
                suffix = " + backward" if also_backward else ""
                facts[name + suffix] = sum(ref() is not None for ref in held)
        finally:
            gc.enable()
    return facts


class _Block(nn.Module):
    """A transformer block: the shapes of what training saves, small."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm1(x)).chunk(3, -1)
        weights = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1)
        x = x + self.out(weights @ value)
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


def _convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.Flatten(),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64), nn.Sigmoid()),
        lambda: torch.randn(128, 64),
    ),
    "transformer": (
        lambda: nn.Sequential(_Block(64), _Block(64)),
        lambda: torch.randn(4, 32, 64),
    ),
    "convolutional": (_convolutional, lambda: torch.randn(4, 3, 16, 16)),
}


def _peak(step: Callable[[], object]) -> int:
    """The most bytes that `step` has allocated at one time, above what was allocated before."""
    with torch.autograd.profiler.profile(profile_memory=True) as profiler:
        step()
    events = [e for e in profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def measure_peak(backend: str, count: int) -> Facts:
    """Without kernels: one holds all that it reads until it has written all its results."""
    from straightline import backends

    with backends.llvm.disabled():
        return _peaks(backend, count)


def _peaks(backend: str, count: int) -> Facts:
    facts: Facts = {}
    for name, (make, batch) in MODELS.items():
        torch.manual_seed(0)
        model, x = make(), batch()
        compiled = torch.compile(model, backend=backend)

        def step(compiled: Step = compiled, x: Tensor = x) -> None:
            compiled(x).square().mean().backward()

        peaks = []
        for _ in range(2 + count):
            model.zero_grad()
            peaks.append(_peak(step))
        facts[name] = max(peaks[2:])
    return facts


MEASURES = {
    "calls": measure_calls,
    "recompiles": measure_recompiles,
    "cycles": measure_cycles,
    "peak": measure_peak,
    "kernels": _peaks,
}
KERNEL_SHARE = 1.01
FULL = {"calls": 10_000, "recompiles": 200, "cycles": 50, "peak": 5}
SHORT = {"calls": 300, "recompiles": 5, "cycles": 5, "peak": 1}

# Noise allowed in what the interpreter and malloc hold, far below a leak of one thing a call.
BLOCKS = 64
RSS = 1 << 20
# And in what one recompile of all programs keeps, where torch's own caches come and go.
OBJECTS_A_ROUND = 1
BLOCKS_A_ROUND = 5


def _measure(name: str, backend: str, count: int) -> Facts:
    """The facts of one measurement, taken in a fresh process."""
    done = subprocess.run(
        [sys.executable, __file__, "--measure", name, "--backend", backend, "--count", str(count)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    facts: Facts = json.loads(done.stdout)
    return facts


def checks(backend: str, counts: dict[str, int], *, against_eager: bool) -> list[Check]:
    """All checks; what recompiles keep is told from noise only by a long loop (`against_eager`)."""
    found: list[Check] = []
    for program, facts in _measure("calls", backend, counts["calls"]).items():
        limits = {"references": 0, "blocks": BLOCKS, "rss": RSS}
        found += [
            Check(f"calls, {program}: {fact} gained", facts[fact], limit)
            for fact, limit in limits.items()
        ]

    ours = _measure("recompiles", backend, counts["recompiles"])
    found += [
        Check("recompiles: generated functions and linecache entries left", ours["generated"], 0),
        Check("recompiles: objects of ours gained", sum(ours["ours"].values()), 0),
    ]
    if against_eager:
        eager = _measure("recompiles", "eager", counts["recompiles"])
        found += [
            Check(
                "recompiles: objects kept a round",
                ours["objects"],
                eager["objects"] + OBJECTS_A_ROUND,
            ),
            Check(
                "recompiles: blocks kept a round",
                ours["blocks"],
                eager["blocks"] + BLOCKS_A_ROUND,
            ),
        ]

    cycles = _measure("cycles", backend, counts["cycles"])
    found += [Check(f"cycles, {name}: tensors alive", alive, 0) for name, alive in cycles.items()]

    stock = _measure("peak", "aot_eager", counts["peak"])
    peak = _measure("peak", backend, counts["peak"])
    found += [Check(f"peak, {name}: bytes", peak[name], stock[name]) for name in stock]
    kernels = _measure("kernels", backend, counts["peak"])
    found += [
        Check(f"peak with kernels, {name}: bytes", kernels[name], int(stock[name] * KERNEL_SHARE))
        for name in stock
    ]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="straightline", help="the backend checked")
    parser.add_argument("--short", action="store_true", help="fewer calls and rounds")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", choices=MEASURES, help="take one measurement, print its facts")
    parser.add_argument("--count", type=int)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    counts = SHORT if options.short else FULL
    if options.measure:
        count = options.count or counts[options.measure]
        print(json.dumps(MEASURES[options.measure](options.backend, count)))
        return 0
    results = checks(options.backend, counts, against_eager=not options.short)
    for check in results:
        verdict = "pass" if check.passes else "FAIL"
        print(f"{verdict}  {check.name}: {check.found:g} (at most {check.limit:g})")
    if options.json:
        document = [{**asdict(check), "passes": check.passes} for check in results]
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if all(check.passes for check in results) else 1


if __name__ == "__main__":
    sys.exit(main())
