"""torch's structured trace."""

from __future__ import annotations

from torch._logging import trace_structured


def artifact(name: str, text: str) -> None:
    """Add `text` to the trace that `TORCH_TRACE` writes, if it is on."""
    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": name, "encoding": "string"},
        payload_fn=lambda: text,
    )
