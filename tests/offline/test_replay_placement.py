"""`pykubelet replay` of a recording of placement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from provide.placement.test_placement_recording import busy_node, recorded

from pykubelet.app import cli


def replayed(folder: Path, capsys: pytest.CaptureFixture[str], document: Any, *more: str) -> tuple[int, str, str]:
    file = folder / "recording.json"
    file.write_text(json.dumps(document))
    code = cli.main(["replay", str(file), *more])
    out, err = capsys.readouterr()
    return code, out, err.replace(f"{folder}/", "")


def test_what_was_decided_and_that_it_would_be_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = replayed(tmp_path, capsys, recorded(busy_node("shown")))
    lines = out.splitlines()
    assert code == 0
    assert lines[0].startswith("Placement, ")
    assert lines[0].endswith("1.2.3: CPUs static, topology restricted by container, memory Static")
    assert lines[-1] == "every step came out as recorded"
    assert any(line.endswith("admit random/pod-0 (pod-0-uid)") for line in lines)
    assert any("-> app-0: CPUs " in line for line in lines)
    assert any("-> rejected, TopologyAffinityError: Resources cannot be" in line for line in lines)
    assert any("-> asks the device plugin of example.com/gpu for " in line for line in lines)
    assert any("release pod-" in line for line in lines)


def test_differences_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = recorded(busy_node("different"))
    document["rules"]["options"] = None
    code, out, _ = replayed(tmp_path, capsys, document)
    assert code == 3
    assert "DIFFERS shared: recorded " in out
    assert out.splitlines()[-1].endswith("steps came out differently")


def test_a_wrong_file_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = {**recorded(busy_node("wrong")), "version": 7}
    assert replayed(tmp_path, capsys, document)[::2] == (
        1,
        "Error: recording.json: version: 7 is not supported, only 1\n",
    )


def test_what_an_extension_would_have_placed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "highest.py"
    path.write_text(
        "from pykubelet.extension import Extension\n\n\nclass Highest(Extension):\n    name, api = 'highest', '1.0'\n\n"
        "    def place(self, request, machine):\n"
        "        nodes = request.numa_nodes or ()\n"
        "        near = {cpu.id for cpu in machine.cpus if cpu.numa_node in nodes}\n"
        "        order = sorted(machine.free, key=lambda cpu: (cpu in near, cpu))\n"
        "        return None if request.whole_cores else frozenset(order[-request.cpus :])\n"
    )
    code, out, err = replayed(tmp_path, capsys, recorded(busy_node("shown")), "--extension", str(path))
    assert code == 3 and "DIFFERS" in out and err == ""
    path.write_text(path.read_text().replace("return None if request.whole_cores else", "return len(order) or"))
    _, _, err = replayed(tmp_path, capsys, recorded(busy_node("shown")), "--extension", str(path))
    assert err.startswith("Error: an extension has failed: highest: place: the answer must be a frozenset of CPU ids")
