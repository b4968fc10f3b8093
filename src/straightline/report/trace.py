"""Artifacts for `tlparse` and lines for the log."""

from __future__ import annotations

from pathlib import Path

from straightline.report.log import logger
from straightline.runtime.programs import Generated
from straightline.torch_private.artifacts import artifact


def observe(generated: Generated) -> None:
    """Record one generated file: whole, and each duty's lines under the name torch gives that job."""
    artifact(f"straightline_{generated.direction}", generated.text)
    for name, text in generated.duties:
        artifact(name, text)
    logger.info("generated %s\n%s", generated.file, generated.text)


def write(generated: Generated, folder: str, program: str) -> Path:
    """Write one generated file to `folder`; returns its path."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    target = path / f"{program}_{generated.direction}.py"
    target.write_text(generated.text, encoding="utf-8")
    return target
