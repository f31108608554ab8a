"""Inline CSI volumes: what is asked of the driver, and calls to one over its socket."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import pytest
from provide.volumes.samples import NODE, inputs, make_pod, moment, roster, running
from provide.volumes.test_decide import Driver
from provide.volumes.test_loop import UID, Agent, set_roster, started, stop_pod
from support.csi import DRIVER, CsiProcess, csi_driver, csi_folder

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import Pod, Secret, Volume
from pykubelet.base.api.storage import CSIDriver
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import (
    Absent,
    Content,
    ContentKind,
    Found,
    ObjectKey,
    Present,
    Token,
    TokenKey,
    Unreadable,
)
from pykubelet.base.model.mounts import Mounts
from pykubelet.base.model.paths import Paths
from pykubelet.base.model.plugins import CsiNodeInfo, Plugin, Plugins, PluginType
from pykubelet.provide.volumes.csi.data import CsiPlan, VolumeData, read_data
from pykubelet.provide.volumes.csi.mount import mount
from pykubelet.provide.volumes.csi.objects import TOKENS
from pykubelet.provide.volumes.csi.plan import needs_refresh
from pykubelet.provide.volumes.decide import next_timer
from pykubelet.provide.volumes.kind import CallContext, Plan, RefusedPlan, UndecidedPlan, VolumesError
from pykubelet.provide.volumes.model import Inputs, InputsChanged, Result, SetUp, SetUpEnded, VolumesTimerFired
from pykubelet.provide.volumes.plan import plan_volume, volume_keys

pytestmark = pytest.mark.virtual_time

T = TypeVar("T")
KEY = ObjectKey(ContentKind.CSI_DRIVER, "", DRIVER)
SECRET = ObjectKey(ContentKind.SECRET, "shop", "s")
VAULT = TokenKey(UID, "shop", "web", "clerk", "vault", 700)
PATHS = Paths("/k", "/logs")
TARGET = "/k/pods/u1/volumes/kubernetes.io~csi/data/mount"
HEAD = "kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: "


def csi_volume(**source: Any) -> Volume:
    return from_object(Volume, {"name": "data", "csi": {"driver": DRIVER, **source}})


def pod_of(volume: Volume, **security: Any) -> Pod:
    pod = make_pod(volume)
    context = from_object(Pod, {"spec": {"securityContext": security}}).spec.securityContext
    return replace(pod, spec=replace(pod.spec, serviceAccountName="clerk", securityContext=context))


def known(found: Found | None = None, secret: Found | None = None, token: Found | None = None, **spec: Any) -> Content:
    """The CSIDriver with these fields, or `found` in its place."""
    fields = {"volumeLifecycleModes": ["Ephemeral"], **spec}
    driver = found or Present(from_object(CSIDriver, {"metadata": {"name": DRIVER}, "spec": fields}))
    return Content(True, {KEY: driver} | ({SECRET: secret} if secret else {}), {VAULT: token} if token else {})


def registered(endpoint: str = "/p") -> Plugins:
    plugin = Plugin(PluginType.CSI, DRIVER, "/r", endpoint, ("1.0.0",), 1.0, CsiNodeInfo("n"))
    return Plugins({plugin.socket: plugin}, is_settled=True)


def plan(volume: Volume, content: Content, plugins: Plugins | None = None, **security: Any) -> Plan:
    return plan_volume(
        pod_of(volume, **security), volume, Inputs(node=NODE, content=content, plugins=plugins or registered()), PATHS
    )


def planned(volume: Volume, content: Content, **security: Any) -> CsiPlan:
    made = plan(volume, content, None, **security)
    assert isinstance(made, CsiPlan), made
    return made


def test_what_the_driver_is_asked_for() -> None:
    made = planned(csi_volume(fsType="xfs", readOnly=True, volumeAttributes={"a": "1"}), known())
    assert (made.path, made.mounted.read_only, made.access.fs_type) == (TARGET, True, "xfs")
    assert made.access.context == {"a": "1"}
    assert made.data.handle == f"csi-{sha256(b'u1data').hexdigest()}"
    info = planned(csi_volume(volumeAttributes={"a": "1"}), known(podInfoOnMount=True)).access.context
    head = "csi.storage.k8s.io/"
    assert info == {
        "a": "1",
        f"{head}pod.name": "web",
        f"{head}pod.namespace": "shop",
        f"{head}pod.uid": "u1",
        f"{head}serviceAccount.name": "clerk",
        f"{head}ephemeral": "true",
    }


def test_the_notes_are_those_of_every_kubelet() -> None:
    data = planned(csi_volume(), known()).data
    text = data.text().decode()
    assert list(json.loads(text)) == sorted(json.loads(text)) and text.endswith("}\n") and ": " not in text
    assert read_data(text) == data
    assert read_data('{"driverName":"d","volumeHandle":"h"}') == VolumeData("d", "h", mode="Persistent")
    assert [read_data(bad) for bad in ("", "[]", "{}", '{"driverName":"d"}', "[" * 100_000)] == [None] * 5


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (known(Absent("x")), f'{HEAD}volume mode "Ephemeral" not supported by driver {DRIVER} (no CSIDriver object)'),
        (
            known(volumeLifecycleModes=["Persistent"]),
            f'{HEAD}volume mode "Ephemeral" not supported by driver {DRIVER} (only supports ["Persistent"])',
        ),
        (
            known(volumeLifecycleModes=[]),
            f'{HEAD}volume mode "Ephemeral" not supported by driver {DRIVER} (only supports ["Persistent"])',
        ),
        (known(secret=Absent("no such secret")), "fetching NodePublishSecretRef shop/s failed: no such secret"),
        (
            known(secret=Present(Secret(data={"k": b"\xff"}))),
            "fetching NodePublishSecretRef shop/s failed: its values are not all text",
        ),
        (Content(), f"{HEAD}kube client is not configured"),
        (
            known(
                secret=Present(Secret()),
                token=Unreadable("forbidden", 1.0),
                tokenRequests=[{"audience": "vault", "expirationSeconds": 700}],
            ),
            "kubernetes.io/csi: mounter.SetUpAt failed to get service accoount token attributes: forbidden",
        ),
        (
            known(secret=Present(Secret()), tokenRequests=[{"audience": f"a{n}"} for n in range(101)]),
            "the CSIDriver asks for 101 tokens, more than 100",
        ),
    ],
)
def test_refusals(content: Content, error: str) -> None:
    assert plan(csi_volume(nodePublishSecretRef={"name": "s"}), content) == RefusedPlan(error)


def test_a_driver_that_is_not_registered() -> None:
    assert isinstance(plan(csi_volume(), known(), Plugins()), UndecidedPlan)
    refused = plan(csi_volume(), known(), Plugins(is_settled=True))
    assert isinstance(refused, RefusedPlan)
    assert refused.error == (
        "kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: "
        f"driver name {DRIVER} not found in the list of registered CSI drivers"
    )
    assert refused.until == f"the CSI driver {DRIVER} has registered"


def test_objects_are_awaited_in_rounds() -> None:
    volume = csi_volume(nodePublishSecretRef={"name": "s"})
    pod = pod_of(volume)
    assert plan(volume, Content(True)) == UndecidedPlan("", (KEY,))
    assert set(volume_keys(pod, volume, Content(True))) == {KEY, SECRET}
    asks = known(tokenRequests=[{"audience": "vault", "expirationSeconds": 700}])
    assert set(volume_keys(pod, volume, asks)) == {KEY, SECRET, VAULT}
    assert plan(volume, asks) == UndecidedPlan("", (SECRET, VAULT))


def test_secrets_and_tokens_reach_the_driver_and_no_log() -> None:
    requests = [{"audience": "vault", "expirationSeconds": 700}]
    secret, token = Present(Secret(data={"key": b"secret-1"})), Present(Token("secret-2", 0.0))
    volume = csi_volume(nodePublishSecretRef={"name": "s"})
    expected = '{"vault":{"expirationTimestamp":"1970-01-01T00:00:00Z","token":"secret-2"}}'
    made = planned(volume, known(None, secret, token, tokenRequests=requests))
    assert (made.hidden.secrets, made.hidden.context) == ({"key": "secret-1"}, {TOKENS: expected})
    in_secrets = planned(volume, known(None, secret, token, tokenRequests=requests, serviceAccountTokenInSecrets=True))
    assert in_secrets.hidden.secrets == {"key": "secret-1", TOKENS: expected}
    assert not in_secrets.hidden.context
    assert "secret-" not in repr(made) and "secret-" not in repr(in_secrets)


def test_a_new_token_reaches_drivers_that_ask_for_it() -> None:
    requests = [{"audience": "vault", "expirationSeconds": 700}]

    def with_token(token: str, republish: bool) -> CsiPlan:
        content = known(None, None, Present(Token(token, 0.0)), tokenRequests=requests, requiresRepublish=republish)
        return planned(csi_volume(), content)

    assert needs_refresh(with_token("a", True), with_token("b", True))
    assert not needs_refresh(with_token("a", True), with_token("a", True))
    assert not needs_refresh(with_token("a", False), with_token("b", False))


@pytest.mark.parametrize(
    ("policy", "fs_type", "read_only", "applied"),
    [
        ("File", "", False, True),
        ("File", "", True, False),
        ("None", "ext4", False, False),
        ("ReadWriteOnceWithFSType", "ext4", False, True),
        ("ReadWriteOnceWithFSType", "", False, False),
        ("", "ext4", False, True),
    ],
)
def test_who_applies_the_group(policy: str, fs_type: str, read_only: bool, applied: bool) -> None:
    volume = csi_volume(fsType=fs_type, readOnly=read_only)
    made = planned(volume, known(fsGroupPolicy=policy), fsGroup=4321)
    assert (made.access.fs_group, made.is_group_applied, made.only_on_mismatch) == (4321, applied, False)
    assert planned(volume, known(), fsGroupChangePolicy="OnRootMismatch").only_on_mismatch


# With a driver

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")


@pytest.fixture
def top() -> Iterator[Path]:
    with csi_folder() as made:
        yield made


def failing(now: Mounts, text: str) -> bool:
    return any(text in wait.detail for pod in now.pods.values() for wait in pod.waits)


def begin(agent: Agent, driver: CsiProcess, pod: Pod, content: Content) -> None:
    agent.observed.publish(running())
    agent.content.publish(content)
    agent.plugins.publish(registered(str(driver.endpoint)))
    set_roster(agent, pod)


@needs_root
@pytest.mark.parametrize("delegated", [False, True])
async def test_the_group_is_applied_by_the_agent_or_by_the_driver(top: Path, delegated: bool) -> None:
    pod = pod_of(csi_volume(), fsGroup=4321)
    behavior = {"added": [6]} if delegated else {}
    async with csi_driver(top / "root", top / "data", behavior=behavior) as driver, started(top / "root") as agent:
        begin(agent, driver, pod, known(fsGroupPolicy="File", podInfoOnMount=True))
        path = Path((await agent.wait_ready()).volumes["data"].host_path)
        (request,) = driver.requests("NodePublishVolume")
        mount = request["volume_capability"].get("mount", {})
        assert mount.get("volume_mount_group", "") == ("4321" if delegated else "")
        assert (path.stat().st_gid == 4321) is not delegated
        await stop_pod(agent, pod)
        await agent.wait_gone(agent.paths.pod(UID))
        assert driver.volumes() == []


@pytest.mark.parametrize("republishes", [False, True])
def test_a_driver_that_restarts_records_no_event_for_a_mounted_volume(republishes: bool) -> None:
    content, pod, driver = known(requiresRepublish=republishes), pod_of(csi_volume()), Driver()
    cells = replace(inputs(roster(pod)), content=content, plugins=registered())
    driver.see(InputsChanged(cells))
    driver.see(SetUpEnded(UID, "data", Result.DONE))
    for plugins in (Plugins(is_settled=True), registered("/again"), Plugins(is_settled=True)):
        for after in (0.0, 70.0):
            assert driver.messages(InputsChanged(replace(cells, plugins=plugins)), after) == []
            assert driver.up().ready and driver.up().waits == ()


@pytest.mark.parametrize("republishes", [False, True])
def test_a_secret_that_is_gone_concerns_mounted_volumes_that_are_published_again_alone(republishes: bool) -> None:
    volume, driver = csi_volume(nodePublishSecretRef={"name": "s"}), Driver()
    there = known(secret=Present(Secret()), requiresRepublish=republishes)
    cells = replace(inputs(roster(pod_of(volume))), content=there, plugins=registered())
    driver.see(InputsChanged(cells))
    driver.see(SetUpEnded(UID, "data", Result.DONE))
    gone = known(secret=Absent("no such secret"), requiresRepublish=republishes)
    text = 'MountVolume.SetUp failed for volume "data" : fetching NodePublishSecretRef shop/s failed: no such secret'
    assert driver.messages(InputsChanged(replace(cells, content=gone))) == ([text] if republishes else [])
    assert driver.up().ready


@needs_root
async def test_after_a_final_error_nothing_is_left_and_nothing_is_unpublished(top: Path) -> None:
    pod = pod_of(csi_volume())
    failed = {"NodePublishVolume": "fail INVALID_ARGUMENT bad size"}
    async with csi_driver(top / "root", top / "data", behavior=failed) as driver, started(top / "root") as agent:
        begin(agent, driver, pod, known())
        await agent.wait(lambda now: failing(now, "rpc error: code = InvalidArgument desc = bad size"))
        volume = Path(agent.paths.volume(UID, "kubernetes.io~csi", "data"))
        assert not volume.exists()
        (event,) = agent.recorded.events[:1]
        assert event.message == (
            'MountVolume.SetUp failed for volume "data" : rpc error: code = InvalidArgument desc = bad size'
        )
        await stop_pod(agent, pod)
        await agent.wait_gone(agent.paths.pod(UID))
        assert driver.names().count("NodeUnpublishVolume") == 0


@needs_root
async def test_a_volume_without_a_mount_outlives_a_final_error_of_a_repeated_call(top: Path) -> None:
    async with csi_driver(top / "root", top / "data", behavior={"NodePublishVolume": "lie"}) as driver:
        paths, volume = Paths(f"{top}/root", f"{top}/logs"), csi_volume()
        made = plan_volume(pod_of(volume), volume, Inputs(node=NODE, content=known(), plugins=registered()), paths)
        assert isinstance(made, CsiPlan)

        async def at_once(work: Callable[[], T], deadline_s: float = 0.0) -> T:
            return work()

        context = CallContext(registered(str(driver.endpoint)), at_once)
        await mount(made, context)
        Path(made.target).mkdir()  # some drivers only fill the directory
        await driver.behave(NodePublishVolume="fail INVALID_ARGUMENT no such token")
        with pytest.raises(VolumesError, match="no such token"):
            await mount(made, context)
        assert sorted(path.name for path in Path(made.directory).iterdir()) == ["mount", "vol_data.json"]


@needs_root
async def test_after_an_uncertain_error_the_volume_is_unpublished(top: Path) -> None:
    pod = pod_of(csi_volume())
    failed = {"NodePublishVolume": "fail ABORTED busy"}
    async with csi_driver(top / "root", top / "data", behavior=failed) as driver, started(top / "root") as agent:
        begin(agent, driver, pod, known())
        await agent.wait(lambda now: failing(now, "rpc error: code = Aborted desc = busy"))
        assert (Path(agent.paths.volume(UID, "kubernetes.io~csi", "data")) / "vol_data.json").exists()
        await stop_pod(agent, pod)
        await agent.wait_gone(agent.paths.pod(UID))
        assert driver.names("done") == ["NodeUnpublishVolume"]


@needs_root
@pytest.mark.parametrize("notes", ["", "{}", None])
async def test_a_volume_whose_driver_is_unknown_is_left_alone(top: Path, notes: str | None) -> None:
    volume = top / "root/pods/u1/volumes/kubernetes.io~csi/data"
    (volume / "mount").mkdir(parents=True)
    (volume / "mount" / "file").write_text("kept")
    if notes is not None:
        (volume / "vol_data.json").write_text(notes)
    async with started(top / "root") as agent:
        agent.observed.publish(running())
        set_roster(agent)
        await agent.wait(lambda now: failing(now, "vol_data.json is damaged" if notes is not None else "is missing"))
        assert (volume / "mount" / "file").read_text() == "kept"
        (volume / "mount" / "file").unlink()
        (volume / "vol_data.json").unlink(missing_ok=True)
        await agent.wait_gone(agent.paths.pod(UID))


def test_a_driver_that_wants_it_is_called_again_every_minute() -> None:
    pod = pod_of(csi_volume())
    content = known(requiresRepublish=True)
    decisions = Driver()
    (command,) = decisions.see(InputsChanged(replace(inputs(roster(pod)), content=content, plugins=registered())))
    assert isinstance(command, SetUp)
    assert decisions.see(SetUpEnded(UID, "data", Result.DONE)) == []
    assert next_timer(decisions.state, moment(decisions.at)) == moment(60.0).mono
    assert decisions.see(VolumesTimerFired(), after=59) == []
    (again,) = decisions.see(VolumesTimerFired(), after=1)
    assert isinstance(again, SetUp) and again.cause == "repeated"
    decisions.see(SetUpEnded(UID, "data", Result.FAILED, "broken"))
    assert decisions.up().ready, "a failure leaves the mount as it is"
    (soon,) = decisions.see(VolumesTimerFired(), after=1)
    assert isinstance(soon, SetUp)
    decisions.see(SetUpEnded(UID, "data", Result.DONE))
    assert decisions.see(VolumesTimerFired(), after=59) == []


def test_a_driver_that_comes_back_gets_its_volumes_at_once() -> None:
    pod = pod_of(csi_volume())
    decisions = Driver()
    seen = replace(inputs(roster(pod)), content=known(), plugins=Plugins(is_settled=True))
    commands = decisions.see(InputsChanged(seen))
    assert not any(isinstance(command, SetUp) for command in commands)
    commands = decisions.see(InputsChanged(replace(seen, plugins=registered())), after=1)
    assert [type(command) for command in commands if isinstance(command, SetUp)] == [SetUp]
    decisions.see(SetUpEnded(UID, "data", Result.UNCERTAIN, "away"))
    later = replace(registered("/other"), is_settled=True)
    (command,) = decisions.see(InputsChanged(replace(seen, plugins=later)), after=0.01)
    assert isinstance(command, SetUp), "it does not wait for the end of the back-off"
