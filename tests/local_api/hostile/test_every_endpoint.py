"""Every endpoint with requests that no client should send: by an administrator, a pod without rights, and a client without a credential.

The endpoints are those of the tables that serve them. Bounds: no iteration of the event loop takes more CPU time than `is_short`
allows, no answer is a failure of the server, errors are a Status or a line of text, and memory does not grow.
"""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Iterator, Sequence

import msgspec
import pytest
from local_api.hostile.endpoints import (
    NAME,
    Attack,
    Endpoint,
    Header,
    all_endpoints,
    attacks_on,
    endpoints_of,
    other_endpoints,
)
from local_api.hostile.large import base_of
from local_api.hostile.measured import MeasuredApi, measured_api
from local_api.strategies.contract import path_of
from support.cost import bytes_in_use, is_short

from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.schema import load_schemas
from pykubelet_local_api.kinds.table import KINDS
from pykubelet_local_api.rest.paths import parse_target

#: What may stay in memory after all requests for a kind.
KEPT_BYTES = 8 << 20
#: An error may have so many bytes: it may show parts of a request.
ERROR_BYTES = 256 << 10
#: Of all requests for an endpoint, each so many-th is sent, beginning elsewhere for each endpoint; the crash tests send all.
EVERY = 30
#: Subresources that the agent answers: failures to reach it are answered as an API server does.
OF_AGENT = frozenset({"attach", "exec", "log", "portforward", "proxy"})
#: What no answer has: signs of a defect.
DEFECTS = (b"Traceback", b"Internal Server Error", b"object at 0x", b"Error(", b"<class", b"NoneType")


class RawClient:
    """Sends requests that a library would refuse to send. `headers`: those of each request."""

    def __init__(self, api: MeasuredApi, headers: Sequence[Header] = (), *, has_certificate: bool = False) -> None:
        self._api = api
        self._headers = headers
        self._has_certificate = has_certificate
        self._connection: http.client.HTTPSConnection | None = None

    def send(self, endpoint: Endpoint, attack: Attack) -> tuple[int, str, bytes]:
        """The status, media type and body of the answer. A stream is not read."""
        for _ in range(2):
            is_kept = self._connection is not None
            try:
                return self._send(endpoint, attack)
            except (OSError, http.client.HTTPException):
                self.close()
                if not is_kept:
                    raise
        raise AssertionError("the server closes every connection")

    def _send(self, endpoint: Endpoint, attack: Attack) -> tuple[int, str, bytes]:
        if self._connection is None:
            self._connection = self._api.connect(has_certificate=self._has_certificate)
            self._connection.connect()
        given = {name for name, _ in attack.headers}
        headers = [header for header in self._headers if header[0] not in given]
        headers += [("Host", "x"), *attack.headers]
        if attack.body or (attack.method in ("POST", "PUT", "PATCH") and "Content-Length" not in given):
            headers.append(("Content-Length", str(len(attack.body))))
        lines = [
            f"{attack.method} {endpoint.path}{attack.suffix} HTTP/1.1",
            *(f"{name}: {value}" for name, value in headers),
        ]
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.sock.sendall("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + attack.body)
        answer = http.client.HTTPResponse(self._connection.sock, method=attack.method)
        answer.begin()
        is_stream = answer.chunked and answer.status == 200 and (endpoint.is_watch or "watch=" in attack.suffix)
        data = b"" if is_stream else answer.read()
        if is_stream or answer.will_close or answer.status == 101:
            self.close()
        return answer.status, answer.getheader("Content-Type", ""), data

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


class Clients(dict[str, RawClient]):
    """The three clients by name."""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasuredApi]:
    load_schemas()
    with measured_api(tmp_path_factory.mktemp("api") / "data") as made:
        for kind in KINDS:
            if not kind.is_review and kind.name != "CertificateSigningRequest":  # needs a real request
                body = {**base_of(kind), "metadata": {"name": NAME}}
                assert made.ask("POST", path_of(kind, "default"), body)[0] in (201, 409), kind.name
        yield made


@pytest.fixture(scope="module")
def clients(api: MeasuredApi) -> Iterator[Clients]:
    _, data = api.ask("POST", "/api/v1/namespaces/default/serviceaccounts/default/token", {"spec": {}})
    token = msgspec.json.decode(data)["status"]["token"]
    made = Clients()
    made["an administrator"] = RawClient(api, has_certificate=True)
    made["a pod"] = RawClient(api, [("Authorization", f"Bearer {token}")])
    made["anonymous"] = RawClient(api)
    yield made
    for client in made.values():
        client.close()


def check(api: MeasuredApi, client: RawClient, endpoint: Endpoint, attack: Attack) -> tuple[int, list[str]]:
    """The status of the answer, and what is wrong with it."""
    api.loop.reset()
    status, media_type, data = client.send(endpoint, attack)
    held_s = api.loop.longest_s
    found = []
    if not is_short(held_s):
        found.append(f"the loop was held for {held_s * 1000:.0f} ms")
    if any(defect in data for defect in DEFECTS) or (status >= 500 and not _may_fail(endpoint, attack, status)):
        found.append("the server failed")
    if status >= 400 and attack.method != "HEAD":
        is_plain = media_type.startswith("text/plain") and b"\n" not in data.strip()
        if not is_plain and not (media_type == "application/json" and msgspec.json.decode(data)["kind"] == "Status"):
            found.append(f"the error is no Status: {media_type}")
        if len(data) > ERROR_BYTES:
            found.append(f"the error has {len(data)} bytes")
    return status, [f"{endpoint} {attack.name}: {status} {why}: {data[:200]!r}" for why in found]


