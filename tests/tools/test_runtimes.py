"""The runtimes that tests can be run on, and the table of their results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from testbed import runtimes
from testbed.host import TestbedError

REPORT = """<testsuites><testsuite>
<testcase classname="tests.agent.test_life" name="test_a"/>
<testcase classname="tests.agent.test_life" name="test_b"><failure message="x">x</failure></testcase>
<testcase classname="tests.agent.test_logs" name="test_c"><error message="x">x</error></testcase>
<testcase classname="tests.agent.test_logs" name="test_d"><skipped message="x">x</skipped></testcase>
</testsuite></testsuites>"""


def test_every_file_of_tests_is_there() -> None:
    checkout = Path(__file__).resolve().parents[2]
    assert not [name for name in runtimes.TESTS if not (checkout / name).is_file()]


def test_a_table_names_what_failed(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    result = runtimes.read_report("forky", "containerd 2.1.9", report)
    assert (result.passed, result.failed, result.skipped) == (1, 2, 1)
    assert runtimes.render([result]) == [
        "RUNTIME  PASSED  FAILED  SKIPPED  VERSION",
        "forky    1       2       1        containerd 2.1.9",
        "forky: test_life::test_b",
        "forky: test_logs::test_c",
    ]


def test_a_folder_must_have_a_runtime(tmp_path: Path) -> None:
    assert runtimes.find(runtimes.INSTALLED, tmp_path) is None
    with pytest.raises(TestbedError, match="has neither containerd nor crio nor dockerd"):
        runtimes.find(str(tmp_path), tmp_path)
    kept = tmp_path / "docker-trixie" / "bin"
    kept.mkdir(parents=True)
    (kept / "containerd").touch()
    assert runtimes.find("docker-trixie", tmp_path) == kept, "it is unpacked once"
    (tmp_path / "crio").touch()
    assert runtimes.find(str(tmp_path), tmp_path) == tmp_path


def test_a_node_keeps_its_runtime(tmp_path: Path) -> None:
    known = {"folder": str(tmp_path), "name": "x", "subnet": "10.200.0.0/22", "snapshotter": "native", "kind": "docker"}
    (tmp_path / "testbed.json").write_text(json.dumps(known))
    with pytest.raises(TestbedError, match="runs on docker, not on containerd: remove it first"):
        runtimes.prepare("containerd", tmp_path)


def programs(folder: Path, *names: str) -> Path:
    """A folder with programs of these names."""
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).touch(mode=0o755)
    return folder


def test_a_node_runs_on_the_runtime_that_comes_first_on_the_path(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    two = programs(tmp_path / "two", "containerd", "containerd-shim-runc-v2")
    crio = programs(tmp_path / "crio", "crio", "pinns")
    half = programs(tmp_path / "half", "containerd")
    search = f"{empty}:{half}:{two}:{crio}"
    assert runtimes.choose(None, search) == ("containerd", two)
    assert runtimes.choose(None, f"{crio}:{two}") == ("crio", crio)
    assert runtimes.choose("crio", search) == ("crio", crio)
    assert runtimes.choose("containerd", f"{crio}:{two}") == ("containerd", two)
    assert runtimes.choose("docker", search) == ("docker", None)
    assert runtimes.choose(None, f"{empty}:") == ("containerd", None), "that of Debian, which is installed"
    with pytest.raises(TestbedError, match="crio and pinns are not on PATH"):
        runtimes.choose("crio", str(two))
