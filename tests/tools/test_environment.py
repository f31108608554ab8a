"""What `make env` leaves behind."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from testbed import environment


def test_the_program_that_makes_the_environment_is_pinned() -> None:
    text = Path(environment.__file__).with_name("uv.txt").read_text()
    assert re.search(r"^uv==[0-9.]+ ", text, re.MULTILINE)
    assert "--hash=sha256:" in text


def test_bytecode_follows_the_source(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("VALUE = 1\n")
    environment.compile_sources(Path(sys.executable), tmp_path)
    (compiled,) = (tmp_path / "__pycache__").iterdir()
    first = compiled.read_bytes()
    module.write_text("VALUE = 22\n")
    os.utime(module, (1, 1))
    environment.compile_sources(Path(sys.executable), tmp_path)
    assert compiled.read_bytes() != first
