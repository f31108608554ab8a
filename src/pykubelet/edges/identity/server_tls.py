"""The TLS context of the agent's server, which is reloaded when its files change. Open connections continue.

Owns: the context that each new connection gets. Files are checked when a client connects, at most once a second. A new
certificate or client CA is loaded into a new context, which replaces the old one only if loading succeeds. A failure is
logged once, and the old context stays in use.
"""

from __future__ import annotations

import os
import ssl
import warnings

from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value
from pykubelet.net.http.checked_tls import CheckedTls

log = Log("identity")
LOOK_PERIOD_S = 1.0
_VERSIONS = {
    "": ssl.TLSVersion.TLSv1_2,
    "VersionTLS10": ssl.TLSVersion.TLSv1,
    "VersionTLS11": ssl.TLSVersion.TLSv1_1,
    "VersionTLS12": ssl.TLSVersion.TLSv1_2,
    "VersionTLS13": ssl.TLSVersion.TLSv1_3,
}
_KEY_EXCHANGE = {"ECDHE_RSA": "ECDHE-RSA", "ECDHE_ECDSA": "ECDHE-ECDSA", "RSA": ""}
_CIPHERS = {
    "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "CHACHA20_POLY1305": "CHACHA20-POLY1305",
    "CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305",
    "AES_128_CBC_SHA": "AES128-SHA",
    "AES_256_CBC_SHA": "AES256-SHA",
    "AES_128_CBC_SHA256": "AES128-SHA256",
}
#: OpenSSL's names of key exchange groups by their numbers in TLS, which Go uses too. In the order of preference.
_GROUPS = {29: "X25519", 23: "prime256v1", 24: "secp384r1", 25: "secp521r1"}
#: OpenSSL offers TLS 1.0 and 1.1 only at its lowest security level, which still accepts their hashes.
_OLD_LEVEL = "@SECLEVEL=0"
_OLD_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20:ECDHE+AES:RSA+AES:!AESCCM:!aNULL"


class TlsFiles(Value):
    """The paths of the files. If `client_ca` is empty, clients are not asked for a certificate."""

    certificate: str
    key: str
    client_ca: str = ""


class TlsRules(Value):
    """`tlsMinVersion` and `tlsCipherSuites` as configured, and `tlsCurvePreferences`. Empty: the defaults."""

    min_version: str = ""
    cipher_suites: tuple[str, ...] = ()
    curves: frozenset[int] = frozenset()


Seen = tuple[tuple[int, int, int] | None, ...]


def given_files_problem(certificate: str, key: str, client_ca: str) -> str:
    """Why files that the configuration names cannot be used; "" if they can. Certificate and key count only together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        if client_ca:
            named = f"clientCAFile: {client_ca}"
            context.load_verify_locations(client_ca)
        if certificate and key:
            named = f"tlsCertFile, tlsPrivateKeyFile: {certificate}, {key}"
            context.load_cert_chain(certificate, key)
    except OSError as error:  # ssl.SSLError is one
        return f"cannot load {named}: {error.strerror or error}"
    return ""


class ServerTls:
    """The contexts of a server. `context`: for listening; until the certificate exists, handshakes fail.

    `contexts`: if key exchange groups are configured, a context for each, the preferred one first; `context` is the first of
    them. A handshake uses the groups of the context with which it began; `_choose` replaces only the certificate.
    """

    def __init__(self, files: TlsFiles, rules: TlsRules, clock: Clock) -> None:
        self._files = files
        self._rules = rules
        self._clock = clock
        self._seen: Seen | None = None
        self._looked_at = 0.0
        self._problem = ""
        self._current: ssl.SSLContext | None = None
        groups = {number: name for number, name in _GROUPS.items() if number in rules.curves}
        if rules.curves and not groups:
            raise ValueError(f"none of the key exchange groups {sorted(rules.curves)} is available")
        self.contexts = {number: self._listening(name) for number, name in groups.items()}
        self.context = next(iter(self.contexts.values()), None) or self._listening()
        self._look()

    @property
    def problem(self) -> str:
        """Why the newest files are not in use; "" if they are."""
        return self._problem

    def _choose(self, connection: ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> int | None:
        """Select the current context. OpenSSL calls this in every handshake, also without a server name."""
        if self._current is None or self._clock.monotonic() - self._looked_at >= LOOK_PERIOD_S:
            self._look()
        if self._current is None:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        connection.context = self._current
        return None

    def _look(self) -> None:
        self._looked_at = self._clock.monotonic()
        files = self._files
        seen = tuple(_signature(path) for path in (files.certificate, files.key, files.client_ca) if path)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            context = self._fresh()
            context.load_cert_chain(files.certificate, files.key)
        except (OSError, ssl.SSLError) as error:
            self._problem = f"cannot load {files.certificate}, {files.key}: {error}"
            if self._current is not None or not isinstance(error, FileNotFoundError):
                log.warning("the serving certificate cannot be used; the one before stays in use", error=self._problem)
            return
        if self._current is not None:
            log.info("the serving certificate or client CA was read again", certificate=files.certificate)
        self._problem = ""
        self._current = context

    def _listening(self, group: str = "") -> CheckedTls:
        context = self._fresh()
        context.sni_callback = self._choose
        if group:
            context.set_ecdh_curve(group)
        return context

    def _fresh(self) -> CheckedTls:
        context = CheckedTls(ssl.PROTOCOL_TLS_SERVER)
        _set_versions(context, self._rules)
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        # a session ticket costs a third of a handshake, and Kubernetes' clients reuse connections, not sessions
        context.num_tickets = 0
        context.set_alpn_protocols(["http/1.1"])
        if self._files.client_ca:
            context.verify_mode = ssl.CERT_OPTIONAL
            if os.path.exists(self._files.client_ca):
                context.load_verify_locations(self._files.client_ca)
        return context


def _set_versions(context: ssl.SSLContext, rules: TlsRules) -> None:
    """Set the oldest version and the cipher suites. The suites of TLS 1.3 cannot be selected; if only such are configured, TLS
    1.3 becomes the oldest version."""
    ciphers, oldest = openssl_ciphers(rules.cipher_suites), _VERSIONS[rules.min_version]
    if rules.cipher_suites and not ciphers:
        oldest = ssl.TLSVersion.TLSv1_3
    if oldest < ssl.TLSVersion.TLSv1_2:
        ciphers = f"{ciphers or _OLD_CIPHERS}:{_OLD_LEVEL}"
    if ciphers:
        context.set_ciphers(ciphers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the old version was configured on purpose
        context.minimum_version = oldest


def openssl_ciphers(names: tuple[str, ...]) -> str:
    """The configured suites in OpenSSL's format, without those of TLS 1.3 and those that it no longer has. Pure."""
    found = []
    for name in names:
        exchange, _, cipher = name.removeprefix("TLS_").partition("_WITH_")
        if cipher in _CIPHERS and exchange in _KEY_EXCHANGE:
            prefix = _KEY_EXCHANGE[exchange]
            found.append(f"{prefix}-{_CIPHERS[cipher]}" if prefix else _CIPHERS[cipher])
    return ":".join(found)


def _signature(path: str) -> tuple[int, int, int] | None:
    """Inode, time and size of a file, which change when it is replaced or written; None if it does not exist."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
