"""Rules of `validate_logs.py`, each broken once: the document and the messages, which are without their prefix in `CONTAINER_LOGS`."""

from __future__ import annotations

from typing import Any

#: The containers' logs.
CONTAINER_LOGS: list[tuple[dict[str, Any], list[str]]] = [
    ({"containerLogMaxWorkers": 0}, ["containerLogMaxWorkers must be greater than or equal to 1"]),
    (
        {"containerLogMonitorInterval": "2s"},
        ["containerLogMonitorInterval must be a positive time duration greater than or equal to 3s"],
    ),
    ({"containerLogMaxFiles": 1}, ["containerLogMaxFiles must be greater than 1"]),
    (
        {"containerLogMaxSize": "big"},
        [
            'failed to parse container log max size "big": quantities must match the regular expression '
            "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        ],
    ),
    (
        {"containerLogMaxSize": "0"},
        [
            'containerLogMaxSize (--container-log-max-size) "0" must not be zero: a size above zero, '
            "or a negative one for no rotation"
        ],
    ),
    ({"podLogsDir": "logs"}, ['pod logs path "logs" must be absolute path']),
    ({"podLogsDir": "/var//log"}, ['pod logs path "/var//log" must be normalized']),
    ({"podLogsDir": "/var/log/"}, ['pod logs path "/var/log/" must be normalized']),
    ({"podLogsDir": "/var/lög"}, ['pod logs path "/var/lög" mut contains ASCII characters only']),
]

#: The agent's own log, and traces: messages that carry no prefix.
OWN_LOG: list[tuple[dict[str, Any], list[str]]] = [
    ({"logging": {"vmodule": [None]}}, ["logging.vmodule[0]: Required value: File pattern must not be empty"]),
    (
        {"tracing": {"endpoint": "a b"}},
        ['tracing.endpoint: Invalid value: "a b": invalid character " " in host name'],
    ),
    (
        {"logging": {"format": "xml"}},
        ['logging.format: Invalid value: "xml": Unsupported log format, must be text or json'],
    ),
    (
        {"logging": {"flushFrequency": "-1s"}},
        ['logging.flushFrequency: Invalid value: "-1s": Must be greater than zero'],
    ),
    ({"logging": {"verbosity": 3000000000}}, ["logging.verbosity: Invalid value: 3000000000: Must be <= 2147483647"]),
    (
        {"logging": {"format": "json", "vmodule": [{"filePattern": "a", "verbosity": 1}]}},
        ["logging.vmodule: Forbidden: Only supported for text log format"],
    ),
    (
        {"logging": {"vmodule": [{"verbosity": 1}, {"filePattern": "a=b"}, {"filePattern": "c", "verbosity": 2**31}]}},
        [
            "logging.vmodule[0]: Required value: File pattern must not be empty",
            'logging.vmodule[1]: Invalid value: "a=b": File pattern must not contain equal sign or comma',
            "logging.vmodule[2]: Invalid value: 2147483648: Must be <= 2147483647",
        ],
    ),
    (
        {"logging": {"options": {"json": {"splitStream": True}}}},
        ["logging.options.json.splitStream: Forbidden: Feature LoggingAlphaOptions is disabled"],
    ),
    (
        {"logging": {"format": "json"}, "featureGates": {"LoggingBetaOptions": False}},
        ["logging.format: Forbidden: Log format json is disabled, see LoggingBetaOptions feature"],
    ),
    (
        {"logging": {"options": {"text": {"infoBufferSize": "1Ki"}}}},
        ["logging.options.text.infoBufferSize: Forbidden: Feature LoggingAlphaOptions is disabled"],
    ),
    (
        {"tracing": {"samplingRatePerMillion": -1}},
        ["tracing.samplingRatePerMillion: Invalid value: -1: sampling rate must be positive"],
    ),
    (
        {"tracing": {"samplingRatePerMillion": 1000001}},
        [
            "tracing.samplingRatePerMillion: Invalid value: 1000001: sampling rate per million must be less than or "
            "equal to one million"
        ],
    ),
    ({"tracing": {"endpoint": ":4317"}}, ['tracing.endpoint: Invalid value: ":4317": the host is missing']),
    (
        {"tracing": {"endpoint": "http://x"}},
        [
            'tracing.endpoint: Invalid value: "http://x": unsupported scheme: http.  Options are none, dns, unix, or '
            "unix-abstract.  See https://github.com/grpc/grpc/blob/master/doc/naming.md"
        ],
    ),
]
