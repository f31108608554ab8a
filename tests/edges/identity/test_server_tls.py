"""The server's TLS with real handshakes: certificates that change, client certificates, versions and ciphers."""

from __future__ import annotations

import asyncio
import datetime
import ssl
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.edges.identity.keys import KeysError, make_request, make_self_signed
from pykubelet.edges.identity.server_tls import ServerTls, TlsFiles, TlsRules, given_files_problem, openssl_ciphers
from pykubelet.edges.identity.serving import ServingChoice, ensure_self_signed, needs_self_signed, serving_files


async def write_pair(folder: Path, name: str) -> tuple[str, str]:
    made = await make_self_signed(name, (name,), ("127.0.0.1",))
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    certificate.write_text(made.certificate)
    key.write_text(made.key)
    return str(certificate), str(key)


def write_client(folder: Path, name: str) -> tuple[str, str]:
    """A client certificate that is its own CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, file = folder / f"{name}.crt", folder / f"{name}.key"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    file.write_bytes(key.private_bytes(*pem))
    return str(certificate), str(file)


@asynccontextmanager
async def serving(tls: ServerTls) -> AsyncIterator[int]:
    """Answers with the common name of the client's certificate, or "anonymous"."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("ssl_object").getpeercert()
        names = [value for part in peer["subject"] for key, value in part if key == "commonName"] if peer else []
        writer.write(f"hello {names[0] if names else 'anonymous'}\n".encode())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls.context) as server:
        yield server.sockets[0].getsockname()[1]


