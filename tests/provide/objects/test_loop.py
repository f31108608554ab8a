"""What pods refer to is fetched, kept and given up: with an API server in memory on the other side."""

from __future__ import annotations

import asyncio
import base64

import pytest
from provide.objects.stand import (
    MAPS,
    SECRETS,
    config_map,
    of_map,
    of_secret,
    pod_with,
    secret,
    stand,
)
from support.api_server import ApiFault

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import Volume, VolumeMount
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import Absent, ContentKind, ObjectKey, Present, TokenKey, Unreadable
from pykubelet.base.model.ids import PodUID
from pykubelet.provide.objects.model import ContentSettings, Strategy

pytestmark = pytest.mark.virtual_time

TEXT = base64.b64encode(b"hidden").decode()


async def test_an_object_is_there_as_soon_as_a_pod_refers_to_it_and_follows_its_changes() -> None:
    async with stand() as s:
        assert s.content.get().available
        s.server.create(MAPS, {"metadata": {"name": "m"}, "data": {"a": "1"}})
        s.want(pod_with(of_map("m")))
        assert (await s.value(config_map("m"))).data == {"a": "1"}
        await s.until_server(lambda: "configmaps" in s.server.watching)
        s.server.update(f"{MAPS}/m", lambda body: body["data"].update(a="2"))
        await s.value(config_map("m"), lambda value: value.data == {"a": "2"})
        s.server.delete(f"{MAPS}/m")
        assert await s.found(config_map("m"), lambda found: isinstance(found, Absent)) == Absent(
            'configmap "m" not found'
        )


async def test_what_is_missing_is_read_from_the_store_before_it_is_reported_and_found_when_it_comes() -> None:
    async with stand() as s:
        s.want(pod_with(of_secret("k")))
        assert await s.found(secret("k")) == Absent('secret "k" not found')
        assert s.server.count("GET", f"{SECRETS}/k") == 1
        await s.until_server(lambda: "secrets" in s.server.watching)
        s.server.create(SECRETS, {"metadata": {"name": "k"}, "data": {"p": TEXT}})
        assert (await s.value(secret("k"))).data == {"p": b"hidden"}


async def test_only_what_is_needed_is_asked_for_by_the_name_that_a_node_may_ask_for() -> None:
    async with stand() as s:
        s.server.create(MAPS, {"metadata": {"name": "m"}})
        s.want(pod_with(of_map("m"), uid="u1"), pod_with(of_map("m"), uid="u2"))
        await s.value(config_map("m"))
        await s.until_server(lambda: "configmaps" in s.server.watching)
        asked = [sent for sent in s.server.requests if sent.path == MAPS]
        assert len(asked) == 2  # one list, one watch, for both pods
        assert {sent.query["fieldSelector"] for sent in asked} == {"metadata.name=m"}


async def test_an_unreferenced_secret_is_forgotten_at_once_and_its_watch_ends() -> None:
    async with stand() as s:
        s.server.create(SECRETS, {"metadata": {"name": "k"}})
        s.want(pod_with(of_secret("k"), uid="u1"), pod_with(of_secret("k"), uid="u2"))
        await s.value(secret("k"))
        await s.until_server(lambda: "secrets" in s.server.watching)
        s.want(pod_with(of_secret("k"), uid="u2"))
        await asyncio.sleep(0.02)
        assert secret("k") in s.content.get().objects
        s.want(pod_with(uid="u2"))
        await s.until(lambda content: secret("k") not in content.objects)
        await s.until_server(lambda: "secrets" not in s.server.watching)


async def test_a_config_map_lingers_for_the_next_pod_and_then_goes() -> None:
    async with stand(ContentSettings(linger_s=1.5)) as s:
        s.server.create(MAPS, {"metadata": {"name": "m"}})
        s.want(pod_with(of_map("m"), uid="u1"))
        await s.value(config_map("m"))
        await s.until_server(lambda: "configmaps" in s.server.watching)
        before = s.server.count("GET", MAPS)
        s.want()
        await asyncio.sleep(0.05)
        s.want(pod_with(of_map("m"), uid="u2"))
        await asyncio.sleep(1.7)
        assert config_map("m") in s.content.get().objects
        assert s.server.count("GET", MAPS) == before
        s.want()
        await s.until(lambda content: config_map("m") not in content.objects)
        await s.until_server(lambda: "configmaps" not in s.server.watching)


