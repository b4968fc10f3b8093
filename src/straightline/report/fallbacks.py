"""Where straightline could not build its own runtime function and torch's ran instead.

No fall-back is silent: each one is counted, and the first of each reason warns.
"""

import threading
import warnings
from collections import Counter

from straightline.errors import Unsupported, explain

STOCK = "torch's aot_autograd"
AS_CAPTURED = "the captured graph, one operation after the other"

_lock = threading.Lock()
_counts: Counter[str] = Counter()


class StraightlineFallbackWarning(UserWarning):
    """torch's stock runtime layer runs in place of straightline's."""


def record(reason: str, where: str | None = None, todo: str | None = None, to: str = STOCK) -> None:
    """Count one fall-back; warn if it is the first for `reason` since the start or `clear`.

    `where` is `file:line` in the user's program. The option `fallback="error"` is the caller's to
    honour, with `refuse`.
    """
    with _lock:
        _counts[reason] += 1
        first = _counts[reason] == 1
    if first:
        warnings.warn(_text(reason, where, todo, to), StraightlineFallbackWarning, stacklevel=2)


def refuse(reason: str, where: str | None = None, todo: str | None = None) -> Unsupported:
    """The error to raise instead of falling back, under the option `fallback="error"`."""
    return Unsupported(
        f"straightline cannot compile this: {reason}",
        where=where,
        todo=todo or 'option fallback="warn" runs it through torch\'s aot_autograd instead',
    )


def counts() -> dict[str, int]:
    """How many graphs fell back so far in this process, by reason."""
    with _lock:
        return dict(_counts)


def clear() -> None:
    """Forget all counts; the next fall-back of each reason warns again."""
    with _lock:
        _counts.clear()


def _text(reason: str, where: str | None, todo: str | None, to: str) -> str:
    return explain(
        f"straightline falls back to {to}: {reason}",
        where,
        todo or "results stay right, calls cost more; `straightline doctor` says what is degraded",
    )
