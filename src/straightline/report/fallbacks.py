"""Where straightline could not build its own runtime function, and what ran instead.

That is torch's `aot_autograd` or, where torch's stages cannot trace a graph or get it wrong, the
graph as Dynamo captured it. A reason is one of few texts; what differs from graph to graph is told
as a detail. No fall-back is silent: each one is counted, and the first of each reason warns.
"""

import threading
import warnings
from collections import Counter

from straightline.errors import Unsupported, explain

STOCK = "torch's aot_autograd"
AS_CAPTURED = "the captured graph, one operation after the other"

_lock = threading.Lock()
_counts: Counter[tuple[str, str]] = Counter()


class StraightlineFallbackWarning(UserWarning):
    """torch's stock runtime layer, or the captured graph itself, runs in place of what straightline
    generates.
    """


def record(
    reason: str,
    where: str | None = None,
    todo: str | None = None,
    *,
    to: str = STOCK,
    detail: str = "",
) -> None:
    """Count one fall-back; warn if it is the first for `reason` since the start or `clear`.

    `where` is `file:line` in the user's program, `to` what runs instead. The option
    `fallback="error"` is the caller's to honour, with `refuse`.
    """
    with _lock:
        _counts[reason, to] += 1
        first = _counts[reason, to] == 1
    if first:
        text = _text(_told(reason, detail), where, todo, to)
        warnings.warn(text, StraightlineFallbackWarning, stacklevel=2)


def refuse(
    reason: str,
    where: str | None = None,
    todo: str | None = None,
    *,
    to: str = STOCK,
    detail: str = "",
) -> Unsupported:
    """The error to raise instead of falling back, under the option `fallback="error"`."""
    return Unsupported(
        f"straightline cannot compile this: {_told(reason, detail)}",
        where=where,
        todo=todo or f'option fallback="warn" runs {to} instead',
    )


def counts() -> dict[str, int]:
    """How many graphs fell back so far in this process, by reason."""
    total: Counter[str] = Counter()
    for (reason, _), count in counts_by_way().items():
        total[reason] += count
    return dict(total)


def counts_by_way() -> dict[tuple[str, str], int]:
    """The same by reason and by what ran instead, `STOCK` or `AS_CAPTURED`."""
    with _lock:
        return dict(_counts)


def clear() -> None:
    """Forget all counts; the next fall-back of each reason warns again."""
    with _lock:
        _counts.clear()


def _told(reason: str, detail: str) -> str:
    return f"{reason}: {detail}" if detail else reason


def _text(reason: str, where: str | None, todo: str | None, to: str) -> str:
    return explain(
        f"straightline falls back to {to}: {reason}",
        where,
        todo or "results stay right, calls cost more; `straightline doctor` says what is degraded",
    )
