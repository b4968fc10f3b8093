"""torch's watch over custom operations."""

from __future__ import annotations

from typing import Any

from torch._functorch._aot_autograd.runtime_wrappers import _AnalyzeCustomOpInputOutputMode


def alias_check_mode() -> Any:
    """A dispatch mode that warns, or raises, when a custom operation aliases its input."""
    return _AnalyzeCustomOpInputOutputMode()
