"""The pages of `docs/` as their readers use them: the blocks of a section, to be typed as they stand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str, language: str, section: str) -> list[str]:
    """The blocks of a language in the section of this heading, without those of the next heading of whatever level."""
    found = [
        text for heading, kind, text in _all_blocks((DOCS / page).read_text()) if (heading, kind) == (section, language)
    ]
    assert found, f"{page} has no block {language!r} in the section {section!r}"
    return found


def _all_blocks(text: str) -> Iterator[tuple[str, str, str]]:
    """(heading, language, block) of every block."""
    heading, kind = "", ""
    block: list[str] | None = None
    for line in text.splitlines(keepends=True):
        if line.startswith("```"):
            if block is None:
                kind, block = line[3:].strip(), []
            else:
                yield heading, kind, "".join(block)
                block = None
        elif block is not None:
            block.append(line)
        elif line.startswith("#"):
            heading = line.lstrip("#").strip()
