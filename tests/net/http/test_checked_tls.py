"""Key exchanges that cost this side much are refused before OpenSSL computes them."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import itertools
import os
import re
import shutil
import socket
import ssl
import struct
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st
from net.http.test_accept import admission_port
from support.cost import count_instructions

from pykubelet.base.kit.clock import ManualClock
from pykubelet.edges.identity.keys import make_self_signed
from pykubelet.edges.identity.server_tls import ServerTls, TlsFiles, TlsRules
from pykubelet.edges.probing.grpc_health import probe_grpc
from pykubelet.edges.probing.http import HttpProber
from pykubelet.edges.probing.http_target import HttpTarget
from pykubelet.net.http.accept import AdmissionLimits
from pykubelet.net.http.checked_tls import (
    USUAL_CPU_S,
    CheckedTls,
    HelloReader,
    is_cheap_for_client,
    is_cheap_for_server,
)
from pykubelet.net.http.client_tls import UnverifiedTls

P256, X25519, HYBRID = 23, 29, 0x11EC
FFDHE_BYTES = {0x100: 256, 0x101: 384, 0x102: 512, 0x104: 1024}
FFDHE2048, FFDHE3072, FFDHE4096, FFDHE8192 = FFDHE_BYTES
#: A point of P-256: its generator.
POINT = bytes.fromhex(
    "046b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296"
    "4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5"
)
HELLO_RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")


def _sized(data: bytes, size: int = 2) -> bytes:
    return len(data).to_bytes(size, "big") + data


def _extension(number: int, data: bytes) -> bytes:
    return struct.pack(">H", number) + _sized(data)


def _share(group: int) -> bytes:
    key = POINT if group == P256 else b"\2" + os.urandom(FFDHE_BYTES.get(group, 32) - 1)
    return struct.pack(">H", group) + _sized(key)


def client_message(groups: Sequence[int], shares: Sequence[int]) -> bytes:
    """A ClientHello of TLS 1.3."""
    extensions = [
        _extension(43, b"\x02\x03\x04"),
        _extension(10, _sized(struct.pack(f">{len(groups)}H", *groups))),
        _extension(13, _sized(bytes.fromhex("04030503060308070804080508060401"))),
        _extension(51, _sized(b"".join(map(_share, shares)))),
    ]
    suites = _sized(bytes.fromhex("130213031301"))
    body = b"\x03\x03" + os.urandom(32) + b"\0" + suites + b"\1\0" + _sized(b"".join(extensions))
    return b"\x01" + _sized(body, 3)


def server_message(group: int, session: bytes = b"") -> bytes:
    """A ServerHello of TLS 1.3 that asks for another ClientHello, with a key share of this group."""
    extensions = _extension(43, b"\x03\x04") + _extension(51, struct.pack(">H", group))
    head = b"\x03\x03" + HELLO_RETRY + _sized(session, 1)
    return b"\x02" + _sized(head + b"\x13\x01" + b"\0" + _sized(extensions), 3)


def records(message: bytes, size: int = 1 << 14) -> bytes:
    parts = (message[at : at + size] for at in range(0, len(message), size))
    return b"".join(b"\x16\x03\x03" + _sized(part) for part in parts)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    folder = tmp_path_factory.mktemp("tls")
    made = asyncio.run(make_self_signed("node", ("node",), ()))
    files = TlsFiles(f"{folder}/crt", f"{folder}/key", f"{folder}/crt")
    Path(files.certificate).write_text(made.certificate)
    Path(files.key).write_text(made.key)
    return files


def answer_of_server(context: ssl.SSLContext, data: bytes) -> bytes:
    """What a server answers to these first bytes. Raises ssl.SSLError."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    return _answer(context.wrap_bio(incoming, outgoing, server_side=True), incoming, outgoing, data)


def answer_of_client(group: int, before: bytes, size: int) -> bytes:
    """What a client answers to a server that asks for a key share of a group. `before`: other bytes that come first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = UnverifiedTls().wrap_bio(incoming, outgoing)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    session = outgoing.read()[44:76]  # which the server repeats
    data = before + records(server_message(group, session), size)
    return _answer(client, incoming, outgoing, data)


def _answer(side: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, data: bytes) -> bytes:
    for at in range(0, len(data), 1000):
        incoming.write(data[at : at + 1000])
        with pytest.raises(ssl.SSLWantReadError):
            side.do_handshake()
    return outgoing.read()


# As a server


def chosen_group(files: TlsFiles, hello: bytes) -> int | None:
    """The group that OpenSSL chooses without the check; None: it refuses the ClientHello."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    try:
        answer = answer_of_server(context, records(hello))
    except ssl.SSLError:
        return None
    message = HelloReader().feed(answer)
    assert message
    at = message.index(b"\x00\x33", 40)
    return int(struct.unpack_from(">H", message, at + 4)[0])


GROUPS = st.sampled_from([P256, 24, X25519, 30, HYBRID, 0x0A0A, FFDHE2048, FFDHE3072, 0x1234])