async def test_an_immutable_object_is_read_once_and_not_watched() -> None:
    async with stand() as s:
        s.server.create(MAPS, {"metadata": {"name": "m"}, "data": {"a": "1"}, "immutable": True})
        s.want(pod_with(of_map("m")))
        await s.value(config_map("m"))
        await asyncio.sleep(0.05)
        assert "configmaps" not in s.server.watching
        assert s.server.count("GET", MAPS) == 1
        s.want()  # does not linger: it could be another one when the next pod comes
        await s.until(lambda content: config_map("m") not in content.objects)


async def test_without_watches_an_object_is_read_again_after_a_while_and_for_every_new_pod() -> None:
    async with stand(ContentSettings(Strategy.GET, reread_s=0.2)) as s:
        s.server.create(MAPS, {"metadata": {"name": "m"}, "data": {"a": "1"}})
        s.want(pod_with(of_map("m"), uid="u1"))
        await s.value(config_map("m"), lambda value: value.data == {"a": "1"})
        s.server.update(f"{MAPS}/m", lambda body: body["data"].update(a="2"))
        s.want(pod_with(of_map("m"), uid="u1"), pod_with(of_map("m"), uid="u2"))
        await s.until(lambda content: config_map("m") not in content.objects)  # the new pod gets nothing old
        await s.value(config_map("m"), lambda value: value.data == {"a": "2"})
        s.server.update(f"{MAPS}/m", lambda body: body["data"].update(a="3"))
        await s.value(config_map("m"), lambda value: value.data == {"a": "3"})
        s.server.delete(f"{MAPS}/m")
        await s.found(config_map("m"), lambda found: found == Absent('configmaps "m" not found'))
        assert s.server.watching in ([], ["services"])


async def test_an_answer_that_comes_after_the_last_pod_is_gone_is_dropped_and_a_later_pod_gets_one_of_its_own() -> None:
    async with stand(ContentSettings(Strategy.GET)) as s:
        s.server.create(MAPS, {"metadata": {"name": "m"}, "data": {"a": "1"}})
        release = asyncio.Event()
        s.server.faults.append(ApiFault(path=f"{MAPS}/m", held=release))
        s.want(pod_with(of_map("m"), uid="u1"))
        await s.until_server(lambda: s.server.count("GET", f"{MAPS}/m") == 1)
        s.want()
        await asyncio.sleep(1)
        release.set()
        await asyncio.sleep(5)
        assert config_map("m") not in s.content.get().objects
        s.want(pod_with(of_map("m"), uid="u2"))
        assert (await s.value(config_map("m"))).data == {"a": "1"}
        assert s.server.count("GET", f"{MAPS}/m") == 2


@pytest.mark.parametrize("strategy", [Strategy.GET, Strategy.CACHE])
async def test_without_watches_a_new_pod_gets_an_immutable_object_and_hears_of_a_bad_name(strategy: Strategy) -> None:
    async with stand(ContentSettings(strategy, reread_s=0.02)) as s:
        s.server.create(MAPS, {"metadata": {"name": "m"}, "data": {"a": "1"}, "immutable": True})
        s.want(pod_with(of_map("m"), of_map("../m"), uid="u1"))
        await s.value(config_map("m"))
        await s.found(config_map("../m"))
        await asyncio.sleep(0.1)
        assert s.server.count("GET", f"{MAPS}/m") == 1
        s.want(*(pod_with(of_map("m"), of_map("../m"), uid=uid) for uid in ("u1", "u2")))
        await s.until(lambda content: s.server.count("GET", f"{MAPS}/m") == 2 and config_map("m") in content.objects)
        assert config_map("../m") in s.content.get().objects


