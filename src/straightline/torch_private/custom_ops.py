"""torch's watch over custom operations."""

from __future__ import annotations

from typing import Any

import torch._dynamo  # noqa: F401 - it and the wrappers import one another, and it has to come first
from torch._functorch._aot_autograd.runtime_wrappers import _AnalyzeCustomOpInputOutputMode


def alias_check_mode() -> Any:
    """A dispatch mode that warns, or raises, when a custom operation aliases its input."""
    return _AnalyzeCustomOpInputOutputMode()
