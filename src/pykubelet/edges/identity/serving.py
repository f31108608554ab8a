"""The serving certificate: the paths of its files, and a self-signed one if none is configured.

Owns: `kubelet.crt` and `kubelet.key` in the certificate directory. Source: `--cert-dir`, `tlsCertFile`, `serverTLSBootstrap`
in the kubelet's reference documentation.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from pykubelet.base.kit.flight import SingleFlight, value_of
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.fs.files import make_dirs, rename, stat_file, write_atomic
from pykubelet.edges.identity.keys import KeysError, SelfSigned, make_self_signed
from pykubelet.edges.identity.server_tls import TlsFiles

log = Log("identity")
RETRY_S = 10.0
WRITE_DEADLINE_S = 10.0
SET_ASIDE = ".unusable"


class ServingChoice(Value):
    """The configuration of the serving certificate. Empty file names: not given.

    `bootstrap`: the certificate is signed by the cluster (`serverTLSBootstrap`).
    """

    cert_dir: str
    certificate: str = ""
    key: str = ""
    client_ca: str = ""
    bootstrap: bool = False


def serving_files(choice: ServingChoice) -> TlsFiles:
    """The files that the server uses. Pure."""
    if choice.certificate and choice.key:
        return TlsFiles(choice.certificate, choice.key, choice.client_ca)
    if choice.bootstrap:
        current = f"{choice.cert_dir}/kubelet-server-current.pem"
        return TlsFiles(current, current, choice.client_ca)
    return TlsFiles(f"{choice.cert_dir}/kubelet.crt", f"{choice.cert_dir}/kubelet.key", choice.client_ca)


def needs_self_signed(choice: ServingChoice) -> bool:
    """Whether the agent must create a self-signed certificate: none is configured, and none is requested from the cluster."""
    return not (choice.certificate and choice.key) and not choice.bootstrap


async def ensure_self_signed(files: TlsFiles, name: str, ips: tuple[str, ...], flight: SingleFlight) -> None:
    """Create certificate and key if they are missing. Returns when they exist; a failure is logged once and retried."""
    logged = ""
    while True:
        try:
            if not await _write_missing(files, name, ips, flight):
                return
            log.info("using a self-signed serving certificate", certificate=files.certificate)
            return
        except (KeysError, HostError) as error:
            if str(error) != logged:
                log.error("cannot make a serving certificate, trying again", error=error)
                logged = str(error)
        await asyncio.sleep(RETRY_S)


async def _write_missing(files: TlsFiles, name: str, ips: tuple[str, ...], flight: SingleFlight) -> bool:
    if await _in_flight(flight, files, lambda: _is_usable(files)):
        return False
    made = await make_self_signed(name, (name,), ips)
    await _in_flight(flight, files, lambda: _write(files, made))
    return True


def _is_usable(files: TlsFiles) -> bool:
    """Whether both files exist and match. Otherwise they are renamed, not deleted: an administrator may need them."""
    present = [path for path in (files.certificate, files.key) if stat_file(path) is not None]
    problem = "the certificate or its key is missing"
    if len(present) == 2:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.certificate, files.key, password="")
            return True
        except (ssl.SSLError, OSError) as error:
            problem = str(error)
    for path in present:
        rename(path, f"{path}{SET_ASIDE}")
        log.warning("a serving certificate cannot be used and was renamed", file=path, error=problem)
    return False


def _write(files: TlsFiles, made: SelfSigned) -> bool:
    make_dirs(files.key.rpartition("/")[0])
    write_atomic(files.key, made.key.encode(), 0o600)
    write_atomic(files.certificate, made.certificate.encode(), 0o644)
    return True


async def _in_flight(flight: SingleFlight, files: TlsFiles, work: Callable[[], bool]) -> bool:
    return value_of(
        await flight.run(f"serving:{files.certificate}", work, WRITE_DEADLINE_S),
        lambda _: HostError("write", files.certificate, "ETIMEDOUT", "the disk does not answer"),
    )
