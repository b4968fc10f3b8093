"""Run the Python code on the documentation's pages; `--write` renews what the pages say it prints.

Every ```python block runs, a page's blocks one after the other in one namespace, in a process and a
folder of their own. A ```text block that directly follows one is what it prints, exactly.

    python scripts/pages.py --write docs/what-runs.md
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])

_BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n?^```text\n(?P<output>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)

# Runs one page. Blank lines before each block keep the page's own line numbers, and linecache holds
# the page, so that tracebacks and the comments in generated functions show its lines.
_RUNNER = """
import contextlib, io, json, linecache, sys, types
page, text, blocks = json.load(sys.stdin)
linecache.cache[page] = (len(text), None, text.splitlines(True), page)
module = sys.modules["__main__"] = types.ModuleType("__main__")
printed = []
for line, code in blocks:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile("\\n" * line + code, page, "exec"), vars(module))
    printed.append(out.getvalue())
json.dump(printed, sys.stdout)
"""


class PageError(Exception):
    """A page's code failed; the text is the traceback, in the page's own lines."""


@dataclass(frozen=True)
class Block:
    """One piece of code on a page: where it starts (lines before it), what it says it prints."""

    line: int
    code: str
    output: str | None
    span: tuple[int, int]


def blocks(text: str) -> list[Block]:
    """The pieces of code on a page, in order; `span` is where the output stands in `text`."""
    return [
        Block(
            text.count("\n", 0, found.start("code")),
            found["code"],
            found["output"],
            found.span("output"),
        )
        for found in _BLOCK.finditer(text)
    ]


def run(name: str, text: str) -> list[str]:
    """Run the blocks of the page `text` in order and return what each printed."""
    code = [(block.line, block.code) for block in blocks(text)]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", _RUNNER],
            input=json.dumps([name, text, code]),
            capture_output=True,
            text=True,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
        )
    if done.returncode:
        raise PageError(done.stderr)
    printed: list[str] = json.loads(done.stdout)
    return printed


def renewed(text: str, printed: list[str]) -> str:
    """The page `text` with `printed` in the place of what it said."""
    for block, output in reversed(list(zip(blocks(text), printed, strict=True))):
        if block.output is not None:
            start, end = block.span
            text = text[:start] + output + text[end:]
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path, default=PAGES)
    parser.add_argument("--write", action="store_true", help="renew the pages")
    options = parser.parse_args()
    stale = 0
    for page in options.pages:
        text = page.read_text()
        new = renewed(text, run(page.name, text)) if blocks(text) else text
        if new != text:
            stale += 1
            print(f"{page}: {'renewed' if options.write else 'is not current'}")
            if options.write:
                page.write_text(new)
    return 0 if options.write else min(stale, 1)


if __name__ == "__main__":
    sys.exit(main())
