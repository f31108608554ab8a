"""Certificates in the volumes of real containers: keys that were really made, and requests that really prove possession of them."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest
from support.agent import Json, make_container, make_pod
from support.pod_signer import PodSigner, is_open, pair_of, refusal
from support.world import World

pytestmark = pytest.mark.integration

REQUESTS = "/apis/certificates.k8s.io/v1/namespaces/default/podcertificaterequests"
SIGNER = "example.com/mesh"
USER = 1234


def certified_pod(name: str, *sources: Json) -> Json:
    """A pod that shows its credential bundle once it has it."""
    volume = {"name": "certs", "projected": {"sources": [{"podCertificate": source} for source in sources]}}
    mount = {"name": "certs", "mountPath": "/certs", "readOnly": True}
    script = "grep -c 'BEGIN' /certs/bundle.pem > /dev/termination-log && exec sleep 3600"
    pod = make_pod(name, make_container("main", script, volumeMounts=[mount]), volumes=[volume])
    pod["spec"] |= {"serviceAccountName": "clerk", "securityContext": {"runAsUser": USER}}
    return pod


def source(key_type: str, **paths: str) -> Json:
    return {"signerName": SIGNER, "keyType": key_type, **paths}


def requests(world: World) -> list[Json]:
    kind = "PodCertificateRequest"
    return [item for item in world.server.store.objects.values() if item.get("kind") == kind and is_open(item)]


async def open_requests(world: World, number: int) -> list[Json]:
    def found() -> list[Json] | None:
        return requests(world) if len(requests(world)) == number else None

    return list(await world.agent.wait_for(f"{number} requests", found))


def respond(world: World, request: Json, status: Json) -> None:
    path = f"{REQUESTS}/{request['metadata']['name']}/status"
    world.server.update(path, lambda body: body.update(status=status))


async def prepared(world: World) -> None:
    world.server.served["certificates.k8s.io/v1"] = ("certificatesigningrequests", "podcertificaterequests")
    world.server.create("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "clerk"}})
    await world.agent.wait_for("the node", world.node)


async def test_a_pod_gets_its_keys_and_certificates_and_new_ones_after_a_restart(world: World) -> None:
    await prepared(world)
    signer = PodSigner(SIGNER)
    both = source("ECDSAP384", credentialBundlePath="bundle.pem", certificateChainPath="chain.pem")
    world.run(
        certified_pod("web", both, source("RSA3072", keyPath="rsa/key.pem", certificateChainPath="rsa/chain.pem"))
    )
    asked = await open_requests(world, 2)

    async def waits() -> list[Json]:
        shown = await asyncio.to_thread(world.agent.ask_json, "explain", "web")
        return [wait for wait in shown["waits"] if wait["owner"] == "signer"]

    (first, second) = await world.agent.wait_for("its waits", waits)
    names = {request["metadata"]["name"] for request in asked}
    for wait in (first, second):
        assert (wait["what"], wait["subject"]) == ("pod certificate", f"of signer {SIGNER}")
        assert any(f"PodCertificateRequest default/{name} is not answered" in wait["detail"] for name in names)
    node = world.node()
    assert node is not None and asked[0]["spec"]["nodeUID"] == node["metadata"]["uid"]
    for request in asked:
        respond(world, request, signer.status(request))
    await world.wait_ready("web")
    (folder,) = world.agent.root.glob("pods/*/volumes/kubernetes.io~projected/certs")
    bundle = folder / "bundle.pem"
    own, certified = pair_of(bundle.read_bytes())
    assert certified[0] == own and len(certified) == 2
    assert bundle.read_bytes().endswith((folder / "chain.pem").read_bytes())
    rsa = (folder / "rsa/key.pem").read_bytes() + (folder / "rsa/chain.pem").read_bytes()
    assert pair_of(rsa)[0] == pair_of(rsa)[1][0] != own
    for path in (bundle, folder / "rsa/key.pem"):
        assert owner_and_mode(path) == (USER, 0o600)

    # nothing is kept over a restart: the pod goes on with the old files until there are new ones
    world.agent.kill9()
    world.agent.start()
    before = bundle.read_bytes()
    again = await open_requests(world, 2)
    await world.wait_ready("web")
    assert bundle.read_bytes() == before
    for request in again:
        respond(world, request, signer.status(request))
    await world.agent.wait_for("new files", lambda: bundle.read_bytes() != before)
    newer, certified = pair_of(bundle.read_bytes())
    assert certified[0] == newer != own
    pod = await world.wait("web", "there", lambda pod: pod["status"].get("containerStatuses"))
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
    world.delete("web")
    await world.wait_gone("web")
    await world.wait_nothing_left()


async def test_a_pod_whose_certificate_is_refused_does_not_start_and_states_why(world: World) -> None:
    await prepared(world)
    world.run(certified_pod("web", source("ED25519", credentialBundlePath="bundle.pem")))
    (request,) = await open_requests(world, 1)
    respond(world, request, refusal("Denied", "NotAllowed", "no certificates for web"))
    text = 'PodCertificateRequest was permanently denied: reason="NotAllowed" message="no certificates for web"'
    await world.agent.wait_for(
        "the Event", lambda: any(text in event["message"] for event in world.events("FailedMount"))
    )
    (event,) = world.events("Denied")
    assert event["type"] == "Warning" and event["message"].startswith("NotAllowed: PodCertificateRequest default/")
    shown = await asyncio.to_thread(world.agent.ask_json, "explain", "web")
    assert any(text in wait["detail"] for wait in shown["waits"])
    assert not (await world.agent.look()).of("web").containers
    world.delete("web")
    await world.wait_gone("web")


def owner_and_mode(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_uid, stat.S_IMODE(found.st_mode)
