"""Interleaved timing in one process: a round times every side, so drift hits all alike."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from statistics import median
from time import perf_counter_ns

Call = Callable[[], object]


@dataclass(frozen=True)
class Spread:
    """A median with the 10th and 90th percentile of the rounds it came from."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        ordered = sorted(values)
        return cls(median(ordered), _percentile(ordered, 0.1), _percentile(ordered, 0.9))


def _percentile(ordered: Sequence[float], share: float) -> float:
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def _time(call: Call, times: int) -> float:
    """Microseconds a call."""
    start = perf_counter_ns()
    for _ in repeat(None, times):
        call()
    return (perf_counter_ns() - start) / times / 1e3


def interleave(
    sides: Mapping[str, Call], *, rounds: int, round_ms: float = 2.0
) -> dict[str, list[float]]:
    """Microseconds a call, by side, one value a round.

    Each round starts with another side, and the number of calls is chosen per side so that its part
    of a round lasts about `round_ms`. Garbage collection runs between rounds only.
    """
    times: dict[str, int] = {}
    for name, call in sides.items():
        _time(call, 20)
        times[name] = max(10, int(round_ms * 1e3 / _time(call, 50)))
    results: dict[str, list[float]] = {name: [] for name in sides}
    order = list(sides)
    enabled = gc.isenabled()
    gc.disable()
    try:
        for index in range(rounds):
            first = index % len(order)
            for name in order[first:] + order[:first]:
                results[name].append(_time(sides[name], times[name]))
            gc.collect(1)
    finally:
        if enabled:
            gc.enable()
    return results
