"""The guides for contributors name files that exist, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
PAGES = [CHECKOUT / "CONTRIBUTING.md", CHECKOUT / "SECURITY.md", *sorted((CHECKOUT / "docs/recipes").glob("*.md"))]
_FILE = re.compile(r"`((?:\w+/)+\w+\.(?:py|txt|yaml|md))`")
_LINK = re.compile(r"\]\(([^)#\s]+)")


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_files_of_recipes_exist(page: Path) -> None:
    """Paths begin at the checkout or at `src/pykubelet`."""
    named = set(_FILE.findall(page.read_text()))
    roots = CHECKOUT, CHECKOUT / "src/pykubelet"
    assert sorted(name for name in named if not any((root / name).exists() for root in roots)) == []


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_links_of_guides_lead_somewhere(page: Path) -> None:
    links = [link for link in _LINK.findall(page.read_text()) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_guide_links_every_recipe() -> None:
    recipes = {f"docs/recipes/{page.name}" for page in (CHECKOUT / "docs/recipes").glob("*.md")}
    assert recipes <= set(_LINK.findall((CHECKOUT / "CONTRIBUTING.md").read_text()))
