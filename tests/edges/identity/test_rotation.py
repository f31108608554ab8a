"""Certificates asked for, issued, renewed and refused, with a signer that works on the fake API server. Time is virtual."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from support.api_objects import parse_resource_path
from support.api_server import ApiFault, FakeApiServer
from support.memory_api import virtual_api_server
from support.pki import Authority
from support.unreachable import UnreachableClient
from support.virtual_time import VirtualClock

from pykubelet.base.api.core import NodeAddress
from pykubelet.base.kit.cells import make_cell
from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.flight import Failed, Outcome, SingleFlight
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.credentials import CertificateState, Credentials
from pykubelet.base.model.node import NodeView
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.identity.bootstrap import BootstrapClient, FirstPair, choose_access, first_pair, write_when_issued
from pykubelet.edges.identity.decide import WantedCertificate, client_certificate, serving_certificate
from pykubelet.edges.identity.keys import describe_pair
from pykubelet.edges.identity.rotation import (
    LOOK_AGAIN_S,
    REQUESTS,
    SERVED,
    CertificateLoop,
    CertificateSigners,
    IssuePeriods,
)
from pykubelet.edges.identity.store import CertificateStore
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.kubeconfig import ClusterAccess, KubeconfigError, Pem, load_access
from pykubelet_local_api.objects import Json

pytestmark = pytest.mark.virtual_time

T = TypeVar("T")
CLIENT, SERVING = client_certificate("n"), serving_certificate("n")
#: Longer than any wait of the loop, but for a certificate to become due.
LONG_S = 3 * IssuePeriods().first


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


class Stand:
    """A fake API server with a signer, and loops that keep certificates in one folder."""

    def __init__(self, server: FakeApiServer, authority: Authority, folder: Path) -> None:
        assert isinstance(server.clock, VirtualClock)
        self.server, self.folder, self.clock = server, folder, server.clock
        self._authority = authority
        self.credentials, self._credentials_writer = make_cell("credentials", Credentials())
        self.node, self.set_node = make_cell("node", NodeView("n", "n"))
        self.supervisor = Supervisor("test")
        self.clients: list[ApiClient] = []

    def client(self) -> ApiClient:
        self.clients.append(self.connect(self.server.access()))
        return self.clients[-1]

    def connect(self, access: ClusterAccess) -> ApiClient:
        return ApiClient(access, self.clock)

    def store(self, wanted: WantedCertificate = CLIENT) -> CertificateStore:
        return CertificateStore(str(self.folder), "kubelet-client" if wanted.use == "client" else "kubelet-server")

    def start(
        self,
        wanted: WantedCertificate = CLIENT,
        askers: CertificateSigners | None = None,
        initial: FirstPair | None = None,
        periods: IssuePeriods | None = None,
    ) -> Supervisor:
        node = self.node if wanted.use == "serving" else None
        ends = (self._credentials_writer, node)
        tools = (self.clock, SingleFlight("test"))
        askers = askers or CertificateSigners(self.client())
        loop = CertificateLoop(wanted, self.store(wanted), askers, ends, tools, periods, initial)
        supervisor = Supervisor("agent")
        supervisor.start_root("certificate", loop.run())
        self.supervisor.start_child("ends", supervisor.wait_failed())
        self._supervisors = [*getattr(self, "_supervisors", []), supervisor]
        return supervisor

    async def stop(self) -> None:
        for supervisor in (*getattr(self, "_supervisors", []), self.supervisor):
            await supervisor.stop()
        for client in self.clients:
            await client.close()

    def requests(self) -> list[Json]:
        place = parse_resource_path(REQUESTS)
        assert place is not None
        return self.server.store.list(place)

    async def request(self, number: int = 1) -> Json:
        """The signing request with this number, as soon as it is there."""
        wakeup = asyncio.Event()
        self.server.store.watch(wakeup)
        try:
            async with asyncio.timeout(LONG_S):
                while len(self.requests()) < number:
                    await wakeup.wait()
                    wakeup.clear()
        finally:
            self.server.store.unwatch(wakeup)
        return self.requests()[number - 1]

    def answer(self, request: Json, days: int = 10) -> bytes:
        """Sign it."""
        source, made = self.folder.parent / "request.pem", self.folder.parent / "issued.pem"
        source.write_bytes(base64.b64decode(request["spec"]["request"]))
        self._authority.sign_request(source, made, days=days)
        issued = made.read_bytes()
        status = {"certificate": base64.b64encode(issued).decode()}
        self._set_status(request, status)
        return issued

    def deny(self, request: Json) -> None:
        condition = {"type": "Denied", "status": "True", "reason": "Test", "message": "not today"}
        self._set_status(request, {"conditions": [condition]})

    def _set_status(self, request: Json, status: Json) -> None:
        path = f"{REQUESTS}/{request['metadata']['name']}/status"
        self.server.update(path, lambda body: body.update(status=status))

    async def until(self, holds: Callable[[CertificateState], object], use: str = "client") -> CertificateState:
        def wanted(now: Credentials) -> bool:
            return use in now.certificates and bool(holds(now.certificates[use]))

        try:
            async with asyncio.timeout(LONG_S):
                return (await self.credentials.wait_for(wanted)).certificates[use]
        except TimeoutError:
            raise AssertionError(f"never so: {self.credentials.get()}") from None


@pytest.fixture
async def stand(authority: Authority, tmp_path: Path) -> AsyncIterator[Stand]:
    async with virtual_api_server() as server:
        stand = Stand(server, authority, tmp_path / "pki")
        yield stand
        await stand.stop()


def openssl(path: str, *what: str) -> str:
    argv = ["openssl", "x509", "-noout", *what, "-in", path]
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout


async def test_a_first_certificate_is_asked_for_stored_and_current(stand: Stand) -> None:
    stand.start()
    request = await stand.request()
    assert request["spec"]["signerName"] == "kubernetes.io/kube-apiserver-client-kubelet"
    assert request["spec"]["usages"] == ["digital signature", "client auth"]
    assert request["metadata"]["name"].startswith("node-csr-")
    waiting = await stand.until(lambda state: state.request)
    assert waiting.request == request["metadata"]["name"] and waiting.expires_at is None
    issued = stand.answer(request)
    state = await stand.until(lambda state: state.expires_at)
    assert state.file == f"{stand.folder}/kubelet-client-current.pem" and not state.request and not state.problem
    assert state.next_at is not None and state.expires_at is not None
    life = 10 * 86400
    assert state.expires_at - 0.3 * life - 60 <= state.next_at <= state.expires_at - 0.1 * life + 60
    pem = Path(state.file).read_bytes()
    assert pem.startswith(issued.strip()) and b"PRIVATE KEY" in pem
    target = Path(os.readlink(state.file))
    assert target.parent == stand.folder and target.stat().st_mode & 0o777 == 0o600
    assert openssl(state.file, "-subject").strip().replace(" ", "") == "subject=O=system:nodes,CN=system:node:n"
    assert {path.name for path in stand.folder.iterdir()} == {"kubelet-client-current.pem", target.name}


async def test_a_restart_finds_its_signing_request_again(stand: Stand) -> None:
    first = stand.start()
    request = await stand.request()
    await stand.until(lambda state: state.request)
    await first.stop()
    stand.start()
    await stand.until(lambda state: state.request)
    await asyncio.sleep(2 * LOOK_AGAIN_S)
    stand.answer(request)
    await stand.until(lambda state: state.expires_at)
    assert len(stand.requests()) == 1


@pytest.mark.parametrize("garbage", [b"", b"no key", b"\xff\xfe\x00"], ids=["empty", "text", "bytes"])
async def test_a_garbage_key_of_the_last_signing_request_is_replaced(stand: Stand, garbage: bytes) -> None:
    stand.store().keep_key(garbage)
    stand.start()
    stand.answer(await stand.request())
    await stand.until(lambda now: now.expires_at is not None)
    assert len(stand.requests()) == 1


async def test_a_certificate_is_renewed_before_it_expires(stand: Stand) -> None:
    stand.start()
    stand.answer(await stand.request(), days=10)
    state = await stand.until(lambda state: state.expires_at)
    first = Path(os.readlink(state.file))
    stand.clock.jump_wall(6.9 * 86400)
    await asyncio.sleep(2 * LOOK_AGAIN_S)
    assert len(stand.requests()) == 1
    stand.clock.jump_wall(2.2 * 86400)
    second = await stand.request(2)
    assert second["metadata"]["name"].startswith("csr-")
    assert Path(os.readlink(state.file)) == first  # the old one goes on while the new one is waited for
    stand.answer(second, days=20)
    newer = await stand.until(lambda now: now.expires_at and now.expires_at > (state.expires_at or 0))
    assert Path(os.readlink(newer.file)) != first and first.exists()


async def test_a_certificate_that_has_expired_by_our_clock_is_used_and_asked_for_again_with_pauses(
    stand: Stand,
) -> None:
    stand.clock.jump_wall(20 * 86400)
    stand.start()
    issued = stand.answer(await stand.request(), days=10)
    state = await stand.until(lambda c: "clock" in c.problem)
    assert state.next_at is not None and state.next_at > stand.clock.wall()
    assert Path(state.file).read_bytes().startswith(issued.rstrip())
    await asyncio.sleep(state.next_at - stand.clock.wall() - 0.1)
    assert len(stand.requests()) == 1
    stand.answer(await stand.request(2), days=30)
    state = await stand.until(lambda c: not c.problem and not c.request)
    assert state.expires_at is not None and state.expires_at > stand.clock.wall()


def sent_requests(stand: Stand) -> list[bytes]:
    """The signing requests that were sent, answered or not."""
    sent = [sent.body["spec"]["request"] for sent in stand.server.requests if sent.method == "POST"]
    return [base64.b64decode(text) for text in sent]


def public_key(pem: bytes) -> bytes:
    argv = ["openssl", "req", "-noout", "-pubkey"]
    return subprocess.run(argv, input=pem, check=True, capture_output=True, timeout=60).stdout


@pytest.mark.parametrize("use", ["client", "serving"])
async def test_a_request_that_failed_is_sent_again_with_its_key(stand: Stand, use: str) -> None:
    """Making a key takes a process: an API server that is away for days must not cost one for every try."""
    stand.set_node.publish(NodeView("n", "n", ips=("10.0.0.1",)))
    stand.server.faults.append(ApiFault(method="POST", status=503, message="busy", times=2))
    stand.start(CLIENT if use == "client" else SERVING)
    request = await stand.request()
    failed, again, arrived = sent_requests(stand)
    assert failed == again == arrived
    stand.answer(request)
    state = await stand.until(lambda state: state.expires_at, use)
    assert (await describe_pair(Path(state.file).read_bytes())).name == "system:node:n"


async def test_a_first_request_without_an_answer_in_time_is_waited_for_again(stand: Stand) -> None:
    stand.start()
    request = await stand.request()
    await stand.until(lambda state: "was not approved" in state.problem)
    stand.answer(request)
    await stand.until(lambda state: state.expires_at)
    assert len(stand.requests()) == 1


async def test_the_key_is_kept_for_other_addresses_and_never_used_for_two_certificates(stand: Stand) -> None:
    stand.set_node.publish(NodeView("n", "n", ips=("10.0.0.1",)))
    stand.start(SERVING)
    await stand.request()
    stand.set_node.publish(NodeView("n", "n", ips=("10.0.0.2",)))
    stand.answer(await stand.request(2))
    state = await stand.until(lambda state: state.expires_at, "serving")
    assert "10.0.0.2" in openssl(state.file, "-ext", "subjectAltName")
    stand.clock.jump_wall(20 * 86400)
    await stand.request(3)
    first, second, renewal = (public_key(pem) for pem in sent_requests(stand))
    assert first == second != renewal


async def test_a_denied_request_is_followed_by_another_with_another_key(stand: Stand) -> None:
    stand.start()
    request = await stand.request()
    stand.deny(request)
    state = await stand.until(lambda state: state.problem)
    assert state.problem == f"{request['metadata']['name']}: the signing request was denied: Test: not today"
    assert state.next_at is not None
    second = await stand.request(2)
    assert second["metadata"]["name"] != request["metadata"]["name"]
    stand.answer(second)
    assert not (await stand.until(lambda state: state.expires_at)).problem


async def test_an_unreachable_api_server_is_reported_and_tried_again(stand: Stand) -> None:
    stand.server.faults.append(ApiFault(method="POST", status=503, message="busy"))
    stand.start()
    assert "busy" in (await stand.until(lambda state: state.problem)).problem
    stand.answer(await stand.request())
    await stand.until(lambda state: state.expires_at)


def write_token_kubeconfig(path: Path, access: ClusterAccess) -> None:
    """JSON is YAML."""
    cluster = {"server": access.server, "certificate-authority-data": base64.b64encode(access.ca.data).decode()}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "k", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": access.token}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    }
    path.write_text(json.dumps(document))


async def test_an_expired_certificate_is_replaced_by_way_of_the_bootstrap_token(stand: Stand, tmp_path: Path) -> None:
    first = stand.start()
    stand.answer(await stand.request(), days=1)
    await stand.until(lambda state: state.expires_at)
    await first.stop()
    stand.clock.jump_wall(2 * 86400)
    expired, path = stand.client(), tmp_path / "bootstrap.kubeconfig"
    old = replace(stand.server.access(), token="of-before")
    stand.server.token = "bootstrap_client"
    bootstrap_client = BootstrapClient(str(path), old, stand.connect)
    stand.start(askers=CertificateSigners(expired, bootstrap_client))
    assert "Unauthorized" in (await stand.until(lambda state: state.problem)).problem
    write_token_kubeconfig(path, stand.server.access())
    stand.answer(await stand.request(2))
    now = stand.clock.wall()
    await stand.until(lambda state: state.expires_at and state.expires_at > now)
    await bootstrap_client.close()


async def test_a_renewal_without_an_answer_does_not_outlast_the_certificate(stand: Stand, tmp_path: Path) -> None:
    first = stand.start()
    stand.answer(await stand.request(), days=1)
    state = await stand.until(lambda state: state.expires_at)
    await first.stop()
    assert state.expires_at is not None
    stand.clock.jump_wall(state.expires_at - stand.clock.wall() - LOOK_AGAIN_S)
    access = stand.server.access()
    bootstrap_client = BootstrapClient(str(tmp_path / "none"), access, stand.connect)
    stand.start(askers=CertificateSigners(stand.client(), bootstrap_client))
    await stand.request(2)
    assert "was not approved" in (await stand.until(lambda state: state.problem)).problem
    assert abs(stand.clock.wall() - state.expires_at) < 1.0
    stand.answer(await stand.request(3))
    await stand.until(lambda state: state.expires_at and state.expires_at > stand.clock.wall())
    await bootstrap_client.close()


async def test_a_serving_certificate_names_the_addresses_and_follows_them(stand: Stand) -> None:
    stand.start(SERVING)
    state = await stand.until(lambda state: state.problem, "serving")
    assert state.problem == "the node has no address yet" and not stand.requests()
    stand.set_node.publish(NodeView("n", "n", ("10.0.0.1",)))
    request = await stand.request()
    assert request["spec"]["signerName"] == "kubernetes.io/kubelet-serving"
    assert request["spec"]["usages"] == ["digital signature", "server auth"]
    stand.answer(request)
    state = await stand.until(lambda state: state.expires_at, "serving")
    assert "DNS:n, IP Address:10.0.0.1" in openssl(state.file, "-ext", "subjectAltName")
    stand.set_node.publish(NodeView("n", "n", ("10.0.0.1", "10.0.0.2")))
    rotated = SERVED.count()
    stand.answer(await stand.request(2))
    await asyncio.sleep(1.0)
    assert "10.0.0.2" in openssl(state.file, "-ext", "subjectAltName")
    assert SERVED.count() == rotated + 1


async def test_a_serving_certificate_names_what_the_cloud_provider_reports(stand: Stand) -> None:
    given = [
        ("Hostname", "n"),
        ("InternalIP", "10.0.0.1"),
        ("ExternalIP", "192.0.2.7"),
        ("ExternalDNS", "n.example.com"),
    ]
    addresses = tuple(NodeAddress(type=kind, address=address) for kind, address in given)
    before = NodeView("n", "n", ("10.0.0.9",), addresses=addresses[:1])
    stand.set_node.publish(before)
    stand.start(SERVING)
    state = await stand.until(lambda state: state.problem, "serving")
    assert state.problem == "the node has no address yet" and not stand.requests()
    stand.set_node.publish(replace(before, addresses=addresses))
    stand.answer(await stand.request())
    state = await stand.until(lambda state: state.expires_at, "serving")
    names = openssl(state.file, "-ext", "subjectAltName")
    assert "DNS:n, DNS:n.example.com, IP Address:10.0.0.1, IP Address:192.0.2.7" in names


async def test_a_request_for_addresses_that_the_node_has_no_longer_is_not_waited_for(stand: Stand) -> None:
    stand.set_node.publish(NodeView("n", "n", ("10.0.0.1",)))
    stand.start(SERVING)
    await stand.request()  # it is never approved
    stand.set_node.publish(NodeView("n", "n", ("10.0.0.2",)))
    stand.answer(await stand.request(2))
    state = await stand.until(lambda state: state.expires_at, "serving")
    assert "IP Address:10.0.0.2" in openssl(state.file, "-ext", "subjectAltName")


async def test_odd_addresses_from_the_cloud_provider_do_no_harm(stand: Stand) -> None:
    given = [("InternalIP", "FD00::0:1"), ("InternalIP", "unknown"), ("ExternalDNS", "")]
    addresses = tuple(NodeAddress(type=kind, address=address) for kind, address in given)
    stand.set_node.publish(NodeView("n", "n", addresses=addresses))
    stand.start(SERVING)
    stand.answer(await stand.request())
    state = await stand.until(lambda state: state.expires_at, "serving")
    assert not state.problem
    await asyncio.sleep(2 * LOOK_AGAIN_S)
    assert len(stand.requests()) == 1


async def test_the_kubeconfigs_own_certificate_counts_until_it_is_due(stand: Stand, authority: Authority) -> None:
    own = authority.sign("own", "/O=system:nodes/CN=system:node:n", days=10)
    access = replace(stand.server.access(), client_cert=Pem(str(own.cert)), client_key=Pem(str(own.key)))
    stand.start(initial=first_pair(access))
    assert (await stand.until(lambda state: state.expires_at)).next_at
    assert not stand.requests()


async def test_a_pair_in_the_kubeconfig_is_stored_and_replaced_at_once(stand: Stand, authority: Authority) -> None:
    """As kubeadm writes the kubeconfig of the first node: it waits for the store's file and then refers to it."""
    own = authority.sign("own", "/O=system:nodes/CN=system:node:n", days=10)
    cert, key = Pem(data=own.cert.read_bytes()), Pem(data=own.key.read_bytes())
    initial = first_pair(replace(stand.server.access(), client_cert=cert, client_key=key))
    agent = stand.start(initial=initial)
    request = await stand.request()
    current = Path(stand.store().current)
    assert current.read_bytes().split() == (cert.data + key.data).split()
    assert request["metadata"]["name"].startswith("csr-"), "requested by the node itself"

    # not before it has been replaced: a restart goes on with the stored pair, whatever the kubeconfig contains
    await agent.stop()
    stand.start(initial=initial)
    assert (await stand.until(lambda state: state.next_at)).expires_at
    assert len(stand.requests()) == 1 and len(list(stand.folder.iterdir())) == 2


