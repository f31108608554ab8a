"""Tables in small files of the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from pykubelet.edges.host.fs.text_files import read_number, read_table


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("anon 4096\nfile 0\n", {"anon": 4096, "file": 0}),
        ("anon 4096\nfile 0", {"anon": 4096, "file": 0}),
        ("anon max\nfile 1\n", {"file": 1}),
        ("cpu  1 2 3\nbtime 1700000000\nintr 5 6\n", {"btime": 1700000000}),
        ("cpu 1 2\nempty\nbtime 7\n", {"btime": 7}),
        ("a b c\nbtime\nrest 2 \n\n", {"rest": 2}),
        ("", {}),
    ],
)
def test_a_table_has_the_lines_of_a_name_and_a_number(tmp_path: Path, text: str, table: dict[str, int]) -> None:
    (tmp_path / "file").write_text(text)
    assert read_table(str(tmp_path / "file")) == table


@pytest.mark.parametrize(("text", "number"), [("12\n", 12), ("-1\n", -1), ("max\n", None), ("", None), ("-\n", None)])
def test_a_number_stands_alone(tmp_path: Path, text: str, number: int | None) -> None:
    (tmp_path / "file").write_text(text)
    assert read_number(str(tmp_path / "file")) == number
