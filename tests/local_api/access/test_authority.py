"""The files of access: made once, renewed when due, mended when damaged, and accepted by TLS."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from pykubelet.base.kit.cells import make_cell
from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.kit.values import replace
from pykubelet_local_api.access.authority import prepare
from pykubelet_local_api.access.certificates import names_in
from pykubelet_local_api.access.files import AccessError
from pykubelet_local_api.access.kubeconfig import parse_kubeconfig
from pykubelet_local_api.access.place import AccessFiles, ApiPlace, load_files, server_context
from pykubelet_local_api.access.preparing import AccessUpkeep
from pykubelet_local_api.access.upkeep import CertificateUpkeep, TlsContexts
from pykubelet_local_api.access.usages import DAY_S

NOW = 1_800_000_000.0


def place(folder: Path) -> ApiPlace:
    return ApiPlace(folder, "https://127.0.0.1:6443", "n1", ("N1.example",), ("10.96.0.1", "192.0.2.7"))


def make(folder: Path, now: float = NOW, **changes: Any) -> AccessFiles:
    return prepare(replace(place(folder), **changes), now).files


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def serving_names(files: AccessFiles) -> frozenset[str]:
    return names_in(x509.load_pem_x509_certificate(files.server[0].read_bytes()))


def test_a_second_start_changes_nothing(tmp_path: Path) -> None:
    make(tmp_path)
    before = contents(tmp_path)
    make(tmp_path, NOW + DAY_S)
    assert contents(tmp_path) == before


def test_keys_and_kubeconfigs_are_their_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    make(folder)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes.pop("ca.crt") == 0o644
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_server_is_known_by_the_names_that_clients_use(tmp_path: Path) -> None:
    assert serving_names(make(tmp_path)) == {
        "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
        "localhost", "127.0.0.1", "::1", "n1.example", "10.96.0.1", "192.0.2.7",
    }  # fmt: skip


def test_what_cannot_be_in_a_certificate_is_left_out(tmp_path: Path) -> None:
    files = make(tmp_path, hosts=("under_score", "", "a..b", "ok"), addresses=("fe80::1%eth0", "2001:DB8::1"))
    assert serving_names(files) >= {"ok", "2001:db8::1"}
    assert len(serving_names(files)) == 9


def test_a_new_address_gets_a_new_serving_certificate_only(tmp_path: Path) -> None:
    make(tmp_path)
    before = contents(tmp_path)
    assert "192.0.2.8" in serving_names(make(tmp_path, addresses=("192.0.2.8",)))
    after = contents(tmp_path)
    assert {name for name in after if after[name] != before[name]} == {"apiserver.crt", "apiserver.key"}


def test_certificates_are_renewed_before_they_expire(tmp_path: Path) -> None:
    make(tmp_path)
    before = contents(tmp_path)
    make(tmp_path, NOW + 300 * DAY_S)
    after = contents(tmp_path)
    assert after["ca.crt"] == before["ca.crt"]
    unchanged = {name for name in after if after[name] == before[name]}
    assert unchanged == {"ca.crt", "ca.key", "sa.key"}


def test_the_authority_keeps_its_key_when_it_is_renewed(tmp_path: Path) -> None:
    make(tmp_path)
    before = contents(tmp_path)
    files = make(tmp_path, NOW + 3000 * DAY_S)
    after = contents(tmp_path)
    assert after["ca.key"] == before["ca.key"]
    assert after["ca.crt"] != before["ca.crt"]
    served = x509.load_pem_x509_certificate(files.server[0].read_bytes())
    served.verify_directly_issued_by(x509.load_pem_x509_certificate(before["ca.crt"]))


def test_a_clock_that_was_wrong_at_the_first_start_is_survived(tmp_path: Path) -> None:
    make(tmp_path, 1000.0)
    files = make(tmp_path)
    for path in (files.authority_file, files.server[0], files.agent_client[0]):
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        assert certificate.not_valid_before_utc.timestamp() < NOW < certificate.not_valid_after_utc.timestamp()


@pytest.mark.parametrize(
    "name", ["apiserver.crt", "apiserver.key", "apiserver-kubelet-client.key", "admin.kubeconfig", "kubelet.kubeconfig"]
)
@pytest.mark.parametrize("damage", [b"", b"\0\xff", b"x" * 300_000, None])
def test_a_damaged_file_is_replaced(tmp_path: Path, name: str, damage: bytes | None) -> None:
    make(tmp_path)
    if damage is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(damage)
    handshake(make(tmp_path))


def test_half_of_a_file_is_replaced(tmp_path: Path) -> None:
    make(tmp_path)
    for name in ("apiserver.crt", "admin.kubeconfig"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    handshake(make(tmp_path))


def test_a_damaged_certificate_of_the_authority_is_made_again_for_its_key(tmp_path: Path) -> None:
    old = make(tmp_path)
    trusted = old.authority.pem.decode()
    (tmp_path / "ca.crt").write_bytes(b"-----BEGIN")
    handshake(make(tmp_path), trusted)


@pytest.mark.parametrize("damage", [b"", b"-----BEGIN EC PRIVATE KEY-----\nAAAA\n", None])
def test_a_lost_key_of_the_authority_is_refused(tmp_path: Path, damage: bytes | None) -> None:
    make(tmp_path)
    if damage is None:
        (tmp_path / "ca.key").unlink()
    else:
        (tmp_path / "ca.key").write_bytes(damage)
    with pytest.raises(AccessError, match=r"ca\.key is (missing|damaged).*restore it from a backup, or remove"):
        make(tmp_path)
    assert (tmp_path / "ca.crt").exists()


@pytest.mark.parametrize("damage", [b"", b"x", None])
def test_an_interrupted_first_start_is_begun_again(tmp_path: Path, damage: bytes | None) -> None:
    make(tmp_path)
    (tmp_path / "ca.crt").unlink()
    if damage is not None:
        (tmp_path / "ca.key").write_bytes(damage)
    handshake(make(tmp_path))


def test_a_new_authority_accepts_nothing_of_the_old_one(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    old = make(folder)
    (folder / "ca.crt").unlink()
    (folder / "ca.key").unlink()
    files = make(folder)
    handshake(files)
    with pytest.raises(ssl.SSLError, match="verify"):
        handshake(files, old.authority.pem.decode())


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AccessError, match=r"cannot make the directory .*/file/data"):
        make(tmp_path / "file" / "data")


def handshake(files: AccessFiles, trusted: str = "", client: str = "admin") -> dict[str, object]:
    """The certificate that the server sees of the client with this kubeconfig; the client is as strict as can be."""
    _, authority, pair = parse_kubeconfig((files.server[0].parent / f"{client}.kubeconfig").read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(cadata=trusted or authority.decode())
    pem = files.server[0].parent.parent / "client.pem"
    pem.write_bytes(pair.certificate + pair.key)
    context.load_cert_chain(pem)
    return shake(server_context(files), context)


def shake(server_side: ssl.SSLContext, client_side: ssl.SSLContext, of_server: bool = False) -> dict[str, object]:
    """The certificate that one side sees of the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    # the certificates are from the time of the tests' clock
    for context in (server_side, client_side):
        context.verify_flags |= 0x200000  # X509_V_FLAG_NO_CHECK_TIME
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    client = client_side.wrap_bio(to_client, to_server, server_hostname="kubernetes.default.svc")
    for _ in range(4):
        for end in (client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    found = (client if of_server else server).getpeercert()
    assert server.version() == "TLSv1.3"
    return dict(found or {})


def test_the_server_sees_user_and_groups(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    files = make(folder)
    assert handshake(files)["subject"] == ((("organizationName", "system:masters"),), (("commonName", "admin"),))
    assert handshake(files, client="kubelet")["subject"] == (
        (("organizationName", "system:nodes"),),
        (("commonName", "system:node:n1"),),
    )


def test_a_client_without_a_certificate_gets_in_unnamed(tmp_path: Path) -> None:
    files = make(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=files.authority.pem.decode())
    assert shake(server_context(files), context) == {}


def test_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    ours, others = make(tmp_path / "a"), make(tmp_path / "b")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    load_files(context, ours.authority.pem, others.agent_client)
    with pytest.raises(ssl.SSLError, match=r"verify|unknown"):
        shake(server_context(ours), context)


async def test_a_running_server_uses_renewed_certificates(tmp_path: Path) -> None:
    folder, clock = tmp_path / "data", ManualClock(wall=NOW)
    files = make(folder)
    server, agent, own = server_context(files), *(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) for _ in range(2))
    load_files(agent, files.authority.pem, files.agent_client)
    load_files(own, files.authority.pem, files.own_client)
    authority, writer = make_cell("authority", files.authority)
    upkeep = CertificateUpkeep(AccessUpkeep(place(folder)), files, TlsContexts(server, (agent,), (own,)), writer, clock)
    before = [shake(server, client) for client in (agent, own)]
    assert [certificate["subject"] for certificate in before] == [
        ((("commonName", "kube-apiserver-kubelet-client"),),),
        ((("organizationName", "system:masters"),), (("commonName", "local-api"),)),
    ]
    await upkeep.renew()
    first = served(server, files)
    assert served(server, files) == first
    clock.advance(300 * DAY_S)
    await upkeep.renew()
    renewed = served(server, files)
    assert renewed != first
    for client, was in zip((agent, own), before, strict=True):
        now = shake(server, client)
        assert (now["subject"], now["serialNumber"] != was["serialNumber"]) == (was["subject"], True)
    assert authority.version == 0  # it has most of its life before it
    (folder / "ca.key").write_bytes(b"")  # a fault of the disk does not end a server that runs
    clock.advance(300 * DAY_S)
    await upkeep.renew()
    assert served(server, files) == renewed


def served(server: ssl.SSLContext, files: AccessFiles) -> object:
    """The serial number of the certificate that a client gets."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(cadata=files.authority.pem.decode())
    return shake(server, client, of_server=True)["serialNumber"]


def test_files_that_are_good_are_left_alone_without_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upkeep = AccessUpkeep(place(tmp_path))
    first = upkeep.files(NOW)
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    assert upkeep.files(NOW + DAY_S).versions == first.versions
    for moment in (NOW + 300 * DAY_S, NOW - 10 * DAY_S):  # due, and a clock that was set back
        with pytest.raises(AccessError, match="certificates cannot be made"):
            upkeep.files(moment)
    (tmp_path / "admin.kubeconfig").write_bytes(b"")
    with pytest.raises(AccessError, match="certificates cannot be made"):
        upkeep.files(NOW + DAY_S)


def test_what_the_process_finds_wrong_is_the_error(tmp_path: Path) -> None:
    AccessUpkeep(place(tmp_path)).files(NOW)
    (tmp_path / "ca.key").write_bytes(b"damaged")
    with pytest.raises(AccessError, match=r"ca\.key is damaged .*restore it from a backup"):
        AccessUpkeep(place(tmp_path)).files(NOW)