async def test_a_stored_pair_that_has_expired_is_replaced_by_the_one_in_the_kubeconfig(
    stand: Stand, authority: Authority
) -> None:
    old, new = (
        authority.sign(name, "/O=system:nodes/CN=system:node:n", days=days) for name, days in (("old", 5), ("new", 50))
    )
    stand.store().write(old.cert.read_bytes(), old.key.read_bytes(), stand.clock.wall())
    stand.clock.jump_wall(10 * 86400)
    stand.start(initial=FirstPair(new.cert.read_bytes(), new.key.read_bytes(), embedded=True))
    request = await stand.request()
    assert Path(stand.store().current).read_bytes().startswith(new.cert.read_bytes().strip())
    stand.answer(request, days=60)
    state = await stand.until(lambda state: state.expires_at and not state.request and state.next_at)
    assert state.expires_at and state.expires_at > stand.clock.wall() + 45 * 86400


@pytest.mark.parametrize("embedded", [True, False])
async def test_a_pair_that_does_not_fit_is_replaced(stand: Stand, authority: Authority, embedded: bool) -> None:
    first, second = (authority.sign(name, "/O=system:nodes/CN=system:node:n") for name in ("one", "two"))
    stand.start(initial=FirstPair(first.cert.read_bytes(), second.key.read_bytes(), embedded))
    stand.answer(await stand.request())
    await stand.until(lambda state: state.expires_at)