def _may_fail(endpoint: Endpoint, attack: Attack, status: int) -> bool:
    """Where an API server, too, answers with a failure, in words: of the agent, of a wrong Binding, and of a patch that contradicts the
    schema."""
    if status == 504:
        return "resourceVersion=9" in attack.suffix  # a version that does not exist yet
    if status == 501:
        return attack.method not in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
    if endpoint.kind is not None and (
        endpoint.kind.name == "Binding" or endpoint.subresource in {"binding", *OF_AGENT}
    ):
        return status != 501
    return any("strategic" in value for _, value in attack.headers)


def attack_all(api: MeasuredApi, client: RawClient, endpoints: Sequence[Endpoint], every: int) -> list[str]:
    """Send each `every`-th request for each endpoint. Returns what is wrong."""
    wrong: list[str] = []
    for number, endpoint in enumerate(endpoints):
        for attack in attacks_on(endpoint)[number % every :: every]:
            wrong += check(api, client, endpoint, attack)[1]
    return wrong


def bounded(api: MeasuredApi, client: RawClient, endpoints: Sequence[Endpoint], every: int) -> None:
    """Attack, and compare the memory."""
    attack_all(api, client, endpoints[:2], every * 4)  # fills caches
    before = bytes_in_use()
    wrong = attack_all(api, client, endpoints, every)
    kept = bytes_in_use() - before
    assert not wrong, "\n".join([f"{len(wrong)} in all", *wrong[:30]])
    assert kept <= KEPT_BYTES, f"{kept >> 10} KiB are kept"


def test_all_that_discovery_names_is_attacked(api: MeasuredApi) -> None:
    """Discovery is read as a client reads it, so that an endpoint which the tables do not have is found."""
    groups = msgspec.json.decode(api.ask("GET", "/apis")[1])["groups"]
    versions = ["/api/v1", *(f"/apis/{version['groupVersion']}" for group in groups for version in group["versions"])]
    named = set()
    for path in versions:
        for resource in msgspec.json.decode(api.ask("GET", path)[1])["resources"]:
            named.add((path, resource["name"]))
    attacked = set()
    for endpoint in all_endpoints():
        target = parse_target(endpoint.path)
        if endpoint.kind is not None:
            assert target is not None, endpoint.path
            assert (target.kind, target.subresource, target.is_watch) == (
                endpoint.kind,
                endpoint.subresource,
                endpoint.is_watch,
            )
            version = f"/apis/{target.kind.api_version}" if target.kind.group else f"/api/{target.kind.version}"
            attacked.add((version, target.kind.plural + f"/{target.subresource}" * bool(target.subresource)))
    assert named == attacked


def test_paths_that_are_no_resources_are_served(api: MeasuredApi) -> None:
    assert {str(endpoint): api.ask("GET", endpoint.path)[0] for endpoint in other_endpoints()} == {
        str(endpoint): 200 for endpoint in other_endpoints()
    }


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.group}/{kind.name}")
def test_an_administrator_gets_an_answer_from_each_endpoint(
    api: MeasuredApi, clients: Clients, kind: ResourceKind
) -> None:
    bounded(api, clients["an administrator"], list(endpoints_of(kind)), EVERY)


def test_an_administrator_gets_an_answer_from_other_paths(api: MeasuredApi, clients: Clients) -> None:
    bounded(api, clients["an administrator"], list(other_endpoints()), EVERY * 2)


@pytest.mark.crash
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.group}/{kind.name}")
def test_all_requests_to_each_endpoint(api: MeasuredApi, clients: Clients, kind: ResourceKind) -> None:
    bounded(api, clients["an administrator"], list(endpoints_of(kind)), 1)


@pytest.mark.parametrize("who", ["a pod", "anonymous"])
def test_a_client_without_rights_is_refused_by_each_endpoint(api: MeasuredApi, clients: Clients, who: str) -> None:
    wrong: list[str] = []
    large = b'{"metadata":{"name":"hostile"},"x":"' + b"y" * 50_000 + b'"}'
    attacks = (
        Attack("a read", "GET"),
        Attack("a write", "POST", "", (("Content-Type", "application/json"),), large),
        Attack("a patch", "PATCH", "", (("Content-Type", "application/merge-patch+json"),), large),
        Attack("a deletion", "DELETE"),
    )
    for number, endpoint in enumerate(all_endpoints()):
        for attack in (attacks[0], attacks[1 + number % 3]):
            status, found = check(api, clients[who], endpoint, attack)
            wrong += found
            if status < 400 and not _is_for_all(endpoint, attack, who):
                wrong.append(f"{endpoint} {attack.name}: {status}")
    assert not wrong, "\n".join([f"{len(wrong)} in all", *wrong[:30]])


#: What clients learn about the server, and about themselves.
_OPEN = ("/healthz", "/livez", "/readyz", "/version")
_OF_PODS = ("/api", "/apis", "/openapi", "/openid", "/.well-known")


def _is_for_all(endpoint: Endpoint, attack: Attack, who: str) -> bool:
    if endpoint.kind is not None:
        return who == "a pod" and attack.method == "POST" and endpoint.kind.name.startswith("Self")
    return attack.method == "GET" and endpoint.path.startswith(_OPEN if who == "anonymous" else (*_OPEN, *_OF_PODS))
