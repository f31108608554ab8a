"""Drivers of flexVolume volumes as real programs: what is found, and what their answers mean."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.flex_driver import DRIVER, NOT_SUPPORTED, FlexScript

from pykubelet.edges.plugins.flexvolume import (
    ANSWER_BYTES,
    FlexCallError,
    call_driver,
    init_driver,
    scan_drivers,
)


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_drivers_are_executables_with_the_name_of_their_directory(tmp_path: Path) -> None:
    root = tmp_path / "exec"
    assert scan_drivers(str(root)).programs == {} and (root.stat().st_mode & 0o777) == 0o755
    driver = FlexScript(root)
    for name in (".hidden~x", "v~not-executable", "v~missing", "plain"):
        (root / name).mkdir()
    program(root / ".hidden~x" / "x", "")
    (root / "v~not-executable" / "not-executable").touch()
    program(root / "plain" / "plain", "")
    (root / "a-file").touch()
    found = scan_drivers(str(root))
    assert found.programs.keys() == {DRIVER, "plain"}
    assert found.programs[DRIVER].path == str(driver.program)
    assert str(root) in found.directories and str(driver.folder) in found.directories
    os.utime(driver.program, ns=(1, 1))
    assert scan_drivers(str(root)).programs[DRIVER] != found.programs[DRIVER]


def test_the_number_of_drivers_is_bounded(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"v~{number}").mkdir()
        program(tmp_path / f"v~{number}" / str(number), "")
    found = scan_drivers(str(tmp_path))
    assert len(found.programs) == 64 and len(found.directories) == 65


def test_capabilities_have_defaults(tmp_path: Path) -> None:
    driver = FlexScript(tmp_path)
    found = init_driver(scan_drivers(str(tmp_path)).programs[DRIVER])
    assert (found.name, found.attaches, found.applies_group, found.relabels) == (DRIVER, False, True, True)
    driver.say("init", {"status": "Success"})
    assert init_driver(scan_drivers(str(tmp_path)).programs[DRIVER]).attaches
    driver.say("init", {"status": "Success", "capabilities": {"fsGroup": False, "more": 1}, "other": []})
    assert not init_driver(scan_drivers(str(tmp_path)).programs[DRIVER]).applies_group


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            """echo '{"status": "Failure", "message": "no disk"}'; exit 1""",
            "mount command failed, status: Failure, reason: no disk",
        ),
        ("echo oops", "mount command failed: the driver did not print an answer in JSON: 'oops\\\\n'"),
        ("echo '[[['; exit 3", "mount command failed: exit status 3, the driver did not print an answer in JSON"),
        ("""echo '{"status": 7}'""", "did not print an answer in JSON"),
        ("""echo '{"status": "Success"}'; exit 4""", "exit status 4, though the driver reports success"),
        ("""echo warning >&2; echo '{"status": "Success"}'""", "did not print an answer in JSON"),
        ("yes '[' | head -c 10000000", "did not print an answer in JSON"),
        ("kill -9 $$", "signal: killed"),
    ],
)
def test_a_call_that_fails(tmp_path: Path, script: str, words: str) -> None:
    with pytest.raises(FlexCallError, match=words) as failed:
        call_driver(program(tmp_path / "driver", script), "mount", ("/a",), 30.0)
    assert not failed.value.is_unsupported and not failed.value.is_unfinished
    assert len(str(failed.value)) < ANSWER_BYTES / 10


def test_a_command_that_a_driver_does_not_have(tmp_path: Path) -> None:
    driver = FlexScript(tmp_path)
    driver.say("mount", dict(NOT_SUPPORTED))
    with pytest.raises(FlexCallError) as failed:
        call_driver(str(driver.program), "mount", ("/a", "{}"), 30.0)
    assert failed.value.is_unsupported


def test_a_driver_that_hangs_or_is_gone(tmp_path: Path) -> None:
    driver = FlexScript(tmp_path)
    driver.hang("mount")
    with pytest.raises(FlexCallError, match="did not end within 1s") as failed:
        call_driver(str(driver.program), "mount", ("/a", "{}"), 1.0)
    assert failed.value.is_unfinished
    with pytest.raises(FlexCallError, match="not installed"):
        call_driver(f"{tmp_path}/none", "mount", (), 1.0)
    with pytest.raises(FlexCallError, match="cannot be started"):
        call_driver(str(driver.program), "mount", ("x" * (1 << 20),), 1.0)