async def test_the_kubeconfig_is_written_when_the_certificate_is_there(stand: Stand, tmp_path: Path) -> None:
    bootstrap, kubeconfig = tmp_path / "bootstrap.kubeconfig", tmp_path / "etc" / "kubelet.conf"
    bootstrap.write_text(
        f"""{{apiVersion: v1, kind: Config, current-context: c,
        clusters: [{{name: k, cluster: {{server: "{stand.server.url}", certificate-authority-data: QUJD}}}}],
        users: [{{name: u, user: {{token: secret}}}}], contexts: [{{name: c, context: {{cluster: k, user: u}}}}]}}"""
    )
    current = stand.store().current
    access = choose_access(str(kubeconfig), str(bootstrap), current)
    assert access.writes and access.bootstrap is not None and access.bootstrap.token == "secret"
    writing = write_when_issued(str(kubeconfig), access.access, stand.credentials, SingleFlight("test"))
    stand.supervisor.start_child("kubeconfig", writing)
    stand.start()
    request = await stand.request()
    assert not kubeconfig.exists()
    stand.answer(request)
    await asyncio.sleep(1.0)
    assert kubeconfig.exists()
    written = load_access(str(kubeconfig))
    assert written.client_cert == written.client_key == Pem(current)
    assert (written.server, written.ca, written.token) == (stand.server.url, Pem(data=b"ABC"), "")
    assert kubeconfig.stat().st_mode & 0o777 == 0o600
    again = choose_access(str(kubeconfig), str(bootstrap), current)
    assert not again.writes and again.access == written
    bootstrap.unlink()
    assert choose_access(str(kubeconfig), str(bootstrap), current).bootstrap is None


