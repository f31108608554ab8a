"""What the detector of blocking calls finds, and what it leaves alone."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.blocking_calls import ALLOWED, DETECTOR, PRODUCT

from pykubelet.base.kit.flight import Done, SingleFlight
from pykubelet.edges.host.fs.files import read_text

SAMPLE = """
import asyncio, os, socket, subprocess, time

async def do(call, path):
    await asyncio.sleep(0)
    call(path)

def open_file(path): open(path, "ab").close()
def open_kernel_file(_): open("/proc/self/stat").close()
def list_folder(path): os.listdir(os.path.dirname(path))
def make_folder(path): os.mkdir(path)
def wait(_): time.sleep(0.001)
def run(_): subprocess.run(["true"])
def look_up(_): socket.getaddrinfo("localhost", 1)
"""


@pytest.fixture(scope="module")
def product() -> dict[str, Any]:
    """Functions that count as functions of the product."""
    names: dict[str, Any] = {}
    exec(compile(SAMPLE, f"{PRODUCT}sample.py", "exec"), names)
    return names


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("open_file", "open"),
        ("list_folder", "os.listdir"),
        ("make_folder", "os.mkdir"),
        ("wait", "time.sleep"),
        ("run", "subprocess.Popen"),
        ("look_up", "socket.getaddrinfo"),
    ],
)
async def test_a_call_that_may_block_is_found(product: dict[str, Any], tmp_path: Path, name: str, event: str) -> None:
    with DETECTOR.observed() as found:
        await product["do"](product[name], str(tmp_path / "a"))
    assert any(entry.startswith(f"{event} ") and f" {name}\n" in entry and entry.endswith(" do") for entry in found), (
        found
    )


async def test_a_call_of_a_callback_is_found(product: dict[str, Any], tmp_path: Path) -> None:
    with DETECTOR.observed() as found:
        asyncio.get_running_loop().call_soon(product["open_file"], str(tmp_path / "a"))
        await asyncio.sleep(0)
    assert len(found) == 1


async def test_calls_in_a_thread_of_a_test_and_of_files_of_the_kernel_are_left_alone(
    product: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "a"
    with DETECTOR.observed() as found:
        path.write_text("text")
        product["open_file"](str(path))
        await product["do"](lambda _: path.read_text(), "")
        await product["do"](product["open_kernel_file"], "")
        assert await SingleFlight("test").run("read", partial(read_text, str(path)), 60) == Done("text")
    assert found == []


def test_without_a_loop_nothing_is_found(product: dict[str, Any], tmp_path: Path) -> None:
    with DETECTOR.observed() as found:
        product["open_file"](str(tmp_path / "a"))
    assert found == []


@pytest.mark.parametrize("place", ALLOWED)
def test_what_is_allowed_exists(place: str) -> None:
    module, _, function = place.partition(":")
    assert f"def {function}(" in Path(PRODUCT, module).read_text()
