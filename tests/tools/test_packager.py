"""What users install. The Debian packages and the image are tried whole in the virtual machine (`tests/vm/test_packages.py`)."""

from __future__ import annotations

import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from packager import manpage, wheel
from packager.deb import changelog
from packager.versions import debian_version, project_version, set_version
from support.product import companions
from testbed.checkout import CHECKOUT

import pykubelet
from pykubelet.app.commands import all_commands
from pykubelet.app.flags_table import ALL

EPOCH_S = 1_700_000_000


def test_the_project_has_one_version() -> None:
    assert project_version(CHECKOUT) == pykubelet.__version__


def test_another_version_is_set_in_both_files(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "src/pykubelet/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / name, tmp_path / name)
    set_version(tmp_path, "9.8.7")
    assert project_version(tmp_path) == "9.8.7"
    assert '__version__ = "9.8.7"' in (tmp_path / "src/pykubelet/__init__.py").read_text()


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.2.0", "0.2.0"), ("0.2.0rc1", "0.2.0~rc1"), ("0.2.0.dev3", "0.2.0~dev3"), ("1.0.0b2", "1.0.0~b2")],
)
def test_debian_sorts_versions_as_python_does(version: str, expected: str) -> None:
    assert debian_version(version) == expected


@pytest.mark.skipif(shutil.which("dpkg") is None, reason="needs dpkg")
@pytest.mark.parametrize("version", ["0.2.0rc1", "0.2.0.dev3", "1.0.0b2"])
def test_debian_sorts_versions_before_a_release_before_it(version: str) -> None:
    final = re.sub(r"\.?[a-z].*", "", version)
    words = ["dpkg", "--compare-versions", debian_version(version), "lt", final]
    assert subprocess.run(words, check=False).returncode == 0


