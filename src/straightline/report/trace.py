"""Artifacts for `tlparse` and lines for the log."""

from __future__ import annotations

from straightline.report.log import logger
from straightline.runtime.programs import Generated
from straightline.torch_private.artifacts import artifact


def observe(generated: Generated) -> None:
    """Record one generated file: whole, and the lines of each duty under torch's name for it."""
    artifact(f"straightline_{generated.direction.replace(' ', '_')}", generated.text)
    for name, text in generated.duties:
        artifact(name, text)
    logger.info("generated %s\n%s", generated.file, generated.text)
