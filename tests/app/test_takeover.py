"""`pykubelet takeover --check`: what it reports about pods, cgroups and volumes, and about command lines and state files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pykubelet.app import takeover
from pykubelet.app.decide_takeover import (
    Desired,
    Finding,
    FoundContainer,
    RunningPod,
    Severity,
    cgroup_findings,
    exit_code,
    misplaced_devices,
    pod_findings,
    volume_findings,
)
from pykubelet.base.api.core import Container, ObjectMeta, Pod, PodSpec
from pykubelet.base.model.containers import container_hash
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.labels import CONFIG_SOURCE
from pykubelet.desired.roster import allocation_state
from pykubelet.provide.cgroups.model import CgroupDriver
from pykubelet.provide.claims.state import decode_state as decode_claims
from pykubelet.provide.placement import cpu_state, memory_state
from pykubelet.provide.volumes.plan import DIRECTORIES

REFERENCE_STATE = Path(__file__).parents[1] / "support" / "reference_state"
WEB = Container(name="web", image="example.com/web:1")


def a_pod(uid: str = "u", container: Container = WEB, source: str = "file") -> Pod:
    meta = ObjectMeta(name="shop", namespace="default", uid=uid, annotations={CONFIG_SOURCE: source})
    return Pod(metadata=meta, spec=PodSpec(containers=(container,)))


def running(uid: str = "u", hash_: str = container_hash(WEB), source: str = "file", parent: str = "") -> RunningPod:
    return RunningPod(PodUID(uid), "default", "shop", source, parent, (FoundContainer("web", hash_),))


FILES = frozenset({"file"})


@pytest.mark.parametrize(
    ("found", "desired", "expected"),
    [
        (running(), Desired((a_pod(),), FILES), ""),
        (
            running(hash_="1"),
            Desired((a_pod(),), FILES),
            "container web of pod default/shop: is restarted: its hash is 1",
        ),
        (
            running(hash_=""),
            Desired((a_pod(),), FILES),
            "container web of pod default/shop: is restarted: it has no hash",
        ),
        (running("old"), Desired((a_pod(),), FILES), "pod default/shop: is started anew: it runs with the UID old"),
        (running(), Desired((), FILES), "pod default/shop: is ended: no manifest has it"),
        (
            running(),
            Desired((a_pod(container=Container(name="db")),), FILES),
            "is stopped: the pod has no such container",
        ),
        (
            running(source="api"),
            Desired((), FILES),
            "pod default/shop: not compared: the pods of the source api were not read",
        ),
    ],
)
def test_pods(found: RunningPod, desired: Desired, expected: str) -> None:
    texts = [f"{finding.subject}: {finding.text}" for finding in pod_findings([found], desired)]
    assert [expected in text for text in texts] == [True] * bool(expected)


@pytest.mark.parametrize(
    ("parent", "wanted", "driver", "expected"),
    [
        ("/kubepods/besteffort/podu", "/kubepods/besteffort/podu", CgroupDriver.CGROUPFS, ""),
        ("/kubepods/besteffort/podu", "/a/kubepods/besteffort/podu", CgroupDriver.CGROUPFS, "cgroupRoot"),
        ("kubepods-besteffort-podu.slice", "/kubepods/besteffort/podu", CgroupDriver.CGROUPFS, "set cgroupDriver"),
        ("/a/kubepods-podu.slice", "kubepods-podu.slice", CgroupDriver.SYSTEMD, ""),
        ("", "/kubepods/podu", CgroupDriver.CGROUPFS, ""),
    ],
)
def test_cgroups(parent: str, wanted: str, driver: CgroupDriver, expected: str) -> None:
    texts = [finding.text for finding in cgroup_findings([running(parent=parent)], {PodUID("u"): wanted}, driver)]
    assert [expected in text for text in texts] == [True] * bool(expected)


def test_volumes_of_kinds_that_are_not_known_are_named() -> None:
    found = [
        ("u", "kubernetes.io~empty-dir", "a"),
        ("u", "example.com~driver", "b"),
        ("u", "kubernetes.io~aws-ebs", "c"),
    ]
    (finding,) = volume_findings(found, DIRECTORIES)
    assert finding.subject == "volume c of pod u" and "kubernetes.io/aws-ebs" in finding.text


def test_devices_that_the_kubelet_has_in_its_fixed_folder_are_named() -> None:
    folders = ("/var/lib/kubelet/device-plugins", "/srv/kubelet/device-plugins")
    (finding,) = misplaced_devices(*folders, {"b", "a", "of-another-kubelet"}, {"a", "b", "c"})
    assert finding.severity is Severity.CHANGE and finding.subject == folders[0]
    assert "the pods a, b lose" in finding.text and f"bind {folders[0]} to {folders[1]}" in finding.text
    assert not list(misplaced_devices(*folders, {"of-another-kubelet"}, {"a"}))


def test_only_notes_are_no_change() -> None:
    assert exit_code([Finding(Severity.NOTE, "a", "b")]) == 0
    assert exit_code([Finding(Severity.CHANGE, "a", "b")]) == 1


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = takeover.main(["--check", "-o", "json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_a_flag_that_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    code, report = answer(capsys, "--", "--container-runtime", "remote")
    assert code == 1
    assert report["findings"] == [
        {"severity": "refused", "subject": "command line", "text": report["findings"][0]["text"]}
    ]
    assert "unknown flag: --container-runtime" in report["findings"][0]["text"]


def test_files_that_cannot_be_used_and_a_runtime_that_is_away(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    root = tmp_path / "root"
    (root / "device-plugins").mkdir(parents=True)
    (root / "device-plugins" / "kubelet_internal_checkpoint").write_text("{}")
    (root / "cpu_manager_state").write_text('{"policyName":"static","defaultCpuSet":"0-1","checksum":1}')
    (root / "dra_manager_state").write_text("{}")
    (root / "allocated_pods_state").write_text('{"data":"{}","checksum":1}')
    (root / "pod_sizes").write_text("pykubelet-checkpoint 99 0 0\n")
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfailCgroupV1: false\nfailSwapOn: false\n"
        f"cpuManagerPolicy: static\nreservedSystemCPUs: '0'\ncontainerRuntimeEndpoint: unix://{tmp_path}/away.sock\n"
    )
    before = sorted(path for path in tmp_path.rglob("*"))
    code, report = answer(capsys, "--", "--config", str(config), "--root-dir", str(root))
    severities = {finding["subject"].rpartition("/")[2]: finding["severity"] for finding in report["findings"]}
    assert (code, severities) == (
        1,
        {
            "resource managers": "refused",
            "dra_manager_state": "refused",
            "kubelet_internal_checkpoint": "change",
            "allocated_pods_state": "change",
            "pod_sizes": "change",
            "container runtime": "refused",
        },
    )
    assert sorted(path for path in tmp_path.rglob("*")) == before, "it has written something"


def test_what_the_kubelet_ignores_is_named_and_is_no_obstacle(tmp_path: Path) -> None:
    """Typos and fields of a later release: this agent starts with them too."""
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfailCgroupV1: false\nfailSwapOn: false\n"
        "maxPods: 7\nmaxPods: 8\nnewField: {a: 1}\n"
        f"containerRuntimeEndpoint: unix://{tmp_path}/away.sock\n"
    )
    findings = takeover.check(["--config", str(config), "--root-dir", str(tmp_path / "root")])
    assert [finding.subject for finding in findings if finding.severity is not Severity.NOTE] == ["container runtime"]
    notes = [f"{finding.subject}: {finding.text}" for finding in findings if finding.severity is Severity.NOTE]
    assert [note for note in notes if "field" in note] == [
        f"configuration {config}: newField: unknown field, ignored",
        f"configuration {config}: maxPods: duplicate field (line 6): the last value counts",
    ]


def test_a_kubelet_is_found_by_its_process(tmp_path: Path) -> None:
    for pid, words in ((5, "/usr/bin/kubelet\0--config\0/a b\0"), (6, "bash\0kubelet\0"), (7, "")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_text(words)
    assert takeover.running_flags(None, str(tmp_path)) == ["--config", "/a b"]
    with pytest.raises(LookupError, match="process 7 cannot be read"):
        takeover.running_flags(7, str(tmp_path))
    (tmp_path / "5" / "cmdline").write_text("vi\0")
    with pytest.raises(LookupError, match="no process named kubelet"):
        takeover.running_flags(None, str(tmp_path))


def test_the_state_files_of_the_reference_are_read() -> None:
    """`tests/support/reference_state` was written by a kubelet 1.36 with a pod that has a CPU of its own."""
    cpus = cpu_state.decode((REFERENCE_STATE / "cpu_manager_state").read_text(), "static", {})
    ((uid, containers),) = cpus.assignments.items()
    assert containers == {"main": frozenset({1})}
    assert memory_state.decode((REFERENCE_STATE / "memory_manager_state").read_text(), "None").machine == {}
    assert decode_claims((REFERENCE_STATE / "dra_manager_state").read_bytes()) == {}
    for name in (allocation_state.ALLOCATED, allocation_state.ACTUATED):
        content = (REFERENCE_STATE / name).read_bytes()
        sizes = allocation_state.decode_state(content)
        assert sizes[PodUID(uid)].containers["main"].limits == {"cpu": "1", "memory": "32Mi"}
        assert allocation_state.is_of_another(content)
        ours = allocation_state.StateEncoder().encode(sizes)
        assert ours == content[:-1] + b',"writer":"pykubelet"}' and not allocation_state.is_of_another(ours)
