"""Descriptors have one owner: nothing in the product gives one to the event loop, and the tests see one that is closed twice."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.close_errors import PRELOAD, REPORTS, compile_library
from support.product import source_files

#: uvloop closes the descriptor of a pipe, and then the file that it belongs to closes the same number.
PIPES = ("connect_read_pipe", "connect_write_pipe")
#: Until a connection of `sock` is made, both the loop and the caller close it: which of them has to depends on the loop.
CONNECTIONS = ("create_connection", "create_unix_connection", "open_connection", "open_unix_connection")

TWICE = """
import os
descriptor = os.dup(0)
os.close(descriptor)
try:
    os.close(descriptor)
except OSError:
    pass
"""
#: Both libuv and the file close the descriptor. uvloop ignores the error.
PIPE_OF_UVLOOP = """
import asyncio, os, uvloop

async def main():
    here, there = os.pipe()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(asyncio.Protocol, open(here, "rb", buffering=0))
    transport.close()
    await asyncio.sleep(0)
    os.close(there)

uvloop.run(main())
"""
#: libuv is second here.
LIBUV = """
import asyncio, os, uvloop

async def main():
    ours, theirs = os.pipe()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(asyncio.Protocol, open(ours, "rb", buffering=0, closefd=False))
    os.close(ours)
    transport.close()
    await asyncio.sleep(0)
    os.close(theirs)

uvloop.run(main())
"""
ONCE = "import os, subprocess; os.close(os.dup(0)); subprocess.run(['sh', '-c', 'exec 9<&-; exec 9<&-'], check=True)"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("library") / "close_errors.so"
    if not compile_library(made):  # `make test` installs them
        pytest.skip("without gcc and libc6-dev no test sees a descriptor that is closed twice")
    return made


def run_watched(library: Path, folder: Path, script: str) -> str:
    """The reports of a Python process that runs the script."""
    reports = folder / "reports"
    env = os.environ | {PRELOAD: str(library), REPORTS: str(reports)}
    subprocess.run([sys.executable, "-c", script], env=env, check=True, timeout=60)
    return reports.read_text() if reports.exists() else ""


@pytest.mark.parametrize("script", [TWICE, PIPE_OF_UVLOOP, LIBUV], ids=["Python", "uvloop's file", "libuv"])
def test_a_second_close_is_reported_with_the_stack(library: Path, tmp_path: Path, script: str) -> None:
    reports = run_watched(library, tmp_path, script)
    assert reports.count("which is not open") == 1
    assert 'File "<string>", line' in reports


def test_processes_that_close_once_and_other_programs_report_nothing(library: Path, tmp_path: Path) -> None:
    assert run_watched(library, tmp_path, ONCE) == ""


#: They run on asyncio's own loop, which alone closes the socket once it has it; and nothing is awaited before that.
ASYNCIO_ONLY = {"pykubelet_cri_docker/streams.py": ["line: open_connection"]}


def given_to_the_loop(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name = node.func.attr
        if name in PIPES or (name in CONNECTIONS and any(keyword.arg == "sock" for keyword in node.keywords)):
            yield f"line {node.lineno}: {name}"


def test_no_module_gives_a_descriptor_to_the_event_loop() -> None:
    found = {name: [*given_to_the_loop(ast.parse(path.read_text()))] for name, path in source_files().items()}
    given = {path: [re.sub(r"line \d+", "line", line) for line in lines] for path, lines in found.items() if lines}
    assert given == ASYNCIO_ONLY


def test_a_descriptor_that_is_given_to_the_event_loop_is_found() -> None:
    text = "async def f(loop, made):\n    await loop.create_connection(P, sock=made)\n    await loop.connect_read_pipe(P, made)"
    assert [*given_to_the_loop(ast.parse(text))] == ["line 2: create_connection", "line 3: connect_read_pipe"]
