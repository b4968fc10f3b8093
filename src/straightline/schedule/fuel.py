"""A limit on the number of decisions, by which a wrong one can be found by bisection."""

from __future__ import annotations

from straightline.schedule.program import Decision


class Fuel:
    """Counts decisions, and says no when there have been `limit`; None: there is no limit."""

    def __init__(self, limit: int | None = None) -> None:
        self._left = limit
        self.decisions: list[Decision] = []

    def take(self, name: str, what: str, why: str) -> bool:
        """Whether this may be done; it is noted if so."""
        if self._left is not None:
            if self._left <= 0:
                return False
            self._left -= 1
        self.decisions.append(Decision(name, what, why))
        return True
