"""The pages of the documentation are true: their code runs, and prints what they say.

Every ```python block of README.md, CONTRIBUTING.md and docs/*.md runs, a page's blocks one after
the other in one namespace, in a process and a folder of their own. A ```text block that directly
follows one is what it prints, exactly. Links to files of this repository lead somewhere.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])

_BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n?^```text\n(?P<output>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"\]\((?!https?:|#)(?P<target>[^)#]+)")

# Runs one page. Blank lines before each block keep the page's own line numbers, so that a
# traceback, and the line comments in generated functions, point into the page.
_RUNNER = """
import contextlib, io, json, sys, types
page, blocks = json.load(sys.stdin)
module = sys.modules["__main__"] = types.ModuleType("__main__")
printed = []
for line, code in blocks:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile("\\n" * line + code, page, "exec"), vars(module))
    printed.append(out.getvalue())
json.dump(printed, sys.stdout)
"""


@dataclass(frozen=True)
class Block:
    """One piece of code on a page: where it starts (lines before it), what it says it prints."""

    line: int
    code: str
    output: str | None


def blocks(text: str) -> list[Block]:
    return [
        Block(text.count("\n", 0, found.start("code")), found["code"], found["output"])
        for found in _BLOCK.finditer(text)
    ]


def run(page: Path, code: list[Block], folder: Path) -> list[str]:
    """Run the blocks in order and return what each printed; fail with the page's traceback."""
    done = subprocess.run(
        [sys.executable, "-c", _RUNNER],
        input=json.dumps([str(page), [(block.line, block.code) for block in code]]),
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    if done.returncode:
        pytest.fail(done.stderr, pytrace=False)
    printed: list[str] = json.loads(done.stdout)
    return printed


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page.read_text())], ids=str)
def test_code_on_the_page_runs_and_prints_what_it_says(page, tmp_path):
    code = blocks(page.read_text())
    for block, printed in zip(code, run(page, code, tmp_path), strict=True):
        if block.output is not None:
            assert printed == block.output, f"{page}:{block.line + 1}"


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page):
    targets = [found["target"] for found in _LINK.finditer(page.read_text())]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_page_can_be_found():
    index = (ROOT / "docs" / "README.md").read_text()
    named = {found["target"] for found in _LINK.finditer(index)}
    assert {page.name for page in ROOT.glob("docs/*.md")} - {"README.md"} <= named


def test_a_page_that_is_wrong_is_found(tmp_path):
    page = tmp_path / "page.md"
    text = "# Page\n\n```python\nx = 1\n```\n\n```python\nprint(x)\n```\n\n```text\n2\n```\n"
    first, second = blocks(text)
    assert (first.line, first.output, second.line, second.output) == (3, None, 7, "2\n")
    assert run(page, [first, second], tmp_path) == ["", "1\n"]
    with pytest.raises(pytest.fail.Exception, match=r"page\.md\", line 8"):
        run(page, [Block(7, "print(y)\n", None)], tmp_path)
