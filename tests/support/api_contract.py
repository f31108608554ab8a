"""Assertions on an API server as the agent sees it through `ApiClient` and `follow`: for the fake and for a real one."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from support.pod_signer import PodSigner

from pykubelet.base.api.auth import TokenRequest
from pykubelet.base.api.certificates import PodCertificateRequest, PodCertificateRequestSpec
from pykubelet.base.api.codec import to_object
from pykubelet.base.api.core import ConfigMap, Lease, Node, ObjectMeta, OwnerReference, Pod, Secret
from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.values import replace
from pykubelet.edges.identity.keys import make_stub_requests
from pykubelet.edges.kubeapi.client import ApiClient, PatchKind
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.listwatch import Listed, follow

_numbers = itertools.count(1)


@dataclass
class ApiWorld:
    """An API server under test. `client` may do everything in `namespace`, and make nodes."""

    client: ApiClient
    namespace: str
    prefix: str = field(default_factory=lambda: f"c{uuid.uuid4().hex[:6]}")

    def name(self) -> str:
        return f"{self.prefix}-{next(_numbers)}"

    def path(self, plural: str, name: str = "", sub: str = "") -> str:
        parts = [f"/api/v1/namespaces/{self.namespace}/{plural}", name, sub]
        return "/".join(part for part in parts if part)

    async def pod(self, name: str, **spec: Any) -> Pod:
        containers = [{"name": "main", "image": "example.test/none:1"}]
        body = {"metadata": {"name": name}, "spec": {"containers": containers, **spec}}
        return await self.client.create(self.path("pods"), body, Pod)

    async def config_map(self, name: str, **data: str) -> ConfigMap:
        body = {"metadata": {"name": name, "labels": {"test": self.prefix}}, "data": data}
        return await self.client.create(self.path("configmaps"), body, ConfigMap)


async def refused(call: Awaitable[object]) -> ApiError:
    try:
        await call
    except ApiError as error:
        return error
    raise AssertionError("this should have been refused")


async def until(listing: AsyncIterator[Listed[Any]], wanted: Callable[[Listed[Any]], bool]) -> Listed[Any]:
    async with asyncio.timeout(60):
        async for listed in listing:
            if wanted(listed):
                return listed
    raise AssertionError("the listing ended")


async def what_is_created_can_be_read(world: ApiWorld) -> None:
    name = world.name()
    made = await world.config_map(name, key="1")
    found = await world.client.get(world.path("configmaps", name), ConfigMap)
    assert found == made
    assert made.metadata.uid and made.metadata.resourceVersion and made.metadata.creationTimestamp
    assert made.data == {"key": "1"}


async def secrets_come_as_bytes(world: ApiWorld) -> None:
    name = world.name()
    body = {"metadata": {"name": name}, "data": {"k": "AP8="}, "type": "Opaque"}
    made = await world.client.create(world.path("secrets"), body, Secret)
    assert made.data == {"k": b"\x00\xff"}


async def a_second_create_of_the_same_name_is_distinguished(world: ApiWorld) -> None:
    name = world.name()
    await world.config_map(name)
    error = await refused(world.config_map(name))
    assert error.already_exists and not error.is_conflict and not error.is_transient
    assert f'"{name}" already exists' in error.message


async def what_is_not_there_is_not_found(world: ApiWorld) -> None:
    name = world.name()
    error = await refused(world.client.get(world.path("configmaps", name), ConfigMap))
    assert error.is_not_found and error.reason == "NotFound"
    assert error.message == f'configmaps "{name}" not found'


async def an_update_of_an_old_version_is_a_conflict(world: ApiWorld) -> None:
    name = world.name()
    first = await world.config_map(name, key="1")
    path = world.path("configmaps", name)
    body = {"metadata": {"name": name, "resourceVersion": first.metadata.resourceVersion}, "data": {"key": "2"}}
    second = await world.client.update(path, body, ConfigMap)
    assert second.data == {"key": "2"} and second.metadata.uid == first.metadata.uid
    assert (await refused(world.client.update(path, body, ConfigMap))).is_conflict


async def a_merge_patch_changes_what_it_names_and_null_removes(world: ApiWorld) -> None:
    name = world.name()
    await world.config_map(name, a="1", b="2")
    patch = {"data": {"a": None, "c": "3"}}
    found = await world.client.patch(world.path("configmaps", name), patch, PatchKind.MERGE, ConfigMap)
    assert found.data == {"b": "2", "c": "3"}


async def a_strategic_patch_merges_conditions_by_type(world: ApiWorld) -> None:
    name = world.name()
    pod = await world.pod(name)
    path = world.path("pods", name, "status")
    first = {"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [{"type": "A", "status": "True"}]}}
    await world.client.patch(path, first, PatchKind.STRATEGIC, Pod)
    second = {"status": {"phase": "Running", "conditions": [{"type": "B", "status": "False"}]}}
    found = await world.client.patch(path, second, PatchKind.STRATEGIC, Pod)
    conditions = {c.type: c.status for c in found.status.conditions}
    assert conditions.items() >= {"A": "True", "B": "False"}.items()  # a scheduler has a condition of its own
    assert found.status.phase == "Running"
    assert found.spec == pod.spec


async def a_status_patch_for_another_uid_is_refused(world: ApiWorld) -> None:
    name = world.name()
    await world.pod(name)
    patch = {"metadata": {"uid": str(uuid.uuid4())}, "status": {"phase": "Running"}}
    error = await refused(world.client.patch(world.path("pods", name, "status"), patch, PatchKind.STRATEGIC, Pod))
    assert error.status in (409, 422)  # a conflict today, an invalid change of the UID in older servers
    assert not error.is_transient


async def an_unchanged_patch_makes_no_new_version(world: ApiWorld) -> None:
    name = world.name()
    made = await world.config_map(name, key="1")
    same = await world.client.patch(
        world.path("configmaps", name), {"data": {"key": "1"}}, PatchKind.STRATEGIC, ConfigMap
    )
    assert same.metadata.resourceVersion == made.metadata.resourceVersion


async def a_json_patch_is_applied(world: ApiWorld) -> None:
    name = world.name()
    await world.config_map(name, a="1")
    steps = [{"op": "replace", "path": "/data/a", "value": "2"}]
    found = await world.client.patch(world.path("configmaps", name), steps, PatchKind.JSON, ConfigMap)
    assert found.data == {"a": "2"}


async def a_bound_pod_goes_in_two_steps(world: ApiWorld) -> None:
    name = world.name()
    made = await world.pod(name, nodeName="some-node", terminationGracePeriodSeconds=7)
    path = world.path("pods", name)
    await world.client.delete(path)
    going = await world.client.get(path, Pod)
    assert going.metadata.deletionTimestamp and going.metadata.deletionGracePeriodSeconds == 7
    assert going.spec == made.spec
    other = {"gracePeriodSeconds": 0, "preconditions": {"uid": str(uuid.uuid4())}}
    assert (await refused(world.client.delete(path, other))).is_conflict
    await world.client.delete(path, {"gracePeriodSeconds": 0, "preconditions": {"uid": made.metadata.uid}})
    assert (await refused(world.client.get(path, Pod))).is_not_found


async def a_node_is_registered_with_its_status(world: ApiWorld) -> None:
    name = world.name()
    body = {"metadata": {"name": name}, "status": {"capacity": {"cpu": "2"}}}
    made = await world.client.create("/api/v1/nodes", body, Node)
    try:
        assert made.status.capacity == {"cpu": "2"}
        condition = {"type": "Ready", "status": "False", "reason": "R", "message": "m"}
        patch = {"status": {"conditions": [condition]}, "metadata": {"annotations": {"a": "b"}}}
        found = await world.client.patch(f"/api/v1/nodes/{name}/status", patch, PatchKind.STRATEGIC, Node)
        assert found.metadata.annotations["a"] == "b"
        assert [c.type for c in found.status.conditions] == ["Ready"]
        assert found.status.capacity == {"cpu": "2"}
    finally:
        await world.client.delete(f"/api/v1/nodes/{name}")


async def a_lease_keeps_its_micro_time(world: ApiWorld) -> None:
    name = world.name()
    path = f"/apis/coordination.k8s.io/v1/namespaces/{world.namespace}/leases"
    spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": "2026-01-02T03:04:05.000006Z"}
    made = await world.client.create(path, {"metadata": {"name": name}, "spec": spec}, Lease)
    assert made.spec.renewTime == "2026-01-02T03:04:05.000006Z"


async def a_token_is_given_for_an_account(world: ApiWorld) -> None:
    name = world.name()
    accounts = world.path("serviceaccounts")
    await world.client.create(accounts, {"metadata": {"name": name}}, ConfigMap)
    body = {"spec": {"audiences": [], "expirationSeconds": 600}}
    found = await world.client.create(f"{accounts}/{name}/token", body, TokenRequest)
    assert found.status is not None and found.status.token and found.status.expirationTimestamp


async def a_listing_follows_every_change(world: ApiWorld) -> None:
    name = world.name()
    listing = follow(
        world.client,
        world.path("configmaps"),
        ConfigMap,
        SystemClock(),
        label_selector=f"test={world.prefix}",
    )
    async with aclosing(listing):
        first = await until(listing, lambda listed: listed.synced)
        assert first.items == {} and first.error is None
        await world.config_map(name, key="1")
        key = f"{world.namespace}/{name}"
        there = await until(listing, lambda listed: key in listed.items)
        other = world.name()
        await world.config_map(other)
        both = await until(listing, lambda listed: len(listed.items) == 2)
        assert both.items[key] is there.items[key]
        patch = {"data": {"key": "2"}}
        await world.client.patch(world.path("configmaps", name), patch, PatchKind.MERGE, ConfigMap)
        await until(listing, lambda listed: listed.items[key].data == {"key": "2"})
        await world.client.delete(world.path("configmaps", name))
        await until(listing, lambda listed: key not in listed.items)


async def a_field_selector_shows_one_object(world: ApiWorld) -> None:
    name, other = world.name(), world.name()
    await world.config_map(other)
    listing = follow(
        world.client, world.path("configmaps"), ConfigMap, SystemClock(), field_selector=f"metadata.name={name}"
    )
    async with aclosing(listing):
        assert (await until(listing, lambda listed: listed.synced)).items == {}
        await world.config_map(name)
        assert list((await until(listing, lambda listed: bool(listed.items))).items) == [f"{world.namespace}/{name}"]


async def pods_of_a_node_are_found_by_its_name(world: ApiWorld) -> None:
    node, name = world.name(), world.name()
    listing = follow(world.client, "/api/v1/pods", Pod, SystemClock(), field_selector=f"spec.nodeName={node}")
    async with aclosing(listing):
        await until(listing, lambda listed: listed.synced)
        pod = await world.pod(name, nodeName=node)
        found = await until(listing, lambda listed: bool(listed.items))
        assert found.items[f"{world.namespace}/{name}"].metadata.uid == pod.metadata.uid
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.metadata.uid}}
        await world.client.delete(world.path("pods", name), options)
        await until(listing, lambda listed: not listed.items)


async def a_certificate_request_is_kept_and_answered(world: ApiWorld, version: str, signer: PodSigner) -> None:
    """`version`: one that the server has of PodCertificateRequests."""
    group, node = f"certificates.k8s.io/{version}", world.name()
    path = f"/apis/{group}/namespaces/{world.namespace}/podcertificaterequests"
    (stub,) = await make_stub_requests(["ECDSAP256"])
    pod = (await world.pod(world.name())).metadata
    owner = OwnerReference(apiVersion="v1", kind="Pod", name=pod.name, uid=pod.uid)  # without it, it would be removed
    body = PodCertificateRequest(
        apiVersion=group,
        kind="PodCertificateRequest",
        metadata=ObjectMeta(generateName="req-", namespace=world.namespace, ownerReferences=(owner,)),
        spec=PodCertificateRequestSpec(
            signerName=signer.name,
            podName=pod.name,
            podUID=pod.uid,
            serviceAccountName="default",
            serviceAccountUID=str(uuid.uuid4()),
            nodeName=node,
            nodeUID=str(uuid.uuid4()),
            stubPKCS10Request=stub.request,
            unverifiedUserAnnotations={"example.com/names": "a,b"},
        ),
    )
    without = replace(body, spec=replace(body.spec, stubPKCS10Request=b""))
    assert (await refused(world.client.create(path, without, PodCertificateRequest))).status == 422
    collection = f"/apis/{group}/podcertificaterequests"
    listing = follow(
        world.client, collection, PodCertificateRequest, SystemClock(), field_selector=f"spec.nodeName={node}"
    )
    async with aclosing(listing):
        await until(listing, lambda listed: listed.synced)
        made = await world.client.create(path, body, PodCertificateRequest)
        name = made.metadata.name
        assert name.startswith("req-") and made.metadata.uid and made.metadata.ownerReferences == (owner,)
        assert made.spec == replace(body.spec, maxExpirationSeconds=86400)
        found = await until(listing, lambda listed: bool(listed.items))
        assert found.items[f"{world.namespace}/{name}"] == made
        other = {"spec": {"signerName": "example.com/other"}}
        at = f"{path}/{name}"
        assert (await refused(world.client.patch(at, other, PatchKind.MERGE, PodCertificateRequest))).status == 422
        status = signer.status(to_object(made))
        await world.client.patch(f"{at}/status", {"status": status}, PatchKind.MERGE, PodCertificateRequest)
        answered = await until(
            listing, lambda listed: any(item.status and item.status.conditions for item in listed.items.values())
        )
        (request,) = answered.items.values()
        assert request.status is not None
        assert request.status.certificateChain == status["certificateChain"]
        assert [condition.type for condition in request.status.conditions] == ["Issued"]
        assert (request.status.beginRefreshAt, request.status.notAfter) == (
            status["beginRefreshAt"],
            status["notAfter"],
        )
        await world.client.delete(at)
        await until(listing, lambda listed: not listed.items)


async def managed_fields_may_be_left_out(world: ApiWorld) -> None:
    """A server that does not know the parameter ignores it."""
    name = world.name()
    client = ApiClient(world.client.access, SystemClock(), drops_managed_fields=True)
    try:
        made = await client.create(
            world.path("configmaps"), {"metadata": {"name": name}, "data": {"a": "1"}}, ConfigMap
        )
        path = world.path("configmaps")
        listing = follow(client, path, ConfigMap, SystemClock(), field_selector=f"metadata.name={name}")
        async with aclosing(listing):
            # the first list comes from the server's cache, which may be older than the object
            found = await until(listing, lambda listed: bool(listed.items))
            listed = found.items[f"{world.namespace}/{name}"]
            assert (listed.metadata.uid, listed.data) == (made.metadata.uid, {"a": "1"})
            await client.patch(world.path("configmaps", name), {"data": {"a": "2"}}, PatchKind.MERGE, ConfigMap)
            await until(listing, lambda listed: listed.items[f"{world.namespace}/{name}"].data == {"a": "2"})
    finally:
        await client.close()


async def a_large_object_arrives_whole(world: ApiWorld) -> None:
    name = world.name()
    listing = follow(
        world.client, world.path("configmaps"), ConfigMap, SystemClock(), field_selector=f"metadata.name={name}"
    )
    async with aclosing(listing):
        await until(listing, lambda listed: listed.synced)
        large = "x" * 1_000_000
        await world.config_map(name, large=large)
        found = await until(listing, lambda listed: bool(listed.items))
        assert found.items[f"{world.namespace}/{name}"].data["large"] == large


CONTRACT: tuple[Callable[[ApiWorld], Awaitable[None]], ...] = (
    what_is_created_can_be_read,
    secrets_come_as_bytes,
    a_second_create_of_the_same_name_is_distinguished,
    what_is_not_there_is_not_found,
    an_update_of_an_old_version_is_a_conflict,
    a_merge_patch_changes_what_it_names_and_null_removes,
    a_strategic_patch_merges_conditions_by_type,
    a_status_patch_for_another_uid_is_refused,
    an_unchanged_patch_makes_no_new_version,
    a_json_patch_is_applied,
    a_bound_pod_goes_in_two_steps,
    a_node_is_registered_with_its_status,
    a_lease_keeps_its_micro_time,
    a_token_is_given_for_an_account,
    a_listing_follows_every_change,
    a_field_selector_shows_one_object,
    pods_of_a_node_are_found_by_its_name,
    managed_fields_may_be_left_out,
    a_large_object_arrives_whole,
)