async def test_with_a_cache_what_was_read_counts_for_the_ttl_of_the_node() -> None:
    async with stand(ContentSettings(Strategy.CACHE, reread_s=0.02), object_ttl_s=3600.0) as s:
        s.server.create(MAPS, {"metadata": {"name": "m"}})
        s.want(pod_with(of_map("m"), uid="u1"))
        await s.value(config_map("m"))
        await asyncio.sleep(0.1)
        assert s.server.count("GET", f"{MAPS}/m") == 1
        s.want(pod_with(of_map("m"), uid="u1"), pod_with(of_map("m"), uid="u2"))  # a new pod gets nothing old
        await s.until_server(lambda: s.server.count("GET", f"{MAPS}/m") == 2)
    async with stand(ContentSettings(Strategy.CACHE, reread_s=0.02), object_ttl_s=0.0) as s:
        s.want(pod_with(of_map("m")))
        await s.until_server(lambda: s.server.count("GET", f"{MAPS}/m") >= 4)


async def test_who_gets_no_answer_gets_the_reason_and_the_answer_when_the_server_is_back() -> None:
    async with stand(ContentSettings(answer_timeout_s=0.1)) as s:
        s.server.create(MAPS, {"metadata": {"name": "m"}})
        await s.server.stop()
        s.want(pod_with(of_map("m")))
        found = await s.found(config_map("m"))
        assert isinstance(found, Unreadable)
        assert found.message.startswith("failed to sync configmap cache: ")
        await s.server.start()
        await s.value(config_map("m"))


async def test_a_second_pod_also_gets_the_reason_for_no_answer() -> None:
    async with stand(ContentSettings(Strategy.GET, answer_timeout_s=0.1)) as s:
        s.server.create(MAPS, {"metadata": {"name": "m"}})
        s.want(pod_with(of_map("m"), uid="u1"))
        await s.value(config_map("m"))
        await asyncio.sleep(0.2)
        await s.server.stop()
        s.want(pod_with(of_map("m"), uid="u1"), pod_with(of_map("m"), uid="u2"))
        await s.found(config_map("m"), lambda found: isinstance(found, Unreadable))
        await s.server.start()
        await s.value(config_map("m"))


async def test_a_server_that_accepts_and_never_answers_is_reported_as_the_reference_does() -> None:
    async with stand(ContentSettings(answer_timeout_s=0.1), deadline_s=2.0) as s:
        s.server.create(MAPS, {"metadata": {"name": "m"}})
        s.server.faults.append(ApiFault(path=MAPS, hang=True))
        s.want(pod_with(of_map("m")))
        found = await s.found(config_map("m"))
        assert isinstance(found, Unreadable)
        assert found.message == "failed to sync configmap cache: timed out waiting for the condition"
        await s.value(config_map("m"))


async def test_a_refusal_right_after_the_pod_was_bound_is_no_failure() -> None:
    async with stand() as s:
        s.server.create(MAPS, {"metadata": {"name": "m"}})
        s.server.faults.append(ApiFault("GET", MAPS, 403, "Forbidden", "no relationship found", times=2))
        s.want(pod_with(of_map("m")))
        await s.value(config_map("m"))
        assert [type(form) for form in s.forms_of(config_map("m"))] == [Present]


async def test_what_is_known_stays_while_the_server_is_away() -> None:
    async with stand(ContentSettings(answer_timeout_s=0.05)) as s:
        s.server.create(MAPS, {"metadata": {"name": "m"}, "data": {"a": "1"}})
        s.want(pod_with(of_map("m")))
        await s.value(config_map("m"))
        await s.server.stop()
        await asyncio.sleep(0.15)
        assert isinstance(s.content.get().objects[config_map("m")], Present)
        await s.server.start()
        s.server.update(f"{MAPS}/m", lambda body: body["data"].update(a="2"))
        await s.value(config_map("m"), lambda value: value.data == {"a": "2"})


