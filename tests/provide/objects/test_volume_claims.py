"""Claims are fetched, then the volumes that they are bound to, by reading alone: a node may neither list nor watch them."""

from __future__ import annotations

import asyncio

import pytest
from provide.objects.stand import stand

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import Pod
from pykubelet.base.model.content import Absent, ContentKind, ObjectKey
from pykubelet.provide.objects.decide import is_settled
from pykubelet.provide.objects.model import ContentSettings

pytestmark = pytest.mark.virtual_time

CLAIMS = "/api/v1/namespaces/shop/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
CLAIM = ObjectKey(ContentKind.VOLUME_CLAIM, "shop", "data")
VOLUME = ObjectKey(ContentKind.VOLUME, "", "pv")


def claiming(uid: str) -> Pod:
    container = {"name": "main", "image": "x", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}
    metadata = {"name": f"web-{uid}", "namespace": "shop", "uid": uid}
    return from_object(Pod, {"metadata": metadata, "spec": {"containers": [container], "volumes": [volume]}})


async def test_a_claim_leads_to_its_volume_and_both_are_only_read() -> None:
    async with stand(ContentSettings(reread_s=1000.0)) as s:
        s.want(claiming("u1"))
        missing = await s.found(CLAIM)
        assert missing == Absent('persistentvolumeclaims "data" not found')
        s.server.create(CLAIMS, {"metadata": {"name": "data"}, "spec": {}, "status": {"phase": "Pending"}})
        await s.value(CLAIM)  # a claim that is missing or not bound is read again soon
        assert s.content.get().find(VOLUME) is None
        s.server.update(f"{CLAIMS}/data", lambda c: c.update(spec={"volumeName": "pv"}, status={"phase": "Bound"}))
        assert isinstance(await s.found(VOLUME), Absent)
        s.server.create(VOLUMES, {"metadata": {"name": "pv"}, "spec": {"claimRef": {"uid": "c1"}}})
        await s.value(VOLUME)
        assert is_settled(s.content.get().find(CLAIM)) and is_settled(s.content.get().find(VOLUME))
        reads = s.server.count("GET", f"{CLAIMS}/data")
        s.want(claiming("u1"), claiming("u2"))  # another pod is worth another read, but the answer stays
        await s.until_server(lambda: s.server.count("GET", f"{CLAIMS}/data") > reads)
        assert s.forms_of(VOLUME)[-1] is s.content.get().find(VOLUME)
        asked = {(sent.method, sent.path) for sent in s.server.requests if "persistentvolume" in sent.path}
        assert asked == {("GET", f"{CLAIMS}/data"), ("GET", f"{VOLUMES}/pv")}
        s.want()
        await s.until(lambda content: not content.objects)


async def test_a_claim_that_stays_unbound_is_read_ever_more_seldom() -> None:
    """Ten minutes of it cost few requests; one that is bound within seconds is noticed at once."""
    async with stand(ContentSettings(reread_s=1000.0)) as s:
        loop, bound = asyncio.get_running_loop(), {"spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}}
        s.want(claiming("u1"))
        await s.found(CLAIM)
        await asyncio.sleep(2.0)
        s.server.create(CLAIMS, {"metadata": {"name": "data"}, **bound})
        created = loop.time()
        await s.value(CLAIM)
        assert loop.time() - created < 1.0
        s.want()
        await s.until(lambda content: not content.objects)
        s.server.update(f"{CLAIMS}/data", lambda claim: claim.update(status={"phase": "Pending"}))
        before = s.server.count("GET", f"{CLAIMS}/data")
        s.want(claiming("u2"))
        await asyncio.sleep(600.0)
        assert s.server.count("GET", f"{CLAIMS}/data") - before < 80
        s.server.update(f"{CLAIMS}/data", lambda claim: claim.update(**bound))
        changed = loop.time()
        await s.until(lambda content: is_settled(content.find(CLAIM)))
        assert loop.time() - changed < 20.0
