"""SELinux contexts of volumes, as decisions: this needs no host with SELinux."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from provide.volumes.csi_samples import GLOBAL, NAME, a_pod, known, registered
from provide.volumes.samples import NODE, lifecycles, roster, running
from provide.volumes.test_decide import PATHS, Driver

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import Pod, SecurityContext, SELinuxOptions
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import Content
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.lifecycle import Stage
from pykubelet.base.model.selinux import SelinuxHost
from pykubelet.edges.host.selinux import read_selinux
from pykubelet.provide.volumes.csi.calls import publish_request, stage_request
from pykubelet.provide.volumes.csi.data import CsiPlan, read_data
from pykubelet.provide.volumes.kind import FoundDevice, Plan, RefusedPlan, VolumePlan
from pykubelet.provide.volumes.metrics import CONTEXTS, count_context
from pykubelet.provide.volumes.model import (
    Command,
    ContextOutcome,
    CountContext,
    DeviceStaged,
    DeviceUnstaged,
    Inputs,
    InputsChanged,
    Result,
    Scanned,
    SetUp,
    SetUpEnded,
    StageDevice,
    TearDownEnded,
    UnstageDevice,
)
from pykubelet.provide.volumes.plan import plan_volume
from pykubelet.provide.volumes.selinux import file_context, short_mode

FILES = "system_u:object_r:container_file_t:s0"
HOST = SelinuxHost(is_enabled=True, file_context=FILES)
ALL = replace(HOST, mounts_all=True)
CONTEXT = "system_u:object_r:container_file_t:s0:c1,c2"
OPTION = f'context="{CONTEXT}"'
LEVEL = {"level": "s0:c1,c2"}
PLUGIN = "kubernetes.io/csi:local.csi.pykubelet"
ONE, OTHER = PodUID("u1"), PodUID("u2")


def options(**fields: str) -> SELinuxOptions:
    return from_object(SELinuxOptions, fields)


@pytest.mark.parametrize(
    ("fields", "default", "context"),
    [
        (LEVEL, FILES, CONTEXT),
        ({**LEVEL, "user": "u", "role": "r", "type": "t"}, FILES, "u:object_r:container_file_t:s0:c1,c2"),
        ({"user": "u", "type": "t"}, FILES, ""),
        (LEVEL, "", ""),
        (LEVEL, "a:b", ""),
        (
            {"level": "s1"},
            "system_u:object_r:svirt_sandbox_file_t:s0:c3,c4",
            "system_u:object_r:svirt_sandbox_file_t:s1",
        ),
    ],
)
def test_the_context_of_files_of_a_container(fields: dict[str, str], default: str, context: str) -> None:
    assert file_context(options(**fields), default) == context


def content(*modes: str, mounts: bool = True) -> Content:
    return known(volume={"accessModes": list(modes or ("ReadWriteOncePod",))}, seLinuxMount=mounts)


def plan(pod: Pod, now: Content | None = None, host: SelinuxHost = HOST) -> Plan:
    inputs = Inputs(node=NODE, content=now or content(), plugins=registered(), selinux=host)
    return plan_volume(pod, pod.spec.volumes[0], inputs, PATHS)


def labelled(uid: str = "u1", level: str = "s0:c1,c2", **security: Any) -> Pod:
    return a_pod(uid, seLinuxOptions={"level": level}, **security)


def test_a_driver_gets_the_context_as_a_mount_option_and_no_file_is_relabeled() -> None:
    made = plan(labelled())
    assert isinstance(made, CsiPlan) and made.device is not None
    assert made.device.context == CONTEXT and not made.mounted.supports_relabel
    for request in (stage_request(made.device, frozenset()), publish_request(made, frozenset())):
        assert list(request.volume_capability.mount.mount_flags) == [OPTION]
    for text in (made.data.text(), made.data.device_text()):
        data = read_data(text.decode())
        assert data is not None and data.context == CONTEXT


@pytest.mark.parametrize(
    ("host", "now", "security"),
    [
        (SelinuxHost(), content(), {}),
        (HOST, content(mounts=False), {}),
        (HOST, content("ReadWriteOnce"), {}),
        (HOST, content("ReadWriteOncePod", "ReadWriteOnce"), {}),
        (HOST, content(), {"seLinuxChangePolicy": "Recursive"}),
        (ALL, content("ReadWriteOnce"), {"seLinuxChangePolicy": "Recursive"}),
    ],
)
def test_without_a_context_the_runtime_relabels(host: SelinuxHost, now: Content, security: dict[str, str]) -> None:
    made = plan(labelled(**security), now, host)
    assert isinstance(made, CsiPlan) and made.device is not None
    assert (made.device.context, made.mounted.supports_relabel) == ("", True)
    assert b"seLinuxMountContext" not in made.data.text()


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"level": 's0",suid,dev,errors=panic,x="'}, "level"),
        ({"level": "s0", "user": 'u",suid,x="'}, "user"),
        ({"level": "s0", "role": "r,suid"}, "role"),
        ({"level": "s0", "type": "t suid"}, "type"),
    ],
)
@pytest.mark.parametrize("of_pod", [True, False])
def test_a_pod_cannot_add_mount_options_with_its_context(fields: dict[str, str], name: str, of_pod: bool) -> None:
    pod = a_pod(seLinuxOptions=fields) if of_pod else labelled()
    if not of_pod:
        own = SecurityContext(seLinuxOptions=options(**fields))
        container = replace(pod.spec.containers[0], securityContext=own)
        pod = replace(pod, spec=replace(pod.spec, containers=(container,)))
    made = plan(pod)
    assert isinstance(made, RefusedPlan)
    assert f"seLinuxOptions.{name}: Invalid value: " in made.error
    assert isinstance(plan(pod, host=SelinuxHost()), CsiPlan)


def test_with_the_gate_every_access_mode_has_a_context() -> None:
    made = plan(labelled(seLinuxChangePolicy="MountOption"), content("ReadWriteMany"), ALL)
    assert isinstance(made, CsiPlan) and made.device is not None and made.device.context == CONTEXT


def disagreeing() -> Pod:
    pod = labelled()
    own = SecurityContext(seLinuxOptions=options(level="s0:c9"))
    second = replace(pod.spec.containers[0], name="second", securityContext=own)
    return replace(pod, spec=replace(pod.spec, containers=(*pod.spec.containers, second)))


def test_containers_that_disagree() -> None:
    text = f"multiple SELinux labels found: {CONTEXT}, {FILES}:c9"
    assert plan(disagreeing()) == RefusedPlan(text, step="", spec_name="pv")
    assert isinstance(plan(disagreeing(), content("ReadWriteOnce")), VolumePlan)


@pytest.mark.parametrize("kind", ["iscsi", "fc"])
def test_disks_are_mounted_with_the_context(kind: str) -> None:
    sources = {
        "iscsi": {"targetPortal": "10.0.0.1", "iqn": "iqn.2026-11.example:t", "lun": 0},
        "fc": {"targetWWNs": ["50060e801049cfd1"], "lun": 0},
    }
    now = known(volume={"csi": None, kind: sources[kind], "accessModes": ["ReadWriteOncePod"]})
    for host, found in ((HOST, ("rw", OPTION)), (SelinuxHost(), ("rw",))):
        inputs = Inputs(node=NODE, content=replace(now, available=False, has_manifests=True), selinux=host)
        made = plan_volume(labelled(), labelled().spec.volumes[0], inputs, PATHS)
        assert isinstance(made, VolumePlan) and made.device is not None
        assert getattr(made.device, "options", ()) == found
        assert made.mounted.supports_relabel is (host is not HOST)


# Pods with different contexts


def see(driver: Driver, *pods: Pod, ended: tuple[Pod, ...] = (), modes: tuple[str, ...] = ()) -> list[Command]:
    stages = lifecycles(*((pod, Stage.TERMINATED) for pod in ended))
    cells = Inputs(roster(*pods), stages, running(), NODE, content(*modes), registered(), selinux=ALL)
    return driver.see(InputsChanged(cells))


def kinds(commands: list[Command]) -> list[type[Command]]:
    return [
        type(command) for command in commands if isinstance(command, (StageDevice, UnstageDevice, SetUp, CountContext))
    ]


def test_a_pod_with_another_context_waits_and_then_has_the_device_mounted_anew() -> None:
    driver, pod, other = Driver(), labelled("u1"), labelled("u2", "s0:c7")
    driver.see(Scanned(()))
    assert kinds(see(driver, pod, modes=("ReadWriteMany",))) == [CountContext, StageDevice]
    driver.see(DeviceStaged(NAME, Result.DONE))
    driver.see(SetUpEnded(ONE, "v", Result.DONE))
    cells = replace(driver.state.inputs, roster=roster(pod, other))
    commands = driver.see(InputsChanged(cells))
    assert kinds(commands) == [CountContext, CountContext]
    assert CountContext(ContextOutcome.VOLUME_MISMATCH, PLUGIN, "RWX") in commands
    text = f'conflicting SELinux labels of volume pv: "{CONTEXT}" and "{FILES}:c7"'
    assert driver.state.mounts.pods[OTHER].waits[0].detail == text
    see(driver, other, ended=(pod,), modes=("ReadWriteMany",))
    commands = driver.see(TearDownEnded(ONE, "v", Result.DONE))
    assert [command.cause for command in commands if isinstance(command, UnstageDevice)] == [
        "it is mounted with another SELinux context"
    ]
    assert kinds(driver.see(DeviceUnstaged(NAME, Result.DONE))) == [StageDevice]
    assert kinds(driver.see(DeviceStaged(NAME, Result.DONE))) == [SetUp]
    driver.see(SetUpEnded(OTHER, "v", Result.DONE))
    assert driver.state.mounts.pods[OTHER].ready


@pytest.mark.parametrize("context", [None, CONTEXT])
def test_what_an_earlier_agent_has_staged_is_used(context: str | None) -> None:
    driver = Driver()
    driver.see(Scanned((), (FoundDevice(NAME, "csi", GLOBAL, context),)))
    assert kinds(see(driver, labelled())) == [CountContext, StageDevice]


def test_a_device_left_with_another_context_is_unmounted_first() -> None:
    driver = Driver()
    driver.see(Scanned((), (FoundDevice(NAME, "csi", GLOBAL, f"{FILES}:c7"),)))
    assert kinds(see(driver, labelled())) == [CountContext, UnstageDevice]
    assert kinds(driver.see(DeviceUnstaged(NAME, Result.DONE))) == [StageDevice]


def test_decisions_are_counted() -> None:
    driver = Driver()
    driver.see(Scanned(()))
    commands = see(driver, disagreeing())
    assert CountContext(ContextOutcome.POD_MISMATCH, PLUGIN, "RWOP") in commands
    for outcome, labels in ((ContextOutcome.POD_MISMATCH, ("RWOP",)), (ContextOutcome.ADMITTED, (PLUGIN, "RWOP"))):
        count_context(CountContext(outcome, PLUGIN, "RWOP"))
        assert CONTEXTS[outcome].value(*labels) >= 1
    assert CONTEXTS[ContextOutcome.ADMITTED].name == "volume_manager_selinux_volumes_admitted_total"


@pytest.mark.parametrize(
    ("modes", "short"),
    [(("ReadWriteOncePod",), "RWOP"), (("ReadWriteOnce", "ReadWriteMany"), "RWX"), ((), "unknown")],
)
def test_access_modes_in_metrics(modes: tuple[str, ...], short: str) -> None:
    assert short_mode(modes) == short


# The host


def host_files(root: Path, *, mounted: bool = True, current: str = "system_u:system_r:unconfined_t:s0") -> str:
    line = "30 20 0:20 / /sys/fs/selinux rw - selinuxfs selinuxfs rw\n" if mounted else ""
    for path, text in (
        ("proc/self/mountinfo", f"20 1 0:19 / / rw - ext4 /dev/x rw\n{line}"),
        ("proc/self/attr/current", f"{current}\0"),
        ("etc/selinux/config", "# comment\nSELINUX=enforcing\nSELINUXTYPE=targeted\n"),
        ("etc/selinux/targeted/contexts/lxc_contexts", f'process = "p"\nfile = "{FILES}"\nro_file="r"\n'),
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return str(root)


def test_what_the_host_has(tmp_path: Path) -> None:
    assert read_selinux(host_files(tmp_path)) == HOST
    assert read_selinux(host_files(tmp_path, current="kernel")) == SelinuxHost()
    assert read_selinux(host_files(tmp_path, mounted=False)) == SelinuxHost()
    assert read_selinux(str(tmp_path / "nothing")) == SelinuxHost()