async def test_a_runtime_class_is_kept_like_other_objects_in_its_own_words() -> None:
    key = ObjectKey(ContentKind.RUNTIME_CLASS, "", "sealed")
    async with stand(ContentSettings(Strategy.GET)) as s:
        s.want(pod_with(runtime_class="sealed"))
        assert await s.found(key) == Absent('runtimeclass.node.k8s.io "sealed" not found')
        s.server.create("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "sealed"}, "handler": "kata"})
        assert (await s.value(key)).handler == "kata"


async def test_pods_that_have_ended_need_nothing() -> None:
    async with stand() as s:
        s.want(pod_with(of_map("m"), phase="Succeeded"), pod_with(of_map("n"), uid="u2"))
        await s.found(config_map("n"))
        assert config_map("m") not in s.content.get().objects
        assert all(sent.query.get("fieldSelector") != "metadata.name=m" for sent in s.server.requests)


@pytest.mark.parametrize("name", ["../../other/secrets/k", "k?watch=1", "k%2Fx", "..", "k,metadata.name!=x", "k#"])
async def test_a_name_that_leads_elsewhere_is_never_asked_for(name: str) -> None:
    for strategy in (Strategy.WATCH, Strategy.GET):
        async with stand(ContentSettings(strategy)) as s:
            s.server.create("/api/v1/namespaces/other/secrets", {"metadata": {"name": "k"}})
            s.want(pod_with(of_secret(name)))
            assert await s.found(secret(name)) == Absent(f'secret "{name}" not found')
            await s.until(lambda content: content.services is not None)
            assert s.server.count("GET", "secrets") == 0


async def test_services_are_listed_for_the_first_pod_without_those_that_have_no_address() -> None:
    async with stand() as s:
        for name, address in (("shop", "10.0.0.1"), ("headless", "None")):
            s.server.create(
                "/api/v1/namespaces/shop/services", {"metadata": {"name": name}, "spec": {"clusterIP": address}}
            )
        await asyncio.sleep(0.02)
        assert s.content.get().services is None and not s.server.requests
        s.want(pod_with())
        content = await s.until(lambda content: content.services is not None)
        assert content.services is not None
        assert [service.metadata.name for service in content.services] == ["shop"]


async def test_a_service_that_was_there_before_the_first_pod_is_in_the_first_list() -> None:
    async with stand() as s:
        s.want(pod_with())
        await s.until(lambda content: content.services is not None)
        first = next(sent for sent in s.server.requests if "services" in sent.path)
        assert not first.query.get("resourceVersion"), (
            "asked of the store: the server's cache may be older than the pod"
        )


async def test_an_older_server_that_knows_no_selector_by_address_is_asked_for_all_services() -> None:
    async with stand() as s:
        s.server.faults.append(ApiFault("GET", "/services", 400, "BadRequest", "field label not supported"))
        s.want(pod_with())
        await s.until(lambda content: content.services == ())
        assert [sent.query.get("fieldSelector", "") for sent in s.server.requests if "services" in sent.path][:2] == [
            "spec.clusterIP!=None",
            "",
        ]


async def test_a_csi_driver_leads_to_the_tokens_that_it_asks_for() -> None:
    volume = from_object(Volume, {"name": "v", "csi": {"driver": "d.example.com"}})
    pod = pod_with()
    container = replace(pod.spec.containers[0], volumeMounts=(VolumeMount(name="v", mountPath="/v"),))
    pod = replace(pod, spec=replace(pod.spec, volumes=(volume,), containers=(container,)))
    key = ObjectKey(ContentKind.CSI_DRIVER, "", "d.example.com")
    token = TokenKey(PodUID("u1"), "shop", "web-u1", "clerk", "vault", 3600)
    async with stand() as here:
        here.want(pod)
        found = await here.found(key)
        assert isinstance(found, Absent) and not here.content.get().tokens
        path = "/apis/storage.k8s.io/v1/csidrivers"
        asks = {"tokenRequests": [{"audience": "vault"}]}
        here.server.create(path, {"metadata": {"name": "d.example.com"}, "spec": asks})
        await here.value(token)
        here.server.update(f"{path}/d.example.com", lambda driver: driver["spec"].update(tokenRequests=[]))
        await here.until(lambda content: not content.tokens)
        here.want()
        await here.until(lambda content: not content.tokens)
