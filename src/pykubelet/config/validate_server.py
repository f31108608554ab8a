"""Validates the fields of the server, TLS, authentication, and the runtime's endpoints. Pure; part of `validate.py`."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from pykubelet.config.errors import ConfigProblem
from pykubelet.config.gates import FeatureGates
from pykubelet.config.kubelet import PROTOBUF, KubeletConfiguration
from pykubelet.config.validate_node import one_of

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
#: Key exchange groups of `tlsCurvePreferences`, by their numbers in TLS.
CURVES = {23: "P-256", 24: "P-384", 25: "P-521", 29: "X25519"}
#: Groups that Go supports but that cannot be selected with Python's TLS library.
UNAVAILABLE_CURVES = {4587: "SecP256r1MLKEM768", 4588: "X25519MLKEM768", 4589: "SecP384r1MLKEM1024"}
MAX_PORT = 65535


def _is_range(text: str) -> bool:
    try:
        ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        return False
    return True


def is_ip(text: str) -> bool:
    """Whether `text` is an IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_socket(text: str) -> bool:
    """Whether `text` is the path of a unix socket, also with the scheme `unix`."""
    path = text.removeprefix("unix:")
    return path.startswith("/") and (not path.startswith("//") or path.startswith("///"))


def _curves(numbers: Sequence[int]) -> Iterator[ConfigProblem]:
    field, choice = "tlsCurvePreferences", ", ".join(f"{number} ({name})" for number, name in CURVES.items())
    for at, number in enumerate(numbers):
        if not 0 < number <= MAX_PORT:
            yield ConfigProblem(
                field, f"{field}[{at}]: curve preference {number} is out of range (must be 1-{MAX_PORT})"
            )
        elif number in numbers[:at]:
            yield ConfigProblem(field, f"{field}[{at}]: duplicate curve preference {number}")
        elif number not in CURVES and number not in UNAVAILABLE_CURVES:
            yield ConfigProblem(
                field, f"{field}[{at}]: curve preference {number} is not supported: must be one of {choice}"
            )
    if numbers and set(numbers) <= UNAVAILABLE_CURVES.keys():
        names = ", ".join(f"{number} ({UNAVAILABLE_CURVES[number]})" for number in numbers)
        yield ConfigProblem(field, f"{field}: {names} cannot be used here: add at least one of {choice}")


def unavailable_curves(config: KubeletConfiguration) -> tuple[str, ...]:
    """Warnings about configured groups that are valid but cannot be used here."""
    return tuple(
        f"tlsCurvePreferences: {number} ({UNAVAILABLE_CURVES[number]}) cannot be used here; the others are"
        for number in config.tlsCurvePreferences
        if number in UNAVAILABLE_CURVES
    )


def check_server(config: KubeletConfiguration, gates: FeatureGates) -> Iterator[ConfigProblem]:
    """The problems of the fields for ports, addresses, authorization, TLS, runtime endpoints and system log queries."""
    ports = (
        ("healthzPort", "healthz-port", "between 1 and 65535", 0),
        ("port", "port", "between 1 and 65535", 1),
        ("readOnlyPort", "read-only-port", "between 0 and 65535", 0),
    )
    for field, flag, allowed, low in ports:
        number = getattr(config, field)
        if not low <= number <= MAX_PORT:
            yield ConfigProblem(field, f"{field} (--{flag}) {number} must be {allowed}, inclusive")
    for field, flag in (("address", "address"), ("healthzBindAddress", "healthz-bind-address")):
        text = getattr(config, field)
        if not is_ip(text):
            yield ConfigProblem(field, f'{field} (--{flag}) "{text}" is not a valid IP address')
    types = ("", "application/json", PROTOBUF)
    yield from one_of("contentType", config.contentType, types, "kube-api-content-type")
    if any(not _is_range(part) for part in config.podCIDR.split(",") if config.podCIDR):
        text = f'podCIDR (--pod-cidr) "{config.podCIDR}" must be a range such as 10.0.1.0/24, or two with a comma'
        yield ConfigProblem("podCIDR", text)
    try:
        urlsplit(config.staticPodURL)
    except ValueError as error:  # the URL may hold a password and is not shown
        yield ConfigProblem("staticPodURL", f"staticPodURL (--manifest-url) is not a valid URL: {error}")
    modes = ("AlwaysAllow", "Webhook")
    yield from one_of("authorization.mode", config.authorization.mode, modes, "authorization-mode")
    if config.tlsMinVersion:
        yield from one_of("tlsMinVersion", config.tlsMinVersion, TLS_VERSIONS, "tls-min-version")
    for suite in config.tlsCipherSuites:
        if suite not in CIPHER_SUITES:
            text = f"tlsCipherSuites (--tls-cipher-suites): Cipher suite {suite} not supported or doesn't exist"
            yield ConfigProblem("tlsCipherSuites", text)
    yield from _curves(config.tlsCurvePreferences)
    if not config.containerRuntimeEndpoint:
        yield ConfigProblem("containerRuntimeEndpoint", "the containerRuntimeEndpoint was not specified or empty")
    for field, flag in (
        ("containerRuntimeEndpoint", "container-runtime-endpoint"),
        ("imageServiceEndpoint", "image-service-endpoint"),
    ):
        text = getattr(config, field)
        if text and not is_socket(text):
            yield ConfigProblem(
                field, f'{field} (--{flag}) "{text}" must be a unix socket such as unix:///run/runtime.sock'
            )
    if config.enableSystemLogQuery and not gates.enabled("NodeLogQuery"):
        yield ConfigProblem("enableSystemLogQuery", "NodeLogQuery feature gate is required for enableSystemLogQuery")
    if config.enableSystemLogQuery and not config.enableSystemLogHandler:
        yield ConfigProblem("enableSystemLogQuery", "enableSystemLogHandler is required for enableSystemLogQuery")
