"""Certificates of pods: requested once for each source, replaced in time, and what becomes of them when something fails."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from provide.objects.stand import Stand, key_pem, pod_with, stand
from support.api_server import ApiFault
from support.memory_api import MemoryApiServer, virtual_api_server

from pykubelet.base.api.core import PodCertificateProjection, VolumeProjection
from pykubelet.base.api.times import format_time
from pykubelet.base.model.certificates import CertificateStage, PodCertificate
from pykubelet.base.model.content import Absent, CertificateKey, Pending
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.node import ApiNode
from pykubelet.base.model.waits import Owner
from pykubelet.provide.objects.model import ContentSettings

pytestmark = pytest.mark.virtual_time

HOUR, DAY = 3600.0, 86400.0
SIGNER = "example.com/mesh"
ACCOUNTS = "/api/v1/namespaces/shop/serviceaccounts"
CHAIN = "-----BEGIN CERTIFICATE-----\nQUFB\n-----END CERTIFICATE-----\n"


def source(signer: str = SIGNER, key_type: str = "ED25519", **fields: Any) -> VolumeProjection:
    projection = PodCertificateProjection(signerName=signer, keyType=key_type, credentialBundlePath="b.pem", **fields)
    return VolumeProjection(podCertificate=projection)


def key(index: int = 0, uid: str = "u1", signer: str = SIGNER) -> CertificateKey:
    return CertificateKey(PodUID(uid), "shop", f"web-{uid}", "v", index, signer)


def requests_at(version: str) -> str:
    return f"/apis/certificates.k8s.io/{version}/namespaces/shop/podcertificaterequests"


def serving(version: str = "v1") -> MemoryApiServer:
    server = virtual_api_server()
    server.served = {
        "certificates.k8s.io/v1": ("certificatesigningrequests", *(("podcertificaterequests",) * (version == "v1"))),
        "certificates.k8s.io/v1beta1": ("podcertificaterequests",),
    }
    server.create(ACCOUNTS, {"metadata": {"name": "clerk"}})
    return server


def open_requests(server: MemoryApiServer) -> list[dict[str, Any]]:
    every = server.objects("podcertificaterequests")
    return [item for item in every if not item.get("status", {}).get("conditions")]


def answer(
    server: MemoryApiServer, kind: str = "Issued", life_s: float = DAY, version: str = "v1", **fields: Any
) -> int:
    """Answer all open requests, as a signer does. Returns how many."""
    found = open_requests(server)
    for item in found:
        condition = {"type": kind, "status": "True", "reason": "Signed", "message": "m", **fields}
        now = server.clock.wall()
        status: dict[str, Any] = {"conditions": [condition]}
        if kind == "Issued":
            status |= {
                "certificateChain": CHAIN.replace("QUFB", base64.b64encode(item["metadata"]["name"].encode()).decode()),
                "notBefore": format_time(now),
                "beginRefreshAt": format_time(now + life_s / 2),
                "notAfter": format_time(now + life_s),
            }
        path = f"{requests_at(version)}/{item['metadata']['name']}/status"
        server.update(path, partial(set_status, status))
    return len(found)


def set_status(status: dict[str, Any], body: dict[str, Any]) -> None:
    body["status"] = status


async def signed(s: Stand, of: CertificateKey | None = None, **options: Any) -> PodCertificate:
    """Answer the requests, and wait for the certificate."""
    of = of or key()
    before = s.content.get().find(of)
    await s.until_server(lambda: open_requests(s.server))
    answer(s.server, **options)
    found = await s.value(of, lambda value: before is None or value != getattr(before, "value", None))
    assert isinstance(found, PodCertificate)
    return found


@asynccontextmanager
async def issuing(version: str = "v1", **options: Any) -> AsyncIterator[Stand]:
    async with stand(server=options.pop("server", None) or serving(version), **options) as s:
        yield s


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_a_certificate_is_requested_as_the_kubelet_does_it(version: str) -> None:
    async with issuing(version) as s:
        wanted = source(maxExpirationSeconds=7200, userAnnotations={"example.com/names": "a,b"})
        s.want(pod_with(projected=(wanted,)))
        await s.until_server(lambda: open_requests(s.server))
        (sent,) = [sent for sent in s.server.requests if sent.method == "POST"]
        assert sent.path == requests_at(version)
        account = s.server.get(f"{ACCOUNTS}/clerk")["metadata"]["uid"]
        assert sent.body == {
            "apiVersion": f"certificates.k8s.io/{version}",
            "kind": "PodCertificateRequest",
            "metadata": {
                "generateName": "req-",
                "namespace": "shop",
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "web-u1", "uid": "u1"}],
            },
            "spec": {
                "signerName": SIGNER,
                "podName": "web-u1",
                "podUID": "u1",
                "serviceAccountName": "clerk",
                "serviceAccountUID": account,
                "nodeName": "n",
                "nodeUID": "node-uid",
                "maxExpirationSeconds": 7200,
                "stubPKCS10Request": base64.b64encode(b"stub 1").decode(),
                "unverifiedUserAnnotations": {"example.com/names": "a,b"},
            },
        }
        found = await signed(s, version=version)
        name = s.server.objects("podcertificaterequests")[0]["metadata"]["name"]
        assert found.key == key_pem(1)
        assert base64.b64decode(found.chain.splitlines()[1]).decode() == name
        assert s.content.get().certificates[key()].stage is CertificateStage.FRESH
        (listed, *_) = [
            sent
            for sent in s.server.requests
            if sent.method == "GET" and "fieldSelector" in sent.query and "podcertificaterequests" in sent.path
        ]
        assert listed.path == f"/apis/certificates.k8s.io/{version}/podcertificaterequests"
        assert listed.query["fieldSelector"] == "spec.nodeName=n"


async def test_each_source_has_a_request_and_a_key_of_its_own() -> None:
    async with issuing() as s:
        s.want(pod_with(projected=(source(), source("example.com/other"), source(key_type="RSA4096"))))
        await s.until_server(lambda: len(open_requests(s.server)) == 3)
        answer(s.server)
        await s.until(
            lambda content: all(content.certificates[k].found for k in content.certificates) and content.certificates
        )
        keys = {(await s.value(k)).key for k in (key(), key(1, signer="example.com/other"), key(2))}
        assert len(keys) == 3
        assert sorted(s.stubs.batches) == [("ED25519", "ED25519"), ("RSA4096",)]


async def test_nothing_is_requested_for_pods_without_certificates() -> None:
    async with issuing() as s:
        s.want(pod_with())
        await s.until(lambda content: content.services is not None)
        await asyncio.sleep(60)
        assert s.server.count(path="certificates.k8s.io") == 0


async def test_a_pending_certificate_is_a_wait_for_its_signer() -> None:
    async with issuing() as s:
        s.want(pod_with(projected=(source(),)))
        found = await s.found(key())
        assert isinstance(found, Pending)
        assert found.message == "credential bundle is not issued yet"
        name = open_requests(s.server)[0]["metadata"]["name"]
        assert found.wait.owner is Owner.SIGNER
        assert found.wait.subject == f"of signer {SIGNER}"
        assert f"PodCertificateRequest shop/{name} is not answered" in found.wait.detail
        assert s.server.clock.wall() - found.wait.since < 10
        assert s.content.get().certificates[key()].stage is CertificateStage.NOT_YET_ISSUED
        await signed(s)


async def test_a_certificate_that_is_signed_at_once_is_published_once() -> None:
    async with issuing() as s:
        s.want(pod_with(projected=(source(),)))
        await signed(s)
        assert [type(form).__name__ for form in s.forms_of(key())] == ["Present"]


async def test_a_certificate_is_replaced_day_after_day_with_a_new_key() -> None:
    async with issuing() as s:
        s.want(pod_with(projected=(source(),)))
        found = await signed(s)
        keys = {found.key}
        for _ in range(3):
            began = s.server.clock.wall()
            await wait_for(s, lambda: bool(open_requests(s.server)), DAY)
            took = s.server.clock.wall() - began
            assert DAY / 2 - 60 < took < DAY / 2 + 360, took
            assert await s.value(key()) == found  # the old one stays until the new one is there
            found = await signed(s)
            keys.add(found.key)
        assert len(keys) == 4
        assert not s.events.events


@pytest.mark.parametrize(("kind", "word"), [("Denied", "was denied"), ("Failed", "failed")])
async def test_a_refusal_is_final_and_reported(kind: str, word: str) -> None:
    async with issuing() as s:
        s.want(pod_with(projected=(source(),)))
        await s.until_server(lambda: open_requests(s.server))
        answer(s.server, kind, reason="NotAllowed", message="not here")
        found = await s.found(key(), lambda found: isinstance(found, Absent))
        assert found == Absent(
            f'PodCertificateRequest was permanently {kind.lower()}: reason="NotAllowed" message="not here"'
        )
        (event,) = s.events.events
        assert (event.type, event.reason) == ("Warning", kind)
        assert event.pod is not None and event.pod.name == "web-u1"
        name = s.server.objects("podcertificaterequests")[0]["metadata"]["name"]
        assert event.message == (
            f'NotAllowed: PodCertificateRequest shop/{name} {word}, reason="NotAllowed", message="not here"'
        )
        await asyncio.sleep(2 * DAY)
        assert s.server.counted["POST podcertificaterequests"] == 1
        assert len(s.events.events) == 1


async def test_a_refused_refresh_is_final_too() -> None:
    async with issuing() as s:
        s.want(pod_with(projected=(source(),)))
        await signed(s)
        await wait_for(s, lambda: bool(open_requests(s.server)), DAY)
        answer(s.server, "Denied")
        await s.found(key(), lambda found: isinstance(found, Absent))
        await asyncio.sleep(2 * DAY)
        assert s.server.counted["POST podcertificaterequests"] == 2


async def test_a_deleted_request_is_sent_again_with_a_new_key() -> None:
    async with issuing() as s:
        s.want(pod_with(projected=(source(),)))
        await s.until_server(lambda: open_requests(s.server))
        (first,) = open_requests(s.server)
        s.server.delete(f"{requests_at('v1')}/{first['metadata']['name']}")
        began = s.server.clock.wall()
        await wait_for(s, lambda: bool(open_requests(s.server)), HOUR)
        assert 600 <= s.server.clock.wall() - began + 5 <= 910
        assert (await signed(s)).key == key_pem(2)


async def test_requests_that_are_removed_after_their_answer_do_no_harm() -> None:
    """As kube-controller-manager does it after some minutes."""
    async with issuing() as s:
        s.want(pod_with(projected=(source(),)))
        found = await signed(s)
        for item in s.server.objects("podcertificaterequests"):
            s.server.delete(f"{requests_at('v1')}/{item['metadata']['name']}")
        await asyncio.sleep(2 * HOUR)
        assert await s.value(key()) == found
        assert s.server.counted["POST podcertificaterequests"] == 1


async def test_while_the_api_server_is_away_the_certificate_stays_and_its_age_is_reported() -> None:
    async with issuing() as s:
        s.want(pod_with(projected=(source(),)))
        found = await signed(s)
        await s.server.stop()
        await asyncio.sleep(DAY / 2 + 1200)
        assert [event.reason for event in s.events.events] == ["CertificateOverdueForRefresh"]
        await asyncio.sleep(DAY / 2)
        assert [event.reason for event in s.events.events] == ["CertificateOverdueForRefresh", "CertificateExpired"]
        assert await s.value(key()) == found
        await s.server.start()
        began = s.server.clock.wall()
        await wait_for(s, lambda: bool(open_requests(s.server)), HOUR)
        assert s.server.clock.wall() - began < 100
        assert (await signed(s)).key != found.key


async def test_an_open_request_is_answered_although_the_api_server_was_away() -> None:
    async with issuing() as s:
        s.want(pod_with(projected=(source(),)))
        await s.until_server(lambda: open_requests(s.server))
        await s.server.stop()
        await asyncio.sleep(HOUR)  # longer than after which a missing request counts as deleted
        answer(s.server)
        await s.server.start()
        await s.value(key())
        assert s.server.counted["POST podcertificaterequests"] == 1


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (ApiFault("GET", f"{ACCOUNTS}/clerk", 403, "Forbidden", "no"), "while fetching service account: no"),
        (
            ApiFault("POST", "podcertificaterequests", 500, "InternalError", "no"),
            "while creating PodCertificateRequest: no",
        ),
        (ApiFault("GET", "/apis/certificates.k8s.io/v1", 503, "ServiceUnavailable", "no"), "no"),
    ],
)
async def test_failed_requests_are_shown_and_repeated(fault: ApiFault, text: str) -> None:
    fault.times = -1
    async with issuing() as s:
        s.server.faults.append(fault)
        s.want(pod_with(projected=(source(),)))
        found = await s.found(key())
        assert isinstance(found, Pending)
        assert found.wait.detail == f'{text}; for volume "v", source 0'
        assert found.wait.owner is Owner.OBJECT_CACHE
        await asyncio.sleep(HOUR)
        sent = s.server.count(path=fault.path)
        assert sent < 300  # the requests become rarer
        s.server.faults.clear()
        await wait_for(s, lambda: bool(open_requests(s.server)), 120)
        await signed(s)


async def test_requests_that_cannot_be_read_are_no_wait_for_the_signer() -> None:
    async with issuing() as s:
        s.server.faults.append(ApiFault("GET", "podcertificaterequests", 403, "Forbidden", "no rights", times=-1))
        s.want(pod_with(projected=(source(),)))
        found = await s.found(key())
        assert isinstance(found, Pending) and found.wait.owner is Owner.OBJECT_CACHE
        name = open_requests(s.server)[0]["metadata"]["name"]
        assert found.wait.detail.startswith(f"no rights; PodCertificateRequest shop/{name} cannot be read; for volume")
        answer(s.server)
        s.server.faults.clear()
        await s.value(key())
        assert s.server.counted["POST podcertificaterequests"] == 1


async def test_a_refused_account_costs_no_key() -> None:
    async with issuing() as s:
        s.want(pod_with(projected=(source(),), account="other"))
        await s.found(key())
        assert s.stubs.batches == []


async def test_a_server_without_the_api_is_asked_again_later() -> None:
    server = serving()
    served, server.served = server.served, {}
    async with issuing(server=server) as s:
        s.want(pod_with(projected=(source(),)))
        found = await s.found(key())
        assert isinstance(found, Pending) and found.message == "credential bundle is not issued yet"
        assert "serves no PodCertificateRequests" in found.wait.detail
        server.served = served
        await wait_for(s, lambda: bool(open_requests(s.server)), 400)
        await signed(s)


async def test_while_the_gate_is_off_nothing_is_requested() -> None:
    async with issuing(settings=ContentSettings(node="n")) as s:
        s.want(pod_with(projected=(source(),)))
        assert await s.found(key()) == Absent("unimplemented")
        await asyncio.sleep(HOUR)
        assert s.server.count(path="certificates.k8s.io") == 0


async def test_the_node_is_waited_for() -> None:
    async with issuing() as s:
        s.node.publish(ApiNode())
        s.want(pod_with(projected=(source(),)))
        found = await s.found(key())
        assert isinstance(found, Pending) and "the Node of this node is not known yet" in found.wait.detail
        s.node.publish(ApiNode(registered=True, uid="later"))
        await s.until_server(lambda: open_requests(s.server))
        assert open_requests(s.server)[0]["spec"]["nodeUID"] == "later"


async def test_keys_that_cannot_be_made_are_tried_again() -> None:
    async with issuing() as s:
        s.stubs.fault = "out of memory"
        s.want(pod_with(projected=(source(),)))
        found = await s.found(key())
        assert isinstance(found, Pending) and "out of memory" in found.wait.detail
        s.stubs.fault = ""
        await signed(s)


async def test_an_unknown_key_type_is_named() -> None:
    """A newer API server may admit key types that this agent cannot make."""
    async with issuing() as s:
        s.want(pod_with(projected=(source(key_type="MLDSA65"),)))
        found = await s.found(key())
        assert isinstance(found, Pending)
        assert 'while generating keypair: unknown key type "MLDSA65"' in found.wait.detail


async def test_a_pod_that_is_gone_is_forgotten() -> None:
    async with issuing() as s:
        s.want(pod_with(projected=(source(),)))
        await signed(s)
        s.want(pod_with(projected=(source(),), uid="u2"))
        await s.until(lambda content: set(content.certificates) <= {key(uid="u2")})
        await signed(s, key(uid="u2"))
        s.want()
        await s.until(lambda content: not content.certificates)
        await asyncio.sleep(2 * DAY)
        assert s.server.counted["POST podcertificaterequests"] == 2


async def test_a_pod_that_goes_while_its_key_is_made_leaves_nothing() -> None:
    async with issuing() as s:
        s.want(pod_with(projected=(source(),)))
        await s.until_server(lambda: s.stubs.batches)
        s.want()
        await asyncio.sleep(10)
        assert not s.content.get().certificates
        assert s.server.counted["POST podcertificaterequests"] == 0


async def test_after_a_restart_everything_is_requested_anew() -> None:
    server = serving()
    async with issuing(server=server) as s:
        s.want(pod_with(projected=(source(),)))
        await signed(s)
    async with issuing(server=server) as s:
        s.want(pod_with(projected=(source(),)))
        await signed(s)
        assert server.counted["POST podcertificaterequests"] == 2


async def test_a_pod_has_a_number_of_certificates_at_most() -> None:
    async with issuing() as s:
        s.want(pod_with(projected=tuple(source() for _ in range(40))))
        await s.until(lambda content: len(content.certificates) == 32)
        await s.until_server(lambda: len(open_requests(s.server)) == 32)
        assert max(map(len, s.stubs.batches)) <= 32


async def test_many_slow_keys_of_one_pod_delay_neither_quick_ones_nor_another_pod() -> None:
    async with issuing() as s:
        s.want(
            pod_with(projected=tuple(source(key_type="RSA4096") for _ in range(32))),
            pod_with(projected=(source(), source(key_type="RSA4096")), uid="u2"),
        )
        await s.until_server(lambda: sum(item["spec"]["podUID"] == "u2" for item in open_requests(s.server)) == 2)
        assert s.stubs.made < 16


async def wait_for(s: Stand, holds: Callable[[], bool], within_s: float) -> None:
    """Wait in steps of some seconds, for what takes hours."""
    end = s.server.clock.monotonic() + within_s
    while not holds():
        assert s.server.clock.monotonic() < end
        await asyncio.sleep(5)
