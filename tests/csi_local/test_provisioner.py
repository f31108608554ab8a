"""Claims of an API server in memory get volumes of the driver, and lose them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.api_server import ApiFault, FakeApiServer
from support.virtual_time import virtual_clock

from pykubelet.base.kit.supervise import Supervisor
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet_csi_local.driver import DriverOptions, build_services
from pykubelet_csi_local.provisioner import CLASSES, VOLUMES, Provisioner

pytestmark = pytest.mark.virtual_time

DRIVER = "local.csi.pykubelet"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
PROVISIONER = "volume.kubernetes.io/storage-provisioner"
SELECTED = "volume.kubernetes.io/selected-node"
IN_PROGRESS = {
    "allocatedResources": {"storage": "5Mi"},
    "allocatedResourceStatuses": {"storage": "ControllerResizeInProgress"},
    "conditions": [{"type": "Resizing", "status": "True"}],
}
Json = dict[str, Any]


class Stand:
    """A provisioner between an API server in memory and a driver whose volumes are below `data`."""

    def __init__(self, server: FakeApiServer, data: Path) -> None:
        self.server = server
        self.data = data

    def storage_class(self, name: str, mode: str = "Immediate", policy: str = "Delete", **parameters: str) -> None:
        body = {"provisioner": DRIVER, "volumeBindingMode": mode, "reclaimPolicy": policy, "parameters": parameters}
        self.server.create(CLASSES, {"metadata": {"name": name}, **body})

    def claim(
        self,
        name: str,
        storage_class: str,
        size: str = "1Mi",
        annotations: Json | None = None,
        source: Json | None = None,
    ) -> str:
        """Create a claim that the control plane has given to the driver. Returns the name of its volume."""
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size}},
            "storageClassName": storage_class,
            **({"dataSource": source} if source else {}),
        }
        metadata = {"name": name, "annotations": {PROVISIONER: DRIVER, **(annotations or {})}}
        made = self.server.create(CLAIMS, {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})
        return f"pvc-{made['metadata']['uid']}"

    async def bound(self, name: str, storage_class: str, size: str = "2Mi") -> str:
        """As `claim`, when its volume is there; the claim is bound to it, as the control plane does that."""
        volume = self.claim(name, storage_class, size)
        await self.until(lambda: volume in self.volumes())
        self.server.update(f"{CLAIMS}/{name}", lambda claim: _bind(claim, volume, size))
        return volume

    def ask(self, name: str, size: str) -> None:
        """Ask for another size of a claim."""

        def change(claim: Json) -> None:
            claim["spec"]["resources"]["requests"]["storage"] = size

        self.server.update(f"{CLAIMS}/{name}", change)

    def status(self, name: str) -> Json:
        (found,) = [claim for claim in self._all("persistentvolumeclaims") if claim["metadata"]["name"] == name]
        status: Json = found["status"]
        return status

    def conditions(self, name: str) -> list[str]:
        return [condition["type"] for condition in self.status(name).get("conditions", [])]

    def capacity(self, volume: str) -> str:
        size: str = self.volumes()[volume]["spec"]["capacity"]["storage"]
        return size

    def volumes(self) -> dict[str, Json]:
        return {volume["metadata"]["name"]: volume for volume in self._all("persistentvolumes")}

    def _all(self, plural: str) -> list[Json]:
        return [item for place, item in self.server.store.objects.items() if place.plural == plural]

    def on_disk(self) -> list[str]:
        return sorted(path.parent.name for path in (self.data / "volumes").glob("*/volume.json"))

    def messages(self) -> list[str]:
        return [event["message"] for event in self._all("events")]

    async def until(self, holds: Callable[[], Any]) -> None:
        for _ in range(2000):
            if holds():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"volumes {self.volumes()}, on disk {self.on_disk()}, Events {self.messages()}")


def _bind(claim: Json, volume: str, size: str) -> None:
    claim["spec"]["volumeName"] = volume
    claim["status"] = {"phase": "Bound", "capacity": {"storage": size}}


@asynccontextmanager
async def provisioning(server: FakeApiServer, data: Path) -> AsyncIterator[Stand]:
    controller, _ = build_services(DriverOptions(DRIVER, "/unused", str(data), "node-1"))
    clock = virtual_clock()
    client = ApiClient(server.access(), clock)
    async with Supervisor("test") as tasks:
        tasks.start_root("provisioner", Provisioner(client, controller, DRIVER, "node-1", clock).run())
        try:
            yield Stand(server, data)
        finally:
            await tasks.stop()
            await client.close()


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    async with FakeApiServer() as server, provisioning(server, tmp_path) as made:
        yield made


async def test_an_outage_is_logged_once_and_does_not_bring_many_requests(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await stand.server.wait_watches(3)
    for outage in range(2):
        caplog.clear()
        before = len(stand.server.requests)
        stand.server.faults = [ApiFault(status=503, times=10_000)]
        stand.server.cut_watches()
        await asyncio.sleep(60)
        asked = len(stand.server.requests) - before
        assert 3 <= asked <= 40, outage
        stand.server.faults = []
        await stand.server.wait_watches(3)
        await stand.until(lambda: "the cluster can be read again" in caplog.text)
        assert caplog.text.count("the cluster cannot be read") == 1
        assert caplog.text.count("the cluster can be read again") == 1


async def test_a_claim_gets_a_volume_that_is_reserved_for_it(stand: Stand) -> None:
    stand.storage_class("now", backing="directory", **{"csi.storage.k8s.io/fstype": "ext4"})
    name = stand.claim("data", "now", "5Mi")
    await stand.until(lambda: name in stand.volumes())
    spec = stand.volumes()[name]["spec"]
    assert spec["claimRef"]["name"] == "data" and f"pvc-{spec['claimRef']['uid']}" == name
    assert spec["capacity"] == {"storage": "5Mi"}
    assert (spec["storageClassName"], spec["persistentVolumeReclaimPolicy"]) == ("now", "Delete")
    assert spec["csi"] == {
        "driver": DRIVER,
        "fsType": "ext4",
        "volumeHandle": name,
        "volumeAttributes": {"backing": "directory"},
    }
    (term,) = spec["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": f"topology.{DRIVER}/node", "operator": "In", "values": ["node-1"]}]
    assert stand.on_disk() == [name]
    await stand.until(lambda: stand.messages() == [f"Successfully provisioned volume {name}"])


async def test_a_claim_that_waits_for_its_pod_gets_its_volume_on_the_chosen_node(stand: Stand) -> None:
    stand.storage_class("later", "WaitForFirstConsumer")
    stand.claim("waiting", "later")
    stand.claim("elsewhere", "later", annotations={SELECTED: "node-2"})
    chosen = stand.claim("chosen", "later", annotations={SELECTED: "node-1"})
    await stand.until(lambda: chosen in stand.volumes())
    stand.server.update(
        f"{CLAIMS}/waiting", lambda claim: claim["metadata"]["annotations"].update({SELECTED: "node-1"})
    )
    await stand.until(lambda: len(stand.volumes()) == 2)
    assert len(stand.on_disk()) == 2


async def test_claims_of_others_are_left_alone(stand: Stand) -> None:
    stand.storage_class("now")
    stand.server.create(CLASSES, {"metadata": {"name": "other"}, "provisioner": "other.example.com"})
    stand.claim("a", "other")
    stand.claim("b", "now", annotations={PROVISIONER: "other.example.com"})
    own = stand.claim("own", "now")
    await stand.until(lambda: own in stand.volumes())
    assert list(stand.volumes()) == stand.on_disk() == [own]


async def test_a_released_volume_goes_with_its_data_if_its_class_wants_that(stand: Stand) -> None:
    stand.storage_class("goes")
    stand.storage_class("stays", policy="Retain")
    goes, stays = stand.claim("a", "goes"), stand.claim("b", "stays")
    await stand.until(lambda: {goes, stays} == set(stand.volumes()))
    for name in (goes, stays):
        stand.server.update(f"{VOLUMES}/{name}", lambda volume: volume.update(status={"phase": "Released"}))
    for name in ("a", "b"):
        stand.server.delete(f"{CLAIMS}/{name}")
    await stand.until(lambda: set(stand.volumes()) == {stays} and stand.on_disk() == [stays])


async def test_a_claim_that_cannot_be_served_is_reported_why_and_holds_up_no_other(stand: Stand) -> None:
    stand.storage_class("bad", backing="tape")
    stand.storage_class("good")
    bad = stand.claim("bad", "bad")
    good = stand.claim("good", "good")
    await stand.until(lambda: good in stand.volumes())
    words = "rpc error: code = InvalidArgument desc = parameter backing is 'tape'"
    await stand.until(lambda: any(words in text for text in stand.messages()))
    stand.server.delete(f"{CLASSES}/bad")
    stand.storage_class("bad", backing="directory")
    await stand.until(lambda: bad in stand.volumes())


async def test_a_creation_that_was_interrupted_is_found_again(tmp_path: Path) -> None:
    async with FakeApiServer() as server:
        async with provisioning(server, tmp_path) as stand:
            stand.storage_class("now")
            name = stand.claim("data", "now")
            await stand.until(lambda: name in stand.volumes())
        server.delete(f"{VOLUMES}/{name}")  # as if the driver was killed before it had created the object
        async with provisioning(server, tmp_path) as stand:
            await stand.until(lambda: name in stand.volumes())
            assert stand.on_disk() == [name]


async def test_a_directory_grows_with_its_claim(stand: Stand) -> None:
    stand.storage_class("now")
    volume = await stand.bound("data", "now")
    other = await stand.bound("other", "now")
    stand.ask("data", "5Mi")
    await stand.until(lambda: stand.status("data")["capacity"] == {"storage": "5Mi"})
    assert (stand.capacity(volume), stand.capacity(other)) == ("5Mi", "2Mi")
    assert stand.conditions("data") == [] and stand.status("data")["allocatedResources"] == {"storage": "5Mi"}
    assert stand.status("data").get("allocatedResourceStatuses", {}) == {}
    await stand.until(lambda: "Resize volume succeeded" in stand.messages())
    assert json.loads((stand.data / f"volumes/{volume}/volume.json").read_text())["capacityBytes"] == 5 << 20


async def test_the_node_is_asked_to_grow_the_file_system_of_an_image(stand: Stand) -> None:
    stand.storage_class("images", backing="image")
    volume = await stand.bound("data", "images")
    stand.ask("data", "5Mi")
    await stand.until(lambda: stand.conditions("data") == ["FileSystemResizePending"])
    assert (stand.capacity(volume), stand.status("data")["capacity"]) == ("5Mi", {"storage": "2Mi"})
    assert stand.status("data")["allocatedResourceStatuses"] == {"storage": "NodeResizePending"}
    await stand.until(lambda: "Require file system resize of volume on node" in stand.messages())
    stand.server.update(f"{CLAIMS}/data", lambda claim: _bind(claim, volume, "5Mi"))  # as the node does
    stand.ask("data", "6Mi")
    await stand.until(lambda: stand.capacity(volume) == "6Mi")


async def test_an_expansion_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    async with FakeApiServer() as server:
        async with provisioning(server, tmp_path) as stand:
            stand.storage_class("now")
            volumes = [await stand.bound(name, "now") for name in ("a", "b")]
        for name in ("a", "b"):  # as if the driver was killed after the claim was marked
            stand.ask(name, "5Mi")
            stand.server.update(f"{CLAIMS}/{name}", lambda claim: claim["status"].update(IN_PROGRESS))
        capacity = {"storage": "5Mi"}  # and of the second one after the volume had its capacity
        stand.server.update(f"{VOLUMES}/{volumes[1]}", lambda volume: volume["spec"].update(capacity=capacity))
        async with provisioning(server, tmp_path) as stand:
            for name, volume in zip(("a", "b"), volumes, strict=True):
                await stand.until(lambda name=name: stand.status(name)["capacity"] == {"storage": "5Mi"})  # type: ignore[misc]
                assert (stand.capacity(volume), stand.conditions(name)) == ("5Mi", [])


async def test_a_size_that_is_impossible_is_reported_and_can_be_taken_back(stand: Stand) -> None:
    stand.storage_class("images", backing="image")
    volume = await stand.bound("data", "images")
    stand.ask("data", "17Ti")
    await stand.until(lambda: "ControllerResizeError" in stand.conditions("data"))
    assert stand.status("data")["allocatedResourceStatuses"] == {"storage": "ControllerResizeInfeasible"}
    assert any("the size of an image must be between" in text for text in stand.messages())
    assert stand.capacity(volume) == "2Mi"
    stand.ask("data", "5Mi")
    await stand.until(lambda: stand.conditions("data") == ["FileSystemResizePending"])
    assert stand.capacity(volume) == "5Mi"


async def test_a_claim_with_a_data_source_gets_no_empty_volume(stand: Stand) -> None:
    stand.storage_class("now")
    name = stand.claim("copy", "now", source={"kind": "PersistentVolumeClaim", "name": "data"})
    await stand.until(lambda: any("volumes are made empty" in text for text in stand.messages()))
    assert name not in stand.volumes() and stand.on_disk() == []


async def test_volumes_of_others_do_not_grow(stand: Stand) -> None:
    stand.storage_class("now")
    volume = await stand.bound("data", "now")
    foreign = await stand.bound("foreign", "now")
    stand.server.update(f"{VOLUMES}/{foreign}", lambda found: found["spec"]["csi"].update(driver="other.example.com"))
    stand.ask("foreign", "5Mi")
    stand.ask("data", "5Mi")
    await stand.until(lambda: stand.capacity(volume) == "5Mi")
    assert stand.capacity(foreign) == "2Mi" and stand.conditions("foreign") == []