@given(
    st.lists(GROUPS, max_size=5, unique=True),
    st.lists(st.sampled_from([P256, X25519, FFDHE2048]), max_size=3, unique=True),
)
@settings(max_examples=150)
def test_openssl_chooses_no_costly_group_where_the_hello_is_let_through(
    files: TlsFiles, groups: list[int], shares: list[int]
) -> None:
    hello = client_message(groups, shares)
    if chosen_group(files, hello) in FFDHE_BYTES:
        assert not is_cheap_for_server(hello)


@pytest.mark.parametrize(
    ("groups", "shares"),
    [
        ([FFDHE8192], [FFDHE8192]),
        ([X25519, FFDHE8192], [FFDHE8192]),
        ([X25519, FFDHE8192], [X25519, FFDHE8192]),
        ([FFDHE8192, X25519], []),
        ([HYBRID, FFDHE2048], []),
        ([FFDHE4096], []),
    ],
)
@pytest.mark.parametrize("size", [1, 100, 1 << 14])
def test_a_client_gets_no_exchange_in_a_costly_group(
    files: TlsFiles, groups: list[int], shares: list[int], size: int
) -> None:
    context = ServerTls(files, TlsRules(), ManualClock()).context
    with pytest.raises(ssl.SSLError, match="a group that is not used"):
        answer_of_server(context, records(client_message(groups, shares), size))


@pytest.mark.parametrize(
    ("groups", "shares"),
    [
        ([X25519, P256, FFDHE2048, FFDHE8192], [X25519]),
        ([0x2A2A, HYBRID, X25519, P256], [X25519]),
        ([HYBRID, P256], []),
        ([P256], [P256]),
    ],
)
def test_usual_clients_are_answered(files: TlsFiles, groups: list[int], shares: list[int]) -> None:
    context = ServerTls(files, TlsRules(), ManualClock()).context
    assert answer_of_server(context, records(client_message(groups, shares)))


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_clients_that_know_costly_groups_get_another_one_and_those_that_insist_none(
    files: TlsFiles, loop: asyncio.AbstractEventLoop
) -> None:
    async def used(port: int, *options: str) -> str:
        argv = [shutil.which("openssl") or "openssl", "s_client", "-connect", f"127.0.0.1:{port}", *options]
        ended = await asyncio.to_thread(
            subprocess.run, argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
        )
        found = re.search(r"Server Temp Key: (?:ECDH, )?([^,\n]+)", ended.stdout)
        return found[1] if found else ""

    async def play() -> None:
        tls = ServerTls(files, TlsRules(), ManualClock())
        async with admission_port(tls.context, AdmissionLimits()) as port:
            assert await used(port) == "X25519"
            assert await used(port, "-tls1_2") == "X25519"
            assert await used(port, "-groups", "ffdhe8192", "-tls1_3") == ""
            assert await used(port, "-groups", "P-521:ffdhe8192", "-tls1_3") == "secp521r1"

    with asyncio.Runner(loop_factory=loop) as runner:  # type: ignore[arg-type]
        runner.run(play())


def _chain(folder: Path, number: int) -> tuple[Path, Path]:
    """A certificate, its key, and so many others behind it."""
    key = ed25519.Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    now = datetime.datetime.now(datetime.UTC)
    pem = b""
    for serial in range(1, number + 1):
        made = x509.CertificateBuilder(name, name, key.public_key(), serial, now, now + datetime.timedelta(days=1))
        pem += made.sign(key, None).public_bytes(serialization.Encoding.PEM)
    files = folder / "chain.crt", folder / "chain.key"
    files[0].write_bytes(pem)
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    return files


@pytest.mark.parametrize(("number", "expected"), [(20, "certificate"), (200, "too much in its handshake")])
def test_a_client_may_not_show_hundreds_of_certificates(
    files: TlsFiles, tmp_path: Path, number: int, expected: str
) -> None:
    client_tls = ssl._create_unverified_context()
    client_tls.load_cert_chain(*_chain(tmp_path, number))
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = ServerTls(files, TlsRules(), ManualClock()).context.wrap_bio(there, back, server_side=True)
    client = client_tls.wrap_bio(back, there)
    with pytest.raises(ssl.SSLError, match=expected):  # a few are looked at, and none is known
        for side in 10 * [client, server]:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue


def test_a_server_may_not_show_hundreds_of_certificates(tmp_path: Path) -> None:
    """That of a probe is the probed container."""
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.load_cert_chain(*_chain(tmp_path, 200))
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    server, client = server_tls.wrap_bio(there, back, server_side=True), UnverifiedTls().wrap_bio(back, there)
    with pytest.raises(ssl.SSLError, match="too much in its handshake"):
        for side in 10 * [client, server]:
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()


