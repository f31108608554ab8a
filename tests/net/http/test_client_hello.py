"""Key exchange groups of the authenticated port, with handshakes of `openssl s_client`."""

from __future__ import annotations

import asyncio
import re
import ssl
import subprocess
from collections.abc import Callable

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from net.http.test_accept import KNOWN, admission_port, say

from pykubelet.base.kit.clock import ManualClock
from pykubelet.edges.identity.server_tls import ServerTls, TlsFiles, TlsRules
from pykubelet.net.http.accept import AdmissionLimits
from pykubelet.net.http.checked_tls import CheckedTls
from pykubelet.net.http.client_hello import ContextsByGroup, offered_groups

NAMES = {23: "P-256", 24: "P-384", 25: "P-521", 29: "X25519"}
ALL = ":".join(NAMES.values())
Loop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """RSA: in TLS 1.2 the curve of an elliptic curve key counts as one of the groups that the client must offer."""
    folder = tmp_path_factory.mktemp("tls")
    files = TlsFiles(f"{folder}/crt", f"{folder}/key")
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-noenc", "-subj", "/CN=node"]
    subprocess.run(
        [*argv, "-keyout", files.key, "-out", files.certificate], check=True, capture_output=True, timeout=60
    )
    return files


async def used_group(port: int, groups: str, version: str) -> str:
    """What a client that offers `groups` in this order gets; empty where the handshake fails."""
    argv = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-groups", groups, version]
    ended = await asyncio.to_thread(
        subprocess.run, argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    found = re.search(r"Server Temp Key: (?:ECDH, )?([^,\n]+)", ended.stdout)
    return {"prime256v1": "P-256", "secp384r1": "P-384", "secp521r1": "P-521"}.get(found[1], found[1]) if found else ""


def listening(tls: ServerTls) -> CheckedTls | ContextsByGroup:
    return ContextsByGroup(tls.contexts) if len(tls.contexts) > 1 else tls.context


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
@pytest.mark.parametrize("allowed", [{24}, {24, 29}, {23, 25}, set(NAMES)], ids=str)
def test_no_group_but_those_that_are_allowed(files: TlsFiles, allowed: set[int], version: str, loop: Loop) -> None:
    async def play() -> None:
        tls = ServerTls(files, TlsRules(curves=frozenset(allowed)), ManualClock())
        async with admission_port(listening(tls), AdmissionLimits()) as port:
            for number, name in NAMES.items():
                assert await used_group(port, name, version) == (name if number in allowed else "")
            preferred = next(NAMES[number] for number in (29, 23, 24, 25) if number in allowed)
            assert await used_group(port, ALL, version) == preferred

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(play())


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_client_whose_first_words_come_byte_by_byte_is_served(files: TlsFiles, loop: Loop) -> None:
    async def play() -> None:
        tls = ServerTls(files, TlsRules(curves=frozenset({24, 25})), ManualClock())
        async with admission_port(listening(tls), AdmissionLimits()) as port:

            async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                """Between the client and the server."""
                there, here = await asyncio.open_connection("127.0.0.1", port)
                hello = await reader.readexactly(5)
                hello += await reader.readexactly(int.from_bytes(hello[3:], "big"))
                for at in range(0, len(hello), 16):
                    here.write(hello[at : at + 16])
                    for _ in range(3):  # the server reads it before the next piece comes
                        await asyncio.sleep(0)
                await asyncio.gather(_pump(reader, here), _pump(there, writer))

            async with await asyncio.start_server(trickle, "127.0.0.1", 0) as between:
                context = ssl._create_unverified_context()
                ends = await asyncio.open_connection(*between.sockets[0].getsockname(), ssl=context)
                assert await say(ends, KNOWN) == b"HTTP/1.1 200 OK"
                ends[1].transport.abort()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(play())


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
    except ConnectionError:
        return
    finally:
        writer.close()


@pytest.mark.parametrize("words", [b"", b"\x16", b"\x16\x03\x01\xff\xff" + b"\1" * 30, b"GET / HTTP/1.1\r\n\r\n"])
async def test_a_client_that_sends_something_else_and_leaves_is_cut_off(files: TlsFiles, words: bytes) -> None:
    tls = ServerTls(files, TlsRules(curves=frozenset({23, 24})), ManualClock())
    async with admission_port(listening(tls), AdmissionLimits()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(words)
        writer.write_eof()
        async with asyncio.timeout(60):
            await reader.read()
        writer.close()


@given(st.binary(max_size=400), st.integers(0, 400), st.binary(max_size=3))
def test_any_bytes_are_read_without_harm(data: bytes, at: int, change: bytes) -> None:
    assert isinstance(offered_groups(data), frozenset)
    hello = client_hello()
    assert offered_groups(hello) == {29, 23}
    spoiled = hello[:at] + change + hello[at + len(change) :]
    assert isinstance(offered_groups(spoiled), frozenset)
    assert offered_groups(hello[:at]) in (frozenset(), {29, 23})


def client_hello() -> bytes:
    """With a session id, three suites, an extension, and the groups X25519 and P-256."""
    extensions = b"\x00\x17\x00\x00" + b"\x00\x0a\x00\x06\x00\x04\x00\x1d\x00\x17"
    body = b"\x03\x03" + bytes(32) + b"\x20" + bytes(32) + b"\x00\x06" + bytes(6) + b"\x01\x00"
    body += len(extensions).to_bytes(2, "big") + extensions
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + len(message).to_bytes(2, "big") + message
