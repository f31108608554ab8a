"""Rules of `validate_server.py`, each broken once: the document, and the messages without their prefix."""

from __future__ import annotations

from typing import Any

SERVER: list[tuple[dict[str, Any], list[str]]] = [
    ({"staticPodURL": "http://["}, ["staticPodURL (--manifest-url) is not a valid URL: Invalid IPv6 URL"]),
    ({"healthzPort": 65536}, ["healthzPort (--healthz-port) 65536 must be between 1 and 65535, inclusive"]),
    ({"healthzPort": -1}, ["healthzPort (--healthz-port) -1 must be between 1 and 65535, inclusive"]),
    ({"port": -1}, ["port (--port) -1 must be between 1 and 65535, inclusive"]),
    ({"port": 70000}, ["port (--port) 70000 must be between 1 and 65535, inclusive"]),
    ({"readOnlyPort": -1}, ["readOnlyPort (--read-only-port) -1 must be between 0 and 65535, inclusive"]),
    ({"readOnlyPort": 65536}, ["readOnlyPort (--read-only-port) 65536 must be between 0 and 65535, inclusive"]),
    ({"address": "host"}, ['address (--address) "host" is not a valid IP address']),
    (
        {"healthzBindAddress": "1.2.3"},
        ['healthzBindAddress (--healthz-bind-address) "1.2.3" is not a valid IP address'],
    ),
    (
        {"contentType": "application/yaml"},
        [
            'option "application/yaml" specified for contentType (--kube-api-content-type). '
            'Valid options are "", "application/json" or "application/vnd.kubernetes.protobuf"'
        ],
    ),
    (
        {"podCIDR": "10.0.0.0/24,10.0.0.300"},
        [
            'podCIDR (--pod-cidr) "10.0.0.0/24,10.0.0.300" must be a range such as 10.0.1.0/24, or two with a comma',
        ],
    ),
    (
        {"tlsCurvePreferences": [None]},
        ["tlsCurvePreferences[0]: curve preference 0 is out of range (must be 1-65535)"],
    ),
    (
        {"tlsCipherSuites": [None]},
        ["tlsCipherSuites (--tls-cipher-suites): Cipher suite  not supported or doesn't exist"],
    ),
    (
        {"enableSystemLogQuery": True, "enableSystemLogHandler": False},
        ["enableSystemLogHandler is required for enableSystemLogQuery"],
    ),
    (
        {"authorization": {"mode": "RBAC"}},
        [
            'option "RBAC" specified for authorization.mode (--authorization-mode). '
            'Valid options are "AlwaysAllow" or "Webhook"'
        ],
    ),
    (
        {"tlsMinVersion": "TLS12"},
        [
            'option "TLS12" specified for tlsMinVersion (--tls-min-version). '
            'Valid options are "VersionTLS10", "VersionTLS11", "VersionTLS12" or "VersionTLS13"'
        ],
    ),
    (
        {"tlsCipherSuites": ["ROT13"]},
        ["tlsCipherSuites (--tls-cipher-suites): Cipher suite ROT13 not supported or doesn't exist"],
    ),
    (
        {"tlsCurvePreferences": [29, 0, 65536, 29, 30, 4588]},
        [
            "tlsCurvePreferences[1]: curve preference 0 is out of range (must be 1-65535)",
            "tlsCurvePreferences[2]: curve preference 65536 is out of range (must be 1-65535)",
            "tlsCurvePreferences[3]: duplicate curve preference 29",
            "tlsCurvePreferences[4]: curve preference 30 is not supported: must be one of "
            "23 (P-256), 24 (P-384), 25 (P-521), 29 (X25519)",
        ],
    ),
    (
        {"tlsCurvePreferences": [4588]},
        [
            "tlsCurvePreferences: 4588 (X25519MLKEM768) cannot be used here: add at least one of "
            "23 (P-256), 24 (P-384), 25 (P-521), 29 (X25519)",
        ],
    ),
    (
        {"containerRuntimeEndpoint": "tcp://1.2.3.4:5"},
        [
            'containerRuntimeEndpoint (--container-runtime-endpoint) "tcp://1.2.3.4:5" must be a unix socket '
            "such as unix:///run/runtime.sock"
        ],
    ),
    (
        {"imageServiceEndpoint": "unix://run/x.sock"},
        [
            'imageServiceEndpoint (--image-service-endpoint) "unix://run/x.sock" must be a unix socket '
            "such as unix:///run/runtime.sock"
        ],
    ),
]