def test_no_kubeconfig_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match="no such file"):
        choose_access(str(tmp_path / "k"), "", "x")
    with pytest.raises(KubeconfigError, match="no such file"):
        choose_access(str(tmp_path / "k"), str(tmp_path / "b"), "x")


async def test_a_client_waits_for_its_certificate_to_come(stand: Stand) -> None:
    access = replace(
        stand.server.access(), client_cert=Pem(stand.store().current), client_key=Pem(stand.store().current)
    )
    client = stand.connect(access)
    stand.clients.append(client)
    with pytest.raises(ApiError) as caught:
        await client.request("GET", "/healthz")
    assert caught.value.reason == "Credentials" and caught.value.is_transient


def test_an_interrupted_update_is_finished(tmp_path: Path) -> None:
    (tmp_path / "pair.pem").write_bytes(b"pair")
    (tmp_path / "kubelet-client-updated.pem").symlink_to(tmp_path / "pair.pem")
    store = CertificateStore(str(tmp_path), "kubelet-client")
    assert store.read() == b"pair"
    assert os.readlink(store.current) == str(tmp_path / "pair.pem")


def test_a_plain_file_in_the_links_place_is_kept_aside(tmp_path: Path) -> None:
    store = CertificateStore(str(tmp_path), "kubelet-client")
    Path(store.current).write_bytes(b"by hand")
    store.write(b"cert\n", b"key\n", 0.0)
    assert store.read() == b"cert\nkey\n"
    assert (tmp_path / "kubelet-client-1970-01-01-00-00-00-before.pem").read_bytes() == b"by hand"


class BrokenDisk(SingleFlight):
    """Every piece of work fails at once. `tries`: how many there were."""

    def __init__(self) -> None:
        super().__init__("broken")
        self.tries = 0

    async def run(self, key: str, work: Callable[[], T], deadline_s: float) -> Outcome[T]:
        self.tries += 1
        return Failed(HostError("read", key, "EIO", "Input/output error"))


async def test_a_week_without_success_ends_nothing(tmp_path: Path) -> None:
    credentials, writer = make_cell("credentials", Credentials())
    disk = BrokenDisk()
    store = CertificateStore(str(tmp_path), "kubelet-client")
    loop = CertificateLoop(
        CLIENT, store, CertificateSigners(UnreachableClient()), (writer, None), (SystemClock(), disk)
    )
    async with Supervisor("test") as supervisor:
        supervisor.start_root("certificate", loop.run())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7 * 86400.0):
                raise await supervisor.wait_failed()
    assert disk.tries > 7 * 86400 / 33
    assert "Input/output error" in credentials.get().certificates["client"].problem
