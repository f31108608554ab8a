"""The credentials of the agent, while tokens, certificates and authorities change."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.api_server import FakeApiServer
from support.pki import Authority, Signed

from pykubelet.base.api.core import Node
from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.kit.values import replace
from pykubelet.edges.kubeapi.client import ApiClient, ClientLimits
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.kubeconfig import ClusterAccess, ExecPlugin, Pem

NODE = "/api/v1/nodes/n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@asynccontextmanager
async def asking(access: ClusterAccess, clock: ManualClock, rotated: Pem | None = None) -> AsyncIterator[ApiClient]:
    client = ApiClient(access, clock, ClientLimits(qps=0, deadline_s=5), rotated=rotated)
    try:
        yield client
    finally:
        await client.close()


def server_context(signed: Signed, clients: Path | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(signed.cert, signed.key)
    if clients is not None:
        context.load_verify_locations(clients)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def get(client: ApiClient) -> Node:
    return await client.get(NODE, Node)


async def refusal(client: ApiClient) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await get(client)
    return caught.value


async def test_a_token_that_expired_is_read_again_at_once(
    server: FakeApiServer, clock: ManualClock, tmp_path: Path
) -> None:
    server.create("/api/v1/nodes", {"metadata": {"name": "n"}})
    server.token = "first"
    token = tmp_path / "token"
    token.write_text("first\n")
    async with asking(replace(server.access(), token="", token_file=str(token)), clock) as client:
        await get(client)
        server.token = "second"
        token.write_text("second\n")
        await get(client)  # refused once, read again, repeated
        assert [sent.headers["authorization"][-6:] for sent in server.requests] == [" first", " first", "second"]
        server.token = "third"
        assert (await refusal(client)).status == 401


async def test_a_token_file_is_looked_at_again_each_second(
    server: FakeApiServer, clock: ManualClock, tmp_path: Path
) -> None:
    server.create("/api/v1/nodes", {"metadata": {"name": "n"}})
    token = tmp_path / "token"
    token.write_text("first")
    async with asking(replace(server.access(), token_file=str(token)), clock) as client:
        await get(client)
        token.write_text("second")
        clock.advance(1.1)
        await get(client)
        token.unlink()  # being replaced: the last reading goes on
        clock.advance(1.1)
        await get(client)
    assert [sent.headers["authorization"] for sent in server.requests[1:]] == ["Bearer second"] * 2


def plugin(folder: Path, body: str) -> ExecPlugin:
    program = folder / "plugin"
    program.write_text(f"#!/bin/sh\necho x >>{folder}/runs\n{body}\n")
    program.chmod(0o755)
    return ExecPlugin(str(program), env=(("GREETING", "hello"),), install_hint="get it somewhere")


def credential(expires: str = "", **status: str) -> str:
    body = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    if expires:
        body["status"] = {**status, "expirationTimestamp": expires}
    return json.dumps(body)


async def test_a_plugin_is_asked_once_until_its_token_expires(
    server: FakeApiServer, clock: ManualClock, tmp_path: Path
) -> None:
    server.create("/api/v1/nodes", {"metadata": {"name": "n"}})
    server.token = "handed"
    answer = credential("2023-11-14T22:14:00Z", token="handed")  # the manual clock begins 40 s before
    access = replace(server.access(), token="", plugin=plugin(tmp_path, f"echo '{answer}'"))
    async with asking(access, clock) as client:
        await get(client)
        clock.advance(30)
        await get(client)
        assert (tmp_path / "runs").read_text() == "x\n"
        clock.advance(30)
        await get(client)
        assert (tmp_path / "runs").read_text() == "x\nx\n"


async def test_a_plugin_whose_token_is_refused_is_asked_once_more(
    server: FakeApiServer, clock: ManualClock, tmp_path: Path
) -> None:
    server.token = "another"
    access = replace(server.access(), token="", plugin=plugin(tmp_path, f"echo '{credential(token='handed')}'"))
    async with asking(access, clock) as client:
        assert (await refusal(client)).status == 401
    assert (tmp_path / "runs").read_text() == "x\nx\n"


async def test_a_plugin_gets_what_it_needs(server: FakeApiServer, clock: ManualClock, tmp_path: Path) -> None:
    server.create("/api/v1/nodes", {"metadata": {"name": "n"}})
    answer = credential(token="t")
    body = f"echo \"$GREETING $KUBERNETES_EXEC_INFO\" >{tmp_path}/info; echo '{answer}'"
    access = replace(server.access(), plugin=plugin(tmp_path, body))
    async with asking(access, clock) as client:
        await get(client)
    greeting, _, info = (tmp_path / "info").read_text().partition(" ")
    assert greeting == "hello"
    assert json.loads(info) == {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("echo no >&2; exit 3", "exit status 3: no"),
        ("echo secret", "printed no ExecCredential"),
        (f"echo '{credential()}'", "printed neither a token nor a certificate"),
        (f"echo '{credential(clientCertificateData='secret')}'", "printed a certificate without its key"),
        (f"echo '{credential('soon', token='secret')}'", "printed an expirationTimestamp that is no time"),
    ],
)
async def test_a_plugin_that_fails_is_named_and_its_output_is_not(
    server: FakeApiServer, clock: ManualClock, tmp_path: Path, body: str, complaint: str
) -> None:
    async with asking(replace(server.access(), plugin=plugin(tmp_path, body)), clock) as client:
        error = await refusal(client)
    assert error.reason == "Credentials" and complaint in error.message
    assert "secret" not in error.message


async def test_a_plugin_that_is_not_installed(server: FakeApiServer, clock: ManualClock, tmp_path: Path) -> None:
    missing = ExecPlugin(str(tmp_path / "none"), install_hint="get it somewhere")
    async with asking(replace(server.access(), plugin=missing), clock) as client:
        assert "get it somewhere" in (await refusal(client)).message


@pytest.fixture
async def secured(authority: Authority, tmp_path: Path) -> AsyncIterator[FakeApiServer]:
    """Takes only clients with a certificate of the authority."""
    own = authority.sign("server", "/CN=server")
    server = FakeApiServer(tls=server_context(own, authority.cert), ca=authority.cert.read_bytes())
    async with server:
        server.create("/api/v1/nodes", {"metadata": {"name": "n"}})
        yield server


def with_certificate(server: FakeApiServer, path: Path) -> ClusterAccess:
    return replace(server.access(), client_cert=Pem(str(path)), client_key=Pem(str(path)))


async def test_a_rotated_client_certificate_is_used_for_new_connections(
    secured: FakeApiServer, authority: Authority, clock: ManualClock, tmp_path: Path
) -> None:
    current = tmp_path / "current.pem"
    first, second = tmp_path / "1.pem", tmp_path / "2.pem"
    first.write_bytes(authority.sign("one", "/O=system:nodes/CN=one").both)
    second.write_bytes(authority.sign("two", "/O=system:nodes/CN=two").both)
    current.symlink_to(first)
    async with asking(with_certificate(secured, current), clock) as client:
        before = (await client._credentials.current()).tls
        await get(client)
        os.replace(_link(tmp_path / "new", second), current)
        clock.advance(1.1)
        await get(client)
        assert (await client._credentials.current()).tls is not before


async def test_half_a_pair_leaves_the_old_one_in_use(
    secured: FakeApiServer, authority: Authority, clock: ManualClock, tmp_path: Path
) -> None:
    current = tmp_path / "current.pem"
    first, second = authority.sign("one", "/CN=one"), authority.sign("two", "/CN=two")
    current.write_bytes(first.both)
    async with asking(with_certificate(secured, current), clock) as client:
        await get(client)
        current.write_bytes(second.cert.read_bytes() + first.key.read_bytes())
        clock.advance(1.1)
        await get(client)


async def test_the_rotated_file_goes_before_the_kubeconfigs_own(
    secured: FakeApiServer, authority: Authority, clock: ManualClock, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other", "other").sign("x", "/CN=x")
    access = replace(secured.access(), client_cert=Pem(str(other.cert)), client_key=Pem(str(other.key)))
    rotated = tmp_path / "rotated.pem"
    async with asking(access, clock, Pem(str(rotated))) as client:
        assert (await refusal(client)).status == 0
        rotated.write_bytes(authority.sign("one", "/CN=one").both)
        clock.advance(1.1)
        await get(client)


async def test_an_authority_that_changes(authority: Authority, clock: ManualClock, tmp_path: Path) -> None:
    new = Authority(tmp_path / "new", "new")
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority.cert.read_bytes())
    server = FakeApiServer(tls=server_context(new.sign("server", "/CN=server")))
    async with server:
        server.create("/api/v1/nodes", {"metadata": {"name": "n"}})
        async with asking(ClusterAccess(server=server.url, ca=Pem(str(ca))), clock) as client:
            assert (await refusal(client)).reason == "Certificate"
            ca.write_bytes(new.cert.read_bytes())
            clock.advance(1.1)
            await get(client)


async def test_names_and_trust(authority: Authority, clock: ManualClock) -> None:
    other = authority.sign("named", "/CN=named", addresses="DNS:api.example")
    async with FakeApiServer(tls=server_context(other)) as server:
        server.create("/api/v1/nodes", {"metadata": {"name": "n"}})
        trusting = ClusterAccess(server=server.url, ca=Pem(str(authority.cert)))
        async with asking(trusting, clock) as client:
            assert (await refusal(client)).reason == "Certificate"
        async with asking(replace(trusting, server_name="api.example"), clock) as client:
            await get(client)
        async with asking(ClusterAccess(server=server.url, insecure=True), clock) as client:
            await get(client)


async def test_files_that_were_never_there(server: FakeApiServer, clock: ManualClock, tmp_path: Path) -> None:
    access = with_certificate(server, tmp_path / "none.pem")
    async with asking(access, clock) as client:
        error = await refusal(client)
    assert error.reason == "Credentials" and "none.pem" in error.message and error.is_transient


def _link(path: Path, target: Path) -> Path:
    path.symlink_to(target)
    return path
