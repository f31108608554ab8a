"""What `explain` shows about the API server and certificates."""

from __future__ import annotations

from report.samples import WALL
from serve.world import make_world

from pykubelet.app.volumes_shown import claim_lines
from pykubelet.base.api.codec import from_object
from pykubelet.base.api.storage import PersistentVolume, PersistentVolumeClaim
from pykubelet.base.kit.cells import make_cell
from pykubelet.base.kit.values import replace
from pykubelet.base.model.content import Absent, Content, ContentKind, Found, ObjectKey, Present
from pykubelet.base.model.credentials import CertificateState, Credentials
from pykubelet.base.model.node import ApiState, NodeView
from pykubelet.serve.explain.documents import node_document
from pykubelet.serve.explain.node import Document, api_document, claim_documents, cluster_waits

NOW = WALL + 100
HERE = ApiState("https://api:6443", "", NOW - 3, WALL)
NODE = NodeView("n", "n", registered=True, uid="u1")
FILE = "/pki/kubelet-client-current.pem"


def waits(api: ApiState, node: NodeView = NODE, **certificates: CertificateState) -> list[tuple[str, str, str]]:
    found = cluster_waits(api, Credentials(certificates), node, NOW, WALL)
    return [(wait.what, wait.reason, wait.detail) for wait in found]


def test_a_node_that_stands_alone_waits_for_no_api_server() -> None:
    assert waits(ApiState(), NodeView("n", "n")) == []
    assert api_document(ApiState(), NODE) is None


def test_a_node_that_is_well_waits_for_nothing() -> None:
    assert waits(HERE, client=CertificateState(FILE, NOW + 5)) == []


def test_an_api_server_that_is_away() -> None:
    away = ApiState("https://api:6443", "no answer within 10 s", WALL, WALL + 50)
    (wait,) = cluster_waits(away, Credentials(), NODE, NOW, WALL)
    assert (wait.what, wait.since, wait.detail, wait.next_step) == (
        "API server",
        WALL + 50,
        "no answer within 10 s",
        "ask again",
    )


def test_a_node_that_is_not_registered() -> None:
    assert waits(HERE, NodeView("n", "n")) == [("registration", "", 'there is no Node "n" yet')]


def test_explain_shows_what_holds_up_the_registration_and_when_it_is_tried_again() -> None:
    refused = replace(HERE, node_error="nodes is forbidden", node_since=NOW - 1, node_next_at=NOW + 2)
    (wait,) = cluster_waits(refused, Credentials(), NodeView("n", "n"), NOW, WALL)
    assert (wait.detail, wait.next_at) == ('there is no Node "n" yet: nodes is forbidden', NOW + 2)
    (wait,) = cluster_waits(refused, Credentials(), NODE, NOW, WALL)
    assert (wait.what, wait.detail, wait.next_at) == ("node status", "nodes is forbidden", NOW + 2)
    assert wait.since == NOW - 1
    away = replace(HERE, error="no answer", next_at=NOW + 3)
    (wait,) = cluster_waits(away, Credentials(), NODE, NOW, WALL)
    assert (wait.what, wait.next_at) == ("API server", NOW + 3)


def test_certificates_that_are_missing_expired_or_waited_for() -> None:
    assert waits(HERE, client=CertificateState(FILE, None, "csr-1")) == [
        ("client certificate", "there is none yet", "signing request csr-1 is to be approved")
    ]
    assert waits(HERE, client=CertificateState(FILE, 0.0, problem="refused")) == [
        ("client certificate", "expired at 1970-01-01T00:00:00Z", "refused")
    ]
    assert waits(HERE, serving=CertificateState(FILE, NOW + 5, problem="refused")) == [
        ("serving certificate", "", "refused")
    ]


def test_the_answer_about_the_node_has_all_of_it() -> None:
    world = make_world()
    api, _ = make_cell("api", HERE)
    credentials, _ = make_cell("credentials", Credentials({"client": CertificateState(FILE, NOW + 5)}))
    document = node_document(replace(world.inputs, api=api, credentials=credentials), NOW, WALL)
    assert document["api"]["server"] == "https://api:6443" and document["api"]["registered"] is False
    assert document["certificates"][0]["use"] == "client"
    assert [wait["what"] for wait in document["waits"]] == ["registration"]
    assert node_document(world.inputs, NOW, WALL)["api"] is None


def test_claims_and_volumes_of_manifests_are_listed() -> None:
    claim: Document = {"spec": {"volumeName": "disk"}, "status": {"phase": "Bound", "capacity": {"storage": "5Gi"}}}
    volume: Document = {"spec": {"capacity": {"storage": "5Gi"}}, "status": {"phase": "Bound"}}
    other: Document = {"spec": {"capacity": {"storage": "9Gi"}}, "status": {"phase": "Available"}}
    objects: dict[ObjectKey, Found] = {
        ObjectKey(ContentKind.VOLUME, "", "free"): Present(from_object(PersistentVolume, other)),
        ObjectKey(ContentKind.VOLUME, "", "disk"): Present(from_object(PersistentVolume, volume)),
        ObjectKey(ContentKind.VOLUME_CLAIM, "default", "lost"): Absent("PVC is lost"),
        ObjectKey(ContentKind.VOLUME_CLAIM, "default", "data"): Present(from_object(PersistentVolumeClaim, claim)),
    }
    assert list(claim_lines(claim_documents(Content(objects=objects, has_manifests=True)))) == [
        "  default/data: PersistentVolume disk, 5Gi",
        "  default/lost: PVC is lost",
        "  PersistentVolume free, 9Gi: no claim has it",
    ]
    assert claim_documents(Content(objects=objects, available=True)) == []
