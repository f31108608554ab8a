"""The recipes of CONTRIBUTING.md name files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
PAGES = [CHECKOUT / "CONTRIBUTING.md", *sorted((CHECKOUT / "docs/recipes").glob("*.md"))]
_FILE = re.compile(r"`((?:\w+/)+\w+\.(?:py|txt|yaml|md))`")


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_files_of_recipes_exist(page: Path) -> None:
    """Paths begin at the checkout or at `src/pykubelet`."""
    named = set(_FILE.findall(page.read_text()))
    roots = CHECKOUT, CHECKOUT / "src/pykubelet"
    assert sorted(name for name in named if not any((root / name).exists() for root in roots)) == []