def test_what_a_handshake_costs_above_the_usual_is_counted(files: TlsFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()
    monkeypatch.setattr(time, "thread_time", lambda: float(next(seconds)))  # each step takes one second
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ServerTls(files, TlsRules(), ManualClock()).context
    server = context.wrap_bio(there, back, server_side=True)
    client = ssl._create_unverified_context().wrap_bio(back, there)
    for side in (client, server):
        with pytest.raises(ssl.SSLWantReadError):
            side.do_handshake()
    assert context.take_unusual_cpu_s() == pytest.approx(1 - USUAL_CPU_S)
    client.do_handshake()
    server.do_handshake()
    assert context.take_unusual_cpu_s() == pytest.approx(1)
    assert context.take_unusual_cpu_s() == 0


@pytest.mark.parametrize("size", [100, 300_000])
def test_a_request_may_come_with_the_end_of_the_handshake(files: TlsFiles, size: int) -> None:
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = ServerTls(files, TlsRules(), ManualClock()).context.wrap_bio(there, back, server_side=True)
    client = ssl._create_unverified_context().wrap_bio(back, there)
    for side in (client, server):
        with pytest.raises(ssl.SSLWantReadError):
            side.do_handshake()
    client.do_handshake()
    client.write(b"x" * size)
    server.do_handshake()
    read = b""
    while len(read) < size:
        read += server.read(size)
    assert read == b"x" * size


# As a client


WARNING, HELLO_REQUEST = b"\x15\x03\x03\x00\x02\x01\x70", b"\x16\x03\x03\x00\x04\0\0\0\0"


@pytest.mark.parametrize("size", [1, 1 << 14])
@pytest.mark.parametrize("before", [b"", WARNING, HELLO_REQUEST], ids=["", "a warning", "a HelloRequest"])
def test_a_server_gets_no_exchange_in_a_costly_group(before: bytes, size: int) -> None:
    with pytest.raises(ssl.SSLError, match="a group that is not used"):
        answer_of_client(FFDHE8192, before, size)
    assert HelloReader().feed(answer_of_client(P256, before, size))


@pytest.mark.parametrize(
    "behind", [b"\x17\x03\x03\x00\x01\0", b"\0", b"\x16"], ids=["data", "anything", "a part of a record"]
)
def test_what_comes_behind_a_hello_does_not_hide_it(behind: bytes) -> None:
    message = server_message(FFDHE8192)
    assert HelloReader().feed(records(message) + behind) == message
    with pytest.raises(ssl.SSLError, match="interrupted"):
        HelloReader().feed(records(message[:9]) + b"\x17\x03\x03\x00\x01\0" + records(message[9:]))


def test_no_suite_lets_a_server_choose_a_prime_number() -> None:
    names = [suite["name"] for suite in UnverifiedTls().get_ciphers()]
    assert not [name for name in names if name.startswith("DHE")]
    assert {"ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384", "AES128-SHA"} <= {*names}


async def test_probes_fail_on_a_server_that_insists_on_a_costly_group() -> None:
    closed = asyncio.Semaphore(0)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(records(server_message(FFDHE8192)))
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        closed.release()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, family=socket.AF_INET) as server:
        port = server.sockets[0].getsockname()[1]
        by_http = await HttpProber().probe(HttpTarget("https", "127.0.0.1", port, "/"), 30.0)
        by_grpc = await probe_grpc("127.0.0.1", port, "", 30.0, redials=False, is_tls=True)
        for _ in (by_http, by_grpc):
            await closed.acquire()
    for outcome in (by_http, by_grpc):
        assert "the peer asks for a key exchange in a group that is not used" in outcome.output


# Bytes


@given(st.binary(max_size=300), st.integers(0, 400), st.binary(max_size=3))
def test_any_bytes_are_read_without_harm(data: bytes, at: int, change: bytes) -> None:
    hello = client_message([X25519, FFDHE2048], [X25519])
    spoiled = hello[:at] + change + hello[at + len(change) :]
    for message in (data, b"\1" + data, b"\2" + data, spoiled):
        assert is_cheap_for_server(message) in (True, False)
        assert is_cheap_for_client(message) in (True, False)
        reader = HelloReader()
        try:
            for byte in records(message, 7) + data:
                reader.feed(bytes([byte]))
        except ssl.SSLError:
            continue
    assert HelloReader().feed(records(hello, 7)) == hello


def test_a_hello_in_many_pieces_costs_what_it_is_long() -> None:
    def read(size: int) -> None:
        reader = HelloReader()
        for byte in records(b"\1\0\x40\0" + bytes(size), 1):
            reader.feed(bytes([byte]))

    assert count_instructions(lambda: read(3000)) < 2.4 * count_instructions(lambda: read(1500))


def test_a_hello_that_does_not_end_is_refused() -> None:
    reader = HelloReader()
    with pytest.raises(ssl.SSLError, match="hello is too long"):
        for _ in range(3):
            reader.feed(records(b"\1\xff\xff\xff" + bytes(10_000)))
    assert issubclass(type(UnverifiedTls()), CheckedTls)
