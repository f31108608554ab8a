"""The content loop with a roster that the test writes, and an API server in memory, under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from support.memory_api import MemoryApiServer, virtual_api_server

from pykubelet.base.api.core import ConfigMapEnvSource as ConfigMapEnv
from pykubelet.base.api.core import (
    Container,
    EnvFromSource,
    LocalObjectReference,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    ProjectedVolumeSource,
    SecretEnvSource,
    ServiceAccountTokenProjection,
    Volume,
    VolumeMount,
    VolumeProjection,
)
from pykubelet.base.kit.cells import Cell, CellWriter, Sink, make_cell
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.content import Content, ContentKey, ContentKind, Found, ObjectKey, Present
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.kube_events import KubeEvent
from pykubelet.base.model.needs import pod_needs
from pykubelet.base.model.node import ApiNode
from pykubelet.base.model.roster import Roster, RosterPod
from pykubelet.edges.identity.keys import KeysError, StubRequest
from pykubelet.edges.kubeapi.client import ApiClient, ClientLimits
from pykubelet.provide.objects.certificates import CertificateTools
from pykubelet.provide.objects.loop import ContentLoop
from pykubelet.provide.objects.model import ContentInputs, ContentSettings
from pykubelet.provide.volumes.plan import volume_keys

MAPS = "/api/v1/namespaces/shop/configmaps"
SECRETS = "/api/v1/namespaces/shop/secrets"
WITHIN_S = 30.0


def config_map(name: str) -> ObjectKey:
    return ObjectKey(ContentKind.CONFIG_MAP, "shop", name)


def secret(name: str) -> ObjectKey:
    return ObjectKey(ContentKind.SECRET, "shop", name)


def pod_with(
    *sources: EnvFromSource,
    uid: str = "u1",
    phase: str = "",
    pull_secret: str = "",
    projected: tuple[VolumeProjection, ...] = (),
    account: str = "clerk",
    runtime_class: str = "",
) -> Pod:
    """A pod whose one container takes its environment from `sources` and mounts a volume of `projected` ones."""
    volumes = (Volume(name="v", projected=ProjectedVolumeSource(sources=projected)),) if projected else ()
    mounts = tuple(VolumeMount(name=volume.name, mountPath="/v") for volume in volumes)
    return Pod(
        metadata=ObjectMeta(name=f"web-{uid}", namespace="shop", uid=uid),
        spec=PodSpec(
            containers=(Container(name="main", image="x", envFrom=sources, volumeMounts=mounts),),
            volumes=volumes,
            imagePullSecrets=(LocalObjectReference(name=pull_secret),) if pull_secret else (),
            runtimeClassName=runtime_class,
            serviceAccountName=account,
        ),
        status=PodStatus(phase=phase),
    )


def of_map(name: str) -> EnvFromSource:
    return EnvFromSource(configMapRef=ConfigMapEnv(name=name))


def of_secret(name: str) -> EnvFromSource:
    return EnvFromSource(secretRef=SecretEnvSource(name=name))


def token_source(audience: str = "", seconds: int = 3607) -> VolumeProjection:
    source = ServiceAccountTokenProjection(path="token", audience=audience, expirationSeconds=seconds)
    return VolumeProjection(serviceAccountToken=source)


@dataclass
class Stubs:
    """Makes keys that are only numbers. `batches`: the key types of each call. `fault`: the error of each call; "": none."""

    batches: list[tuple[str, ...]] = field(default_factory=list)
    fault: str = ""
    made: int = 0

    async def make(self, key_types: Sequence[str]) -> list[StubRequest]:
        self.batches.append(tuple(key_types))
        await asyncio.sleep(0.1)
        if self.fault:
            raise KeysError(self.fault)
        numbers = range(self.made + 1, self.made + len(key_types) + 1)
        self.made += len(key_types)
        return [StubRequest(key_pem(number), f"stub {number}".encode()) for number in numbers]


def key_pem(number: int) -> str:
    return f"-----BEGIN PRIVATE KEY-----\n{number}\n-----END PRIVATE KEY-----\n"


@dataclass
class Stand:
    """What a test sees and does. `published`: every snapshot that a reader could have seen."""

    server: MemoryApiServer
    client: ApiClient
    content: Cell[Content]
    roster: CellWriter[Roster]
    node: CellWriter[ApiNode]
    stubs: Stubs
    events: Sink[KubeEvent]
    published: list[Content] = field(default_factory=list)

    def want(self, *pods: Pod, rejected: bool = False) -> None:
        self.roster.publish(Roster({PodUID(p.metadata.uid): RosterPod(p, "api", 1.0) for p in pods}, True))

    async def until(self, holds: Callable[[Content], Any], within_s: float = WITHIN_S) -> Content:
        async with asyncio.timeout(within_s):
            found = await self.content.wait_for(lambda content: bool(holds(content)))
        await asyncio.sleep(0)  # the recorder sees it too
        return found

    async def found(
        self, key: ContentKey, holds: Callable[[Found], Any] = lambda _: True, within_s: float = WITHIN_S
    ) -> Found:
        """The answer about a key for which `holds`."""

        def is_there(content: Content) -> bool:
            found = content.find(key)
            return found is not None and bool(holds(found))

        found = (await self.until(is_there, within_s)).find(key)
        assert found is not None
        return found

    async def value(
        self, key: ContentKey, holds: Callable[[Any], Any] = lambda _: True, within_s: float = WITHIN_S
    ) -> Any:
        found = await self.found(key, lambda found: isinstance(found, Present) and holds(found.value), within_s)
        assert isinstance(found, Present)
        return found.value

    def forms_of(self, key: ContentKey) -> list[Found]:
        """The different answers that were published, oldest first."""
        forms: list[Found] = []
        for content in self.published:
            found = content.find(key)
            if found is not None and (not forms or forms[-1] is not found):
                forms.append(found)
        return forms

    async def until_server(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not holds():  # noqa: ASYNC110 - the server sends no event for it
                await asyncio.sleep(0.005)


@asynccontextmanager
async def stand(
    settings: ContentSettings | None = None,
    server: MemoryApiServer | None = None,
    start: bool = True,
    object_ttl_s: float = 0.0,
    deadline_s: float = 30.0,
) -> AsyncIterator[Stand]:
    server = server or virtual_api_server()
    if start:
        await server.start()
    client = ApiClient(server.access(), server.clock, ClientLimits(deadline_s=deadline_s))
    roster, roster_writer = make_cell("roster", Roster())
    node, node_writer = make_cell("api-node", ApiNode(object_ttl_s=object_ttl_s, registered=True, uid="node-uid"))
    content, writer = make_cell("content", Content())
    settings = settings or ContentSettings(node="n", trust_bundles=True, pod_certificates=True)
    needs = partial(pod_needs, volume_keys=volume_keys)
    stubs, events = Stubs(), Sink[KubeEvent]()
    issuing = CertificateTools(events, stubs.make)
    loop = ContentLoop(ContentInputs(roster, node), writer, client, server.clock, settings, needs, issuing)
    made = Stand(server, client, content, roster_writer, node_writer, stubs, events)

    async def record() -> None:
        async for now in content.changes():
            made.published.append(now)

    async with Supervisor("test") as tasks:
        recorder = tasks.start_root("recorder", record())
        task = tasks.start_root("content", loop.run())
        try:
            yield made
            assert not task.done(), task
            assert not recorder.done(), recorder
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await client.close()
            await server.stop()