def test_the_wheel_has_the_agent_the_programs_beside_it_and_no_doubles(tmp_path: Path) -> None:
    built = wheel.build_wheel(CHECKOUT, tmp_path, wheel.find_uv(CHECKOUT))
    assert [path.name for path in tmp_path.iterdir()] == [built.name]
    with zipfile.ZipFile(built) as archive:
        names = set(archive.namelist())
        entries = archive.read(f"pykubelet-{pykubelet.__version__}.dist-info/entry_points.txt").decode()
    for program in ("pykubelet", "kubelet"):
        assert f"{program} = pykubelet.app.cli:main" in entries
    assert "csi-local = pykubelet_csi_local.command:CSI_LOCAL" in entries.partition("[pykubelet.commands]\n")[2]
    wanted = {
        str(path.relative_to(CHECKOUT / "src"))
        for path in (CHECKOUT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and "testing" not in path.parts
    }
    assert {name.partition("/")[0] for name in wanted} == {"pykubelet", *companions()}
    assert {name for name in names if ".dist-info/" not in name} == wanted


def test_every_library_and_build_tool_is_pinned_by_hash(tmp_path: Path) -> None:
    wheel.export_requirements(CHECKOUT, wheel.find_uv(CHECKOUT), tmp_path / "requirements.txt")
    for path in (tmp_path / "requirements.txt", wheel.BUILD_TOOLS):
        blocks = re.findall(r"^([\w-]+)==(?:.*\\\n)+.*", path.read_text(), re.MULTILINE)
        assert blocks and len(blocks) == len(re.findall(r"^[\w-]+==", path.read_text(), re.MULTILINE))
        assert "--hash=sha256:" in path.read_text()


def test_compiled_files_stay_valid_and_name_the_place_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("VALUE = 1\n")
    python = Path(shutil.which("python3") or "")
    wheel.compile_tree(tmp_path, "/usr/lib/there", EPOCH_S, python)
    (compiled,) = (tmp_path / "__pycache__").iterdir()
    data = compiled.read_bytes()
    # PEP 552: no flags, then the time and the size of the source
    assert data[4:16] == bytes(4) + EPOCH_S.to_bytes(4, "little") + (tmp_path / "one.py").stat().st_size.to_bytes(
        4, "little"
    )
    assert int((tmp_path / "one.py").stat().st_mtime) == EPOCH_S
    assert b"/usr/lib/there/one.py" in data and str(tmp_path).encode() not in data


def test_the_manual_page_has_all_flags_and_commands() -> None:
    page = manpage.render(EPOCH_S)
    plain = page.replace("\\-", "-")
    assert [name for name in ALL if rf"\fB--{name}\fR" not in plain] == []
    assert [name for name in all_commands() if f".SS pykubelet {name}" not in plain] == []
    assert f'"2023-11-14" "pykubelet {pykubelet.__version__}"' in page


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_the_manual_page_is_formatted_without_complaints() -> None:
    command = ["groff", "-man", "-Tutf8", "-ww", "-z"]
    done = subprocess.run(command, input=manpage.render(EPOCH_S), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_changelog_is_in_debians_format() -> None:
    lines = changelog("0.2.0~rc1", EPOCH_S).splitlines()
    assert lines[0] == "pykubelet (0.2.0~rc1) unstable; urgency=medium"
    assert lines[-1].endswith(">  Tue, 14 Nov 2023 22:13:20 +0000")


@pytest.mark.parametrize("unit", ["pykubelet.service", "pykubelet-as-kubelet.kubelet.service"])
def test_units_are_watched_and_restarted(unit: str) -> None:
    """What systemd does with them is tested in the virtual machine."""
    rows = (CHECKOUT / "debian" / unit).read_text().splitlines()
    for row in (
        "Restart=always",
        "WatchdogSec=60s",
        "TimeoutStopSec=10s",
        "Delegate=yes",
        "WantedBy=multi-user.target",
    ):
        assert row in rows


def test_the_local_api_is_a_service_that_one_command_switches_on() -> None:
    """It is not enabled at first. While it runs, it has the agent's flags for joining in a file that the agent's service reads."""
    unit = (CHECKOUT / "debian/pykubelet.pykubelet-local-api.service").read_text().splitlines()
    for row in (
        "Restart=always",
        "Before=pykubelet.service",
        "RuntimeDirectoryPreserve=restart",
        "StateDirectoryMode=0700",
    ):
        assert row in unit
    rules = (CHECKOUT / "debian/rules").read_text().splitlines()
    (installed,) = (row for row in rules if "--name=pykubelet-local-api" in row)
    assert "--no-enable" in installed
    agent = (CHECKOUT / "debian/pykubelet.service").read_text()
    join = CHECKOUT / "debian/join-local-api"
    assert join.stat().st_mode & 0o111 and "join=/run/pykubelet-local-api/agent.env" in join.read_text()
    assert "EnvironmentFile=-/run/pykubelet-local-api/agent.env\n" in agent
    assert " $PYKUBELET_JOIN_ARGS $PYKUBELET_ARGS\n" in agent, "people's own flags come last, so that they count"


def test_cri_docker_is_a_service_that_the_agents_start_after() -> None:
    name = "pykubelet-cri-docker.service"
    rows = (CHECKOUT / "debian" / f"pykubelet.{name}").read_text().splitlines()
    for row in ("Restart=always", "TimeoutStopSec=10s", "TasksMax=infinity", "WantedBy=multi-user.target"):
        assert row in rows
    for unit in ("pykubelet.service", "pykubelet-as-kubelet.kubelet.service"):
        assert re.search(rf"^After=.*{name}$", (CHECKOUT / "debian" / unit).read_text(), re.MULTILINE)
    rules = (CHECKOUT / "debian/rules").read_text().splitlines()
    (installed,) = (row for row in rules if "--name=pykubelet-cri-docker" in row)
    assert "--no-enable" in installed, "whether the machine has Docker is not known"
    first = next(row for row in rules if row.startswith("\tdh_installsystemd"))
    assert "--name" not in first, "without a name it takes all units that are installed by then"
