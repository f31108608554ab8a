"""Rules about the server, its TLS, authentication, and the runtime's endpoints. Pure; part of `validate.py`."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from pykubelet.base.config.errors import Problem
from pykubelet.base.config.gates import FeatureGates
from pykubelet.base.config.kubelet import KubeletConfiguration
from pykubelet.base.config.validate_node import one_of

TLS_VERSIONS = ("VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13")
CIPHER_SUITES = frozenset(
    {
        "TLS_AES_128_GCM_SHA256",
        "TLS_AES_256_GCM_SHA384",
        "TLS_CHACHA20_POLY1305_SHA256",
        "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
        "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
        "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
        "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
        "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
        "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
        "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
        "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
        "TLS_RSA_WITH_AES_128_CBC_SHA",
        "TLS_RSA_WITH_AES_128_CBC_SHA256",
        "TLS_RSA_WITH_AES_128_GCM_SHA256",
        "TLS_RSA_WITH_AES_256_CBC_SHA",
        "TLS_RSA_WITH_AES_256_GCM_SHA384",
        "TLS_RSA_WITH_RC4_128_SHA",
    }
)
MAX_PORT = 65535


def is_ip(text: str) -> bool:
    """Whether `text` is an IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_socket(text: str) -> bool:
    path = text.removeprefix("unix:")
    return path.startswith("/") and (not path.startswith("//") or path.startswith("///"))


def check_server(config: KubeletConfiguration, gates: FeatureGates) -> Iterator[Problem]:
    ports = (
        ("healthzPort", "healthz-port", "between 1 and 65535", 0),
        ("port", "port", "between 1 and 65535", 1),
        ("readOnlyPort", "read-only-port", "between 0 and 65535", 0),
    )
    for field, flag, allowed, low in ports:
        number = getattr(config, field)
        if not low <= number <= MAX_PORT:
            yield Problem(field, f"{field} (--{flag}) {number} must be {allowed}, inclusive")
    for field, flag in (("address", "address"), ("healthzBindAddress", "healthz-bind-address")):
        text = getattr(config, field)
        if not is_ip(text):
            yield Problem(field, f'{field} (--{flag}) "{text}" is not a valid IP address')
    modes = ("AlwaysAllow", "Webhook")
    yield from one_of("authorization.mode", config.authorization.mode, modes, "authorization-mode")
    if config.tlsMinVersion:
        yield from one_of("tlsMinVersion", config.tlsMinVersion, TLS_VERSIONS, "tls-min-version")
    for suite in config.tlsCipherSuites:
        if suite not in CIPHER_SUITES:
            text = f"tlsCipherSuites (--tls-cipher-suites): Cipher suite {suite} not supported or doesn't exist"
            yield Problem("tlsCipherSuites", text)
    if not config.containerRuntimeEndpoint:
        yield Problem("containerRuntimeEndpoint", "the containerRuntimeEndpoint was not specified or empty")
    for field, flag in (
        ("containerRuntimeEndpoint", "container-runtime-endpoint"),
        ("imageServiceEndpoint", "image-service-endpoint"),
    ):
        text = getattr(config, field)
        if text and not _is_socket(text):
            yield Problem(field, f'{field} (--{flag}) "{text}" must be a unix socket such as unix:///run/runtime.sock')
    if config.enableSystemLogQuery and not gates.enabled("NodeLogQuery"):
        yield Problem("enableSystemLogQuery", "NodeLogQuery feature gate is required for enableSystemLogQuery")
    if config.enableSystemLogQuery and not config.enableSystemLogHandler:
        yield Problem("enableSystemLogQuery", "enableSystemLogHandler is required for enableSystemLogQuery")
