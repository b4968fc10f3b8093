"""The pages of the documentation are true: their code runs, and prints what they say.

`scripts/pages.py` says which code is meant. Links to files of this repository lead somewhere.
"""

import re
import subprocess
import sys

import pages
import pytest

_LINK = re.compile(r"\]\((?!https?:|#)(?P<target>[^)#]+)")
with_code = [page for page in pages.PAGES if pages.blocks(page.read_text())]


def name(page):
    return str(page.relative_to(pages.ROOT))


@pytest.mark.parametrize("page", with_code, ids=name)
def test_code_on_the_page_runs_and_prints_what_it_says(page):
    text = page.read_text()
    try:
        printed = pages.run(page.name, text)
    except pages.PageError as error:
        pytest.fail(str(error), pytrace=False)
    assert pages.renewed(text, printed) == text, f"python scripts/pages.py --write {name(page)}"


@pytest.mark.parametrize("page", pages.PAGES, ids=name)
def test_links_lead_somewhere(page):
    targets = [found["target"] for found in _LINK.finditer(page.read_text())]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_page_can_be_found():
    index = (pages.ROOT / "docs" / "README.md").read_text()
    named = {found["target"] for found in _LINK.finditer(index)}
    assert {page.name for page in pages.ROOT.glob("docs/*.md")} - {"README.md"} <= named


@pytest.mark.parametrize("example", sorted(pages.ROOT.glob("examples/*.py")), ids=name)
def test_the_example_runs(example):
    done = subprocess.run(
        [sys.executable, example], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


PAGE = "# Page\n\n```python\nx = 1\n```\n\n```python\nprint(x)\n```\n\n```text\n2\n```\n"


def test_a_page_that_is_wrong_is_found_and_renewed():
    first, second = pages.blocks(PAGE)
    assert (first.line, first.output, second.line, second.output) == (3, None, 7, "2\n")
    printed = pages.run("page.md", PAGE)
    assert printed == ["", "1\n"]
    assert pages.renewed(PAGE, printed) == PAGE.replace("2\n", "1\n")


def test_an_error_points_into_the_page():
    with pytest.raises(pages.PageError, match=r'page\.md", line 8'):
        pages.run("page.md", PAGE.replace("x = 1", "y = 1"))