async def meet(port: int, certificate: tuple[str, str] | None = None, at_most: str = "") -> tuple[str, str]:
    """What the server sent, and the common name of its certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(*certificate)
    if at_most in ("TLSv1", "TLSv1_1"):
        context.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = context.maximum_version = ssl.TLSVersion[at_most]
    elif at_most:
        context.maximum_version = ssl.TLSVersion[at_most]
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    pem = ssl.DER_cert_to_PEM_cert(writer.get_extra_info("ssl_object").getpeercert(True))
    greeting = (await reader.readline()).decode().strip()
    writer.close()
    return greeting, pem


async def is_refused(port: int, certificate: tuple[str, str]) -> bool:
    """A client learns it from an alert, or only by the end of the connection."""
    try:
        return (await meet(port, certificate))[0] == ""
    except (ssl.SSLError, OSError):
        return True


async def test_a_new_certificate_is_used_and_a_broken_one_is_not(tmp_path: Path) -> None:
    certificate, key = await write_pair(tmp_path, "one")
    other_certificate, other_key = await write_pair(tmp_path, "two")
    clock = ManualClock()
    tls = ServerTls(TlsFiles(certificate, key), TlsRules(), clock)
    first, second = Path(certificate).read_text(), Path(other_certificate).read_text()
    async with serving(tls) as port:
        assert await meet(port) == ("hello anonymous", first)
        Path(certificate).write_text(second)  # the key does not fit yet
        clock.advance(2)
        assert (await meet(port))[1] == first
        assert certificate in tls.problem
        Path(key).write_text(Path(other_key).read_text())
        clock.advance(2)
        assert (await meet(port))[1] == second
        assert tls.problem == ""
        Path(certificate).unlink()
        clock.advance(2)
        assert (await meet(port))[1] == second


async def test_a_certificate_that_comes_later(tmp_path: Path) -> None:
    clock = ManualClock()
    tls = ServerTls(TlsFiles(f"{tmp_path}/late.crt", f"{tmp_path}/late.key"), TlsRules(), clock)
    async with serving(tls) as port:
        with pytest.raises((ssl.SSLError, OSError)):
            await meet(port)
        await write_pair(tmp_path, "late")
        assert (await meet(port))[0] == "hello anonymous"


async def test_client_certificates_of_a_ca_that_changes(tmp_path: Path) -> None:
    certificate, key = await write_pair(tmp_path, "server")
    alice, bob = write_client(tmp_path, "alice"), write_client(tmp_path, "bob")
    ca = tmp_path / "ca.crt"
    ca.write_text(Path(alice[0]).read_text())
    clock = ManualClock()
    tls = ServerTls(TlsFiles(certificate, key, str(ca)), TlsRules(), clock)
    async with serving(tls) as port:
        assert (await meet(port))[0] == "hello anonymous"
        assert (await meet(port, alice))[0] == "hello alice"
        assert await is_refused(port, bob)
        ca.write_text(Path(alice[0]).read_text() + Path(bob[0]).read_text())
        clock.advance(2)
        assert (await meet(port, bob))[0] == "hello bob"


async def test_old_versions_are_refused(tmp_path: Path) -> None:
    certificate, key = await write_pair(tmp_path, "server")
    tls = ServerTls(TlsFiles(certificate, key), TlsRules(min_version="VersionTLS13"), ManualClock())
    async with serving(tls) as port:
        with pytest.raises((ssl.SSLError, OSError)):
            await meet(port, at_most="TLSv1_2")
        assert (await meet(port))[0] == "hello anonymous"


@pytest.mark.parametrize("version", ["TLSv1", "TLSv1_1"])
@pytest.mark.parametrize("suites", [(), ("TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA", "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA")])
async def test_old_clients_come_in_where_the_configuration_lets_them(
    tmp_path: Path, version: str, suites: tuple[str, ...]
) -> None:
    certificate, key = await write_pair(tmp_path, "server")
    old = TlsRules("VersionTLS10" if version == "TLSv1" else "VersionTLS11", suites)
    async with serving(ServerTls(TlsFiles(certificate, key), old, ManualClock())) as port:
        assert (await meet(port, at_most=version))[0] == "hello anonymous"
        assert (await meet(port))[0] == "hello anonymous"


async def test_who_names_suites_of_tls_1_3_only_gets_nothing_older(tmp_path: Path) -> None:
    certificate, key = await write_pair(tmp_path, "server")
    rules = TlsRules("VersionTLS12", ("TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"))
    async with serving(ServerTls(TlsFiles(certificate, key), rules, ManualClock())) as port:
        with pytest.raises((ssl.SSLError, OSError)):
            await meet(port, at_most="TLSv1_2")
        assert (await meet(port))[0] == "hello anonymous"


async def test_given_files_that_cannot_be_used(tmp_path: Path) -> None:
    certificate, key = await write_pair(tmp_path, "node")
    junk, none = tmp_path / "junk", str(tmp_path / "none")
    junk.write_text("junk")
    assert given_files_problem("", "", "") == given_files_problem(certificate, key, certificate) == ""
    assert given_files_problem(none, "", "") == given_files_problem("", none, "") == "", "one alone does not count"
    missing = "No such file or directory"
    assert given_files_problem("", "", none) == f"cannot load clientCAFile: {none}: {missing}"
    assert given_files_problem(none, key, "") == f"cannot load tlsCertFile, tlsPrivateKeyFile: {none}, {key}: {missing}"
    assert given_files_problem("", "", str(junk)).startswith(f"cannot load clientCAFile: {junk}: [X509")
    assert "PEM" in given_files_problem(str(junk), key, "")


def test_cipher_names() -> None:
    names = ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256", "TLS_RSA_WITH_AES_256_CBC_SHA")
    assert openssl_ciphers(names) == "ECDHE-RSA-AES128-GCM-SHA256:AES256-SHA"
    assert openssl_ciphers(()) == ""


async def test_a_certificate_of_its_own_is_made_once(tmp_path: Path) -> None:
    choice = ServingChoice(str(tmp_path / "pki"))
    files = serving_files(choice)
    assert needs_self_signed(choice)
    await ensure_self_signed(files, "node", ("127.0.0.1", "::1"), SingleFlight("test"))
    first = Path(files.certificate).read_text()
    await ensure_self_signed(files, "node", (), SingleFlight("test"))
    assert Path(files.certificate).read_text() == first
    tls = ServerTls(files, TlsRules(), ManualClock())
    async with serving(tls) as port:
        assert (await meet(port))[1] == first


@pytest.mark.parametrize("certificate", [b"", b"garbage", None], ids=["empty", "garbage", "of another key"])
async def test_a_self_signed_certificate_that_cannot_be_used_is_replaced(
    tmp_path: Path, certificate: bytes | None
) -> None:
    files = serving_files(ServingChoice(str(tmp_path)))
    await ensure_self_signed(files, "node", ("127.0.0.1",), SingleFlight("test"))
    other, _ = await write_pair(tmp_path, "other")
    broken = Path(other).read_bytes() if certificate is None else certificate
    Path(files.certificate).write_bytes(broken)
    await ensure_self_signed(files, "node", ("127.0.0.1",), SingleFlight("test"))
    async with serving(ServerTls(files, TlsRules(), ManualClock())) as port:
        assert (await meet(port))[1] == Path(files.certificate).read_text()
    assert Path(f"{files.certificate}.unusable").read_bytes() == broken


async def test_signing_requests() -> None:
    made = await make_request("system:node:n1", ("system:nodes",))
    again = await make_request("system:node:n1", ("system:nodes",), key=made.key)
    assert made.request.startswith("-----BEGIN CERTIFICATE REQUEST-----")
    assert again.key == made.key
    with pytest.raises(KeysError, match=r"PEM|key"):
        await make_request("x", (), key="nonsense")
