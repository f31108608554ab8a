"""The guides for contributors name files and names that exist, their links lead somewhere, and their samples run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from support.samples import CHECKS, samples

CHECKOUT = Path(__file__).parents[1]
PAGES = [
    CHECKOUT / "CONTRIBUTING.md",
    CHECKOUT / "SECURITY.md",
    CHECKOUT / "docs/errors.md",
    *sorted((CHECKOUT / "docs/recipes").glob("*.md")),
]
#: All pages of the checkout, in which links are checked.
LINKED = [*sorted(CHECKOUT.glob("*.md")), CHECKOUT / "bench/README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]
_FILE = re.compile(r"`((?:\w+/)+\w+\.(?:py|txt|yaml|md))`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
RECIPES = sorted((CHECKOUT / "docs/recipes").glob("*.md"))
#: A page that names much of the code, too.
ERRORS = CHECKOUT / "docs/errors.md"
#: A name of our code: with an underscore, in capitals, or in camel case.
_NAME = re.compile(r"`([A-Za-z_]\w*_\w+|[A-Z][A-Z_]{2,}|[A-Z][a-z]+[A-Z]\w+)(?:\([^`]*\))?`")


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_files_of_recipes_exist(page: Path) -> None:
    """Paths begin at the checkout, at `src` or at `src/pykubelet`."""
    named = set(_FILE.findall(page.read_text()))
    roots = CHECKOUT, CHECKOUT / "src", CHECKOUT / "src/pykubelet"
    assert sorted(name for name in named if not any((root / name).exists() for root in roots)) == []


@pytest.mark.parametrize("page", LINKED, ids=[str(page.relative_to(CHECKOUT)) for page in LINKED])
def test_links_lead_to_pages_and_headings_that_exist(page: Path) -> None:
    missing = []
    for link in _LINK.findall(page.read_text()):
        name, _, heading = link.partition("#")
        target = page.parent / name if name else page
        if "://" not in link and (not target.exists() or (heading and heading not in headings_of(target))):
            missing.append(link)
    assert missing == []


@cache
def headings_of(page: Path) -> frozenset[str]:
    """As links name them: in lower case, with dashes for spaces, and without punctuation."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return frozenset(re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles)


def test_the_guide_links_every_recipe() -> None:
    recipes = {f"docs/recipes/{page.name}" for page in (CHECKOUT / "docs/recipes").glob("*.md")}
    assert recipes <= set(_LINK.findall((CHECKOUT / "CONTRIBUTING.md").read_text()))


@pytest.mark.parametrize("page", [*RECIPES, ERRORS], ids=[page.stem for page in [*RECIPES, ERRORS]])
def test_names_in_recipes_exist(page: Path) -> None:
    """In our code, or in the samples of the page."""
    text = page.read_text()
    known = words_of_code() | words("\n".join(code for _, code in samples(text)))
    assert sorted({name for name in _NAME.findall(text) if name not in known}) == []


@cache
def words_of_code() -> frozenset[str]:
    roots = ("src", "tests", "bench", "tools")
    return frozenset[str]().union(
        *(words(path.read_text()) for root in roots for path in (CHECKOUT / root).rglob("*.py"))
    )


def words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text))


def run_samples(page: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(CHECKOUT / name) for name in ("tests", "src", "tools"))
    argv = [sys.executable, "-m", "support.samples", str(page)]
    return subprocess.run(
        argv, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("page", RECIPES, ids=[page.stem for page in RECIPES])
def test_samples_of_recipes_run(page: Path) -> None:
    done = run_samples(page)
    assert done.returncode == 0, done.stderr


def test_every_check_has_its_recipe() -> None:
    assert CHECKS.keys() <= {page.stem for page in RECIPES}


@pytest.mark.parametrize(
    ("sample", "error"),
    [
        ("# a/b.py\nfrom pykubelet.edges.host import mounts", "ImportError: cannot import name 'mounts'"),
        ("# serve/metrics/kubelet.py\nx = Sample(1)", "NameError: name 'Sample' is not defined"),
        ("# a/b.py\ndef f(:", "SyntaxError"),
        ("x = 1", "ValueError: the sample names no file in its first line: x = 1"),
    ],
)
def test_a_sample_that_does_not_run_is_found(tmp_path: Path, sample: str, error: str) -> None:
    (tmp_path / "page.md").write_text(f"1. A sample:\n\n```python\n{sample}\n```\n")
    done = run_samples(tmp_path / "page.md")
    assert done.returncode == 1 and error in done.stderr
