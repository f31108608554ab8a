"""The index of the decision records states of each record what the record itself states."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs/decisions"
RECORDS = sorted(FOLDER.glob("[0-9]*.md"))
_HEAD = re.compile(r"# (\d{4}): (.+)\n\nStatus: (.+)\nDate: (\d{4}-\d\d-\d\d)\n")
_LINK = re.compile(r"\[(\d{4})\]\(([^)]+)\)")


@dataclass(frozen=True)
class Record:
    number: str
    title: str
    status: str
    date: str


def read(path: Path) -> Record:
    head = _HEAD.match(path.read_text())
    assert head is not None, f"{path.name} begins with another head"
    return Record(*head.groups())


@pytest.mark.parametrize("path", RECORDS, ids=[path.stem[:4] for path in RECORDS])
def test_the_index_has_each_record_as_it_is(path: Path) -> None:
    record = read(path)
    shown = _LINK.sub(r"\1", record.status.split(", supersedes")[0])
    row = f"| [{record.number}]({path.name}) | {record.title} | {record.date} | {shown} |"
    assert row in (FOLDER / "README.md").read_text().splitlines()


@pytest.mark.parametrize("path", RECORDS, ids=[path.stem[:4] for path in RECORDS])
def test_a_superseded_record_and_its_successor_name_each_other(path: Path) -> None:
    record = read(path)
    other = "superseded by" if "supersedes" in record.status else "supersedes"
    for number, name in _LINK.findall(record.status):
        assert (FOLDER / name).exists()
        assert other in (status := read(FOLDER / name).status) and record.number in status, number
