"""Trust bundles, where the API server has them."""

from __future__ import annotations

import pytest
from provide.objects.stand import pod_with, stand
from support.api_server import ApiFault
from support.memory_api import MemoryApiServer, virtual_api_server

from pykubelet.base.api.core import ClusterTrustBundleProjection, LabelSelector, VolumeProjection
from pykubelet.base.model.content import Absent, ObjectKey, TrustBundle, Unreadable
from pykubelet.base.model.needs import bundle_key
from pykubelet.provide.objects.model import ContentSettings

pytestmark = pytest.mark.virtual_time

VERSIONS = ("v1", "v1beta1", "v1alpha1")
PATH = "/apis/certificates.k8s.io/v1/clustertrustbundles"
A = "-----BEGIN CERTIFICATE-----\nQUFB\n-----END CERTIFICATE-----\n"
B = "-----BEGIN CERTIFICATE-----\nQkJC\n-----END CERTIFICATE-----\n"


def serving(*versions: str) -> MemoryApiServer:
    """Versions of the API in which there are trust bundles; v1 unless given. In v1 there are signing requests in any case."""
    server = virtual_api_server()
    server.served["certificates.k8s.io/v1"] = ("certificatesigningrequests",)
    for version in versions or ("v1",):
        plurals = server.served.get(f"certificates.k8s.io/{version}", ())
        server.served[f"certificates.k8s.io/{version}"] = (*plurals, "clustertrustbundles")
    return server


def by_name(name: str) -> ClusterTrustBundleProjection:
    return ClusterTrustBundleProjection(name=name, path="ca.pem")


def by_signer(signer: str, selector: LabelSelector | None) -> ClusterTrustBundleProjection:
    return ClusterTrustBundleProjection(signerName=signer, labelSelector=selector, path="ca.pem")


def key_of(source: ClusterTrustBundleProjection) -> ObjectKey:
    key = bundle_key(source)
    assert key is not None
    return key


def put(server: MemoryApiServer, name: str, pem: str, signer: str = "", **labels: str) -> None:
    server.create(
        PATH, {"metadata": {"name": name, "labels": labels}, "spec": {"signerName": signer, "trustBundle": pem}}
    )


def wanting(*sources: ClusterTrustBundleProjection) -> tuple[VolumeProjection, ...]:
    return tuple(VolumeProjection(clusterTrustBundle=source) for source in sources)


async def test_bundles_by_name_and_by_signer_follow_what_is_there() -> None:
    named, chosen = by_name("one"), by_signer("x/y", LabelSelector(matchLabels={"live": "yes"}))
    everything, nothing = by_signer("x/y", LabelSelector()), by_signer("x/y", None)
    async with stand(server=serving()) as s:
        s.want(pod_with(projected=wanting(named, chosen, everything, nothing)))
        missing = 'while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io "one" not found'
        assert await s.found(key_of(named)) == Absent(missing)
        none = Absent("combination of signerName and labelSelector matched zero ClusterTrustBundles")
        assert await s.found(key_of(chosen)) == none
        await s.until_server(lambda: "clustertrustbundles" in s.server.watching)
        put(s.server, "one", A + A)
        put(s.server, "two", A, "x/y", live="yes")
        put(s.server, "three", B + A, "x/y")
        assert await s.value(key_of(named)) == TrustBundle(A)
        assert await s.value(key_of(chosen)) == TrustBundle(A)
        await s.value(key_of(everything), lambda bundle: bundle.pem == A + B)
        assert s.content.get().find(key_of(nothing)) == none


@pytest.mark.parametrize("served", [VERSIONS, VERSIONS[1:], VERSIONS[2:]])
async def test_the_newest_version_that_is_served_is_read(served: tuple[str, ...]) -> None:
    async with stand(server=serving(*served)) as s:
        for version in served:
            path = PATH.replace("/v1/", f"/{version}/")
            s.server.create(
                path, {"metadata": {"name": "one"}, "spec": {"trustBundle": A if version == served[0] else B}}
            )
        s.want(pod_with(projected=wanting(by_name("one"))))
        assert await s.value(key_of(by_name("one"))) == TrustBundle(A)


async def test_a_bundle_wanted_later_needs_no_further_request() -> None:
    async with stand(server=serving()) as s:
        put(s.server, "one", A)
        put(s.server, "two", B)
        s.want(pod_with(projected=wanting(by_name("one"))))
        await s.value(key_of(by_name("one")))
        await s.until_server(lambda: "clustertrustbundles" in s.server.watching)
        before = s.server.count("GET", "/clustertrustbundles")
        s.want(pod_with(projected=wanting(by_name("two")), uid="u2"))
        assert await s.value(key_of(by_name("two"))) == TrustBundle(B)
        assert key_of(by_name("one")) not in s.content.get().objects
        assert s.server.count("GET", "/clustertrustbundles") == before


async def test_where_they_are_not_served_the_content_is_unreadable() -> None:
    async with stand() as s:
        s.want(pod_with(projected=wanting(by_name("one"))))
        found = await s.found(key_of(by_name("one")))
        assert isinstance(found, Unreadable)
        assert found.message == "ClusterTrustBundle projection is not supported in static kubelet mode"


async def test_while_the_gate_is_off_bundles_are_not_supported_and_not_requested() -> None:
    async with stand(ContentSettings(node="n"), serving()) as s:
        put(s.server, "one", A)
        for name in ("one", "two"):  # the second is wanted after the answer to the first
            s.want(pod_with(projected=wanting(by_name(name))))
            found = await s.found(key_of(by_name(name)))
            assert isinstance(found, Unreadable)
            assert found.message == "ClusterTrustBundle projection is not supported in static kubelet mode"
        assert s.server.count("GET", "certificates.k8s.io") == 0


async def test_what_is_served_is_asked_again_when_the_server_fails() -> None:
    async with stand(server=serving()) as s:
        put(s.server, "one", A)
        s.server.faults.append(ApiFault("GET", "/apis/certificates.k8s.io", 503, "ServiceUnavailable", "starting"))
        s.want(pod_with(projected=wanting(by_name("one"))))
        found = await s.found(key_of(by_name("one")))
        assert isinstance(found, Unreadable) and found.message.endswith("for ClusterTrustBundles: starting")
        await s.value(key_of(by_name("one")))


async def test_bundles_that_no_pod_wants_are_not_requested() -> None:
    async with stand(server=serving()) as s:
        s.want(pod_with())
        await s.until(lambda content: content.services is not None)
        assert s.server.count("GET", "certificates.k8s.io") == 0
