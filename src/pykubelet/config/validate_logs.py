"""Validates the fields of the agent's own log, of traces, and of the containers' logs. Pure; part of `validate.py`."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from pykubelet.base.api.quantity import QuantityError, parse_text
from pykubelet.base.kit.durations import SECOND
from pykubelet.config.errors import ConfigProblem
from pykubelet.config.gates import FeatureGates
from pykubelet.config.kubelet import KubeletConfiguration, Logging, Tracing
from pykubelet.config.trace_target import DEFAULT, TargetError, read_target

MAX_VERBOSITY = 2**31 - 1
FORMATS = ("text", "json")
SCHEMES = ("dns", "unix", "unix-abstract")


def check_logging(logging: Logging, gates: FeatureGates) -> list[ConfigProblem]:
    """The problems of the field `logging`. Their texts contain the field path and have no prefix, as in the reference."""
    found = [ConfigProblem(f"logging.{path}", f"logging.{path}: {text}") for path, text in _logging(logging)]
    if logging.format == "json" and not gates.enabled("LoggingBetaOptions"):
        text = "logging.format: Forbidden: Log format json is disabled, see LoggingBetaOptions feature"
        found.append(ConfigProblem("logging.format", text))
    if not gates.enabled("LoggingAlphaOptions"):
        for name in FORMATS:
            options = getattr(logging.options, name)
            for field, used in (
                ("splitStream", options.splitStream),
                ("infoBufferSize", parse_text(options.infoBufferSize).nano != 0),
            ):
                if used:
                    path = f"logging.options.{name}.{field}"
                    found.append(ConfigProblem(path, f"{path}: Forbidden: Feature LoggingAlphaOptions is disabled"))
    return found


def _logging(logging: Logging) -> Iterator[tuple[str, str]]:
    if logging.format not in FORMATS:
        yield "format", f'Invalid value: "{logging.format}": Unsupported log format, must be text or json'
    if logging.flushFrequency.ns <= 0:
        yield "flushFrequency", f'Invalid value: "{logging.flushFrequency}": Must be greater than zero'
    if logging.verbosity > MAX_VERBOSITY:
        yield "verbosity", f"Invalid value: {logging.verbosity}: Must be <= {MAX_VERBOSITY}"
    if logging.vmodule and logging.format != "text":
        yield "vmodule", "Forbidden: Only supported for text log format"
    for index, item in enumerate(logging.vmodule):
        path = f"vmodule[{index}]"
        if not item.filePattern:
            yield path, "Required value: File pattern must not be empty"
        if any(sign in item.filePattern for sign in "=,"):
            yield path, f'Invalid value: "{item.filePattern}": File pattern must not contain equal sign or comma'
        if item.verbosity > MAX_VERBOSITY:
            yield path, f"Invalid value: {item.verbosity}: Must be <= {MAX_VERBOSITY}"


def check_tracing(tracing: Tracing | None) -> list[ConfigProblem]:
    """The problems of the field `tracing`."""
    if tracing is None:
        return []
    found = []
    rate = tracing.samplingRatePerMillion
    path = "tracing.samplingRatePerMillion"
    if rate is not None and rate < 0:
        found.append(ConfigProblem(path, f"{path}: Invalid value: {rate}: sampling rate must be positive"))
    if rate is not None and rate > 1_000_000:
        text = "sampling rate per million must be less than or equal to one million"
        found.append(ConfigProblem(path, f"{path}: Invalid value: {rate}: {text}"))
    if tracing.endpoint is not None and (text := _wrong_endpoint(tracing.endpoint)):
        path = "tracing.endpoint"
        found.append(ConfigProblem(path, f'{path}: Invalid value: "{tracing.endpoint}": {text}'))
    return found


def _wrong_endpoint(endpoint: str) -> str:
    scheme = endpoint.partition(":")[0]
    if "//" in endpoint and scheme not in SCHEMES:
        text = f"unsupported scheme: {scheme}.  Options are none, dns, unix, or unix-abstract."
        return f"{text}  See https://github.com/grpc/grpc/blob/master/doc/naming.md"
    try:
        read_target(endpoint or DEFAULT)
    except TargetError as error:
        return str(error)
    return ""


def check_pod_logs(config: KubeletConfiguration) -> Iterator[ConfigProblem]:
    """The problems of the fields for container log rotation."""
    try:
        if parse_text(config.containerLogMaxSize).nano == 0:
            shown = f'containerLogMaxSize (--container-log-max-size) "{config.containerLogMaxSize}"'
            text = f"{shown} must not be zero: a size above zero, or a negative one for no rotation"
            yield ConfigProblem("containerLogMaxSize", text)
    except QuantityError as error:
        text = f'failed to parse container log max size "{config.containerLogMaxSize}": {error}'
        yield ConfigProblem("containerLogMaxSize", text)
    if config.containerLogMaxWorkers < 1:
        yield ConfigProblem("containerLogMaxWorkers", "containerLogMaxWorkers must be greater than or equal to 1")
    if config.containerLogMonitorInterval.ns < 3 * SECOND:
        text = "containerLogMonitorInterval must be a positive time duration greater than or equal to 3s"
        yield ConfigProblem("containerLogMonitorInterval", text)
    if config.containerLogMaxFiles <= 1:
        yield ConfigProblem("containerLogMaxFiles", "containerLogMaxFiles must be greater than 1")
    path = config.podLogsDir
    if not path:
        yield ConfigProblem("podLogsDir", "podLogsDir was not specified")
    if not posixpath.isabs(path):
        yield ConfigProblem("podLogsDir", f'pod logs path "{path}" must be absolute path')
    if posixpath.normpath(path) != path:
        yield ConfigProblem("podLogsDir", f'pod logs path "{path}" must be normalized')
    if not path.isascii():
        yield ConfigProblem("podLogsDir", f'pod logs path "{path}" mut contains ASCII characters only')
