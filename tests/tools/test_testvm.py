"""The host's side of `make test-vm`, without the machine: names of parts, qemu's command line, the share, the closing line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from testbed import checkout
from testbed.checkout import CHECKOUT
from testbed.host import TestbedError, wait_until
from testvm import image, kubernetes_archive, machine, report
from testvm.parts import LIMITS_S, PARTS, POWER_CUT, REBOOT


def test_every_part_has_a_limit_and_runs_tests_that_exist() -> None:
    assert set(LIMITS_S) == set(PARTS)
    paths = {path for steps in PARTS.values() for step in steps for path in step if path not in (POWER_CUT, REBOOT)}
    assert [path for path in sorted(paths) if not (CHECKOUT / path).exists()] == []
    own = {str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / "tests/vm").glob("test_*.py")}
    assert own <= paths, "a test that no part runs"


def test_qemu_gets_two_numa_nodes_no_kvm_and_no_network(tmp_path: Path) -> None:
    words = machine.Machine(tmp_path, memory_gib=6, cpus=4).command(tmp_path / "share.raw", True, [])
    text = " ".join(words)
    assert "tcg" in text and "kvm" not in text
    assert "nodeid=0,cpus=0-1,memdev=m0" in text and "nodeid=1,cpus=2-3,memdev=m1" in text
    assert "restrict=on" in text and "hostfwd" not in text
    drives = [word for word in words if word.startswith("file=")]
    assert [drive.partition(",")[0].rpartition("/")[2] for drive in drives] == [
        *("disk.raw", "swap.raw", "disk.raw", "share.raw")  # as /dev/vda to /dev/vdd, whose names the image's fstab has
    ]
    assert [drive.rpartition("snapshot=")[2] for drive in drives] == ["on", "on", "on", "off"]


def test_what_is_written_on_the_share_comes_back(tmp_path: Path) -> None:
    if shutil.which("debugfs", path="/usr/sbin:/sbin") is None:
        pytest.skip("needs e2fsprogs, which make test-vm installs")
    content, disk, results = tmp_path / "content", tmp_path / "share.raw", tmp_path / "results"
    (content / "results/deeper").mkdir(parents=True)
    (content / "results/deeper/file").write_text("written inside")
    results.mkdir()
    image.make_disk(disk, 64 << 20, content, "share")
    machine.fetch(disk, results)
    assert (results / "deeper/file").read_text() == "written inside"


def test_the_share_has_new_files_of_the_checkout_and_no_ignored_ones(tmp_path: Path) -> None:
    checkout.copy_checkout(tmp_path / "out")
    assert (tmp_path / "out/src/pykubelet/__init__.py").exists()
    assert not (tmp_path / "out/.venv").exists()
    with pytest.raises(TestbedError, match="ls-files"):
        checkout.checkout_files(tmp_path / "out")


def test_the_report_ends_with_the_sum_of_all_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "state.json").write_text(json.dumps({"seconds": {"life": 61.2, "groups": 200}}))
    for name, numbers in (("life", 'tests="2" failures="0"'), ("groups", 'tests="5" failures="1"')):
        suite = f'<testsuites><testsuite {numbers} errors="0" skipped="1"></testsuite></testsuites>'
        (tmp_path / f"{name}-0.xml").write_text(suite)
    report.show(tmp_path, 300.0)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].strip("= ") == "1 failed, 4 passed, 2 skipped in 300.00s"
    assert any(line.split() == ["life", "61", "s"] for line in lines)


def test_kubernetes_packages_have_the_programs_and_the_drop_in(tmp_path: Path) -> None:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("needs dpkg")
    binaries, out = tmp_path / "binaries", tmp_path / "out"
    binaries.mkdir()
    for name in ("kubeadm", "kubectl", "crictl"):
        (binaries / name).write_text("#!/bin/sh\necho version v1.36.9\n")
        (binaries / name).chmod(0o755)
    kubernetes_archive.build(binaries, out)
    index = (out / "Packages").read_text().split("\n\n")
    fields = [dict(line.split(": ", 1) for line in stanza.splitlines()) for stanza in index]
    assert {package["Package"]: package["Version"] for package in fields} == dict.fromkeys(
        kubernetes_archive.PACKAGES, "1.36.9-1.1"
    )
    assert [package["Package"] for package in fields if package.get("Depends") == "cri-tools"] == ["kubeadm"]
    assert all((out / package["Filename"]).stat().st_size == int(package["Size"]) for package in fields)
    listed = subprocess.run(["dpkg-deb", "-c", out / "kubeadm.deb"], capture_output=True, text=True, check=True).stdout
    assert "./usr/bin/kubeadm" in listed and "kubelet.service.d/10-kubeadm.conf" in listed


#: `python -m testvm exec` with a program in place of qemu that writes its process id into a file.
WITHOUT_QEMU = """
import sys
from pathlib import Path
from testvm import __main__ as testvm

def run(virtual, script, results, limit_s):
    testvm.machine._follow(["sh", "-c", f"echo $$ > {script}; exec sleep 60"], results, limit_s)

testvm.machine.run = run
sys.exit(testvm.main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="testvm needs root")
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_the_machine_ends_with_testvm(ending: signal.Signals, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    options = ["--as-is", "--folder", str(tmp_path), "--results", str(tmp_path / "output"), "exec", str(pid_file)]
    with subprocess.Popen([sys.executable, "-c", WITHOUT_QEMU, *options], cwd=CHECKOUT / "tools") as process:
        assert wait_until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"), 30, 0.05)
        process.send_signal(ending)
        assert process.wait(30) == (130 if ending == signal.SIGTERM else -signal.SIGKILL)
    machine = int(pid_file.read_text())
    assert wait_until(lambda: not Path(f"/proc/{machine}").exists(), 30, 0.05)
