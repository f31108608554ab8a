"""Validates probes, lifecycle hooks and their handlers. Pure."""

from __future__ import annotations

from msgspec import Struct

from pykubelet.base.api import labels as names
from pykubelet.base.api.core import (
    ExecAction,
    GRPCAction,
    HTTPGetAction,
    IntOrString,
    Lifecycle,
    LifecycleHandler,
    Probe,
    SleepAction,
)
from pykubelet.base.manifests.validation.errors import (
    Errors,
    forbidden,
    invalid,
    invalids,
    nonnegative,
    not_supported,
    required,
)

HTTP2 = "HTTP2"
HTTP_PROTOCOLS = ("HTTP1", HTTP2)
GRPC_MODES = ("Plaintext", "TLS")
ONE_HANDLER = "may not specify more than 1 handler type"
_SIGNAL_NAMES = (
    *("ABRT", "ALRM", "BUS", "CHLD", "CLD", "CONT", "FPE", "HUP", "ILL", "INT", "IO", "IOT", "KILL", "PIPE", "POLL"),
    *("PROF", "PWR", "QUIT", "SEGV", "STKFLT", "STOP", "SYS", "TERM", "TRAP", "TSTP", "TTIN", "TTOU", "URG", "USR1"),
    *("USR2", "VTALRM", "WINCH", "XCPU", "XFSZ", "RTMIN", "RTMAX"),
    *(f"RTMIN+{n}" for n in range(1, 16)),
    *(f"RTMAX-{n}" for n in range(1, 15)),
)
LINUX_SIGNALS = tuple(sorted(f"SIG{name}" for name in _SIGNAL_NAMES))
#: The first given action is validated, the others are forbidden. Actions that are not listed here come last.
_ORDER = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")


def validate_port(port: IntOrString, path: str) -> Errors:
    """A port by number or by name."""
    reasons = names.port_name_errors(port) if isinstance(port, str) else names.port_number_errors(port)
    return invalids(path, port, reasons)


def _validate_action(action: Struct, grace_s: int | None, path: str) -> Errors:
    """Validate an action. For actions without rules of their own, only the port is checked."""
    match action:
        case ExecAction():
            return [] if action.command else [required(f"{path}.command")]
        case HTTPGetAction():
            errors: Errors = [] if action.path else [required(f"{path}.path")]
            errors += validate_port(action.port, f"{path}.port")
            if action.scheme not in ("HTTP", "HTTPS"):
                errors.append(not_supported(f"{path}.scheme", action.scheme, ("HTTP", "HTTPS")))
            for header in action.httpHeaders:
                errors += invalids(f"{path}.httpHeaders", header.name, names.header_name_errors(header.name))
            return errors + _protocol_errors(action, path)
        case GRPCAction():
            errors = validate_port(action.port, f"{path}.port")
            if action.mode and action.mode not in GRPC_MODES:
                errors.append(not_supported(f"{path}.mode", action.mode, GRPC_MODES))
            return errors
        case SleepAction():
            if grace_s is not None and not 0 <= action.seconds <= grace_s:
                detail = f"must be non-negative and less than terminationGracePeriodSeconds ({grace_s})"
                return [invalid(path, action.seconds, detail)]
            return []
        case _:
            port: IntOrString | None = getattr(action, "port", None)
            return validate_port(port, f"{path}.port") if port is not None else []


def _protocol_errors(action: HTTPGetAction, path: str) -> Errors:
    """HTTP/2 is spoken without TLS, and with the pod itself (KEP-5999)."""
    if action.protocol and action.protocol not in HTTP_PROTOCOLS:
        return [not_supported(f"{path}.protocol", action.protocol, HTTP_PROTOCOLS)]
    if action.protocol != HTTP2:
        return []
    errors: Errors = []
    if action.scheme != "HTTP":
        errors.append(invalid(f"{path}.scheme", action.scheme, "must be HTTP when protocol is HTTP2"))
    if action.host:
        errors.append(forbidden(f"{path}.host", "may not be set when protocol is HTTP2"))
    return errors


def _given_actions(handler: Probe | LifecycleHandler) -> list[tuple[str, Struct]]:
    """The given actions with their field names: all fields of a handler that are objects."""
    fields = [name for name in handler.__struct_fields__ if name not in _ORDER]
    values = ((name, getattr(handler, name, None)) for name in (*_ORDER, *fields))
    return [(name, value) for name, value in values if isinstance(value, Struct)]


def _validate_handler(handler: Probe | LifecycleHandler, grace_s: int | None, path: str) -> Errors:
    given = _given_actions(handler)
    if not given:
        return [required(path, "must specify a handler type")]
    (name, action), others = given[0], given[1:]
    errors = _validate_action(action, grace_s, f"{path}.{name}")
    return errors + [forbidden(f"{path}.{other}", ONE_HANDLER) for other, _ in others]


def _validate_probe(probe: Probe, grace_s: int | None, path: str) -> Errors:
    errors = _validate_handler(probe, grace_s, path)
    for field in ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"):
        errors += nonnegative(f"{path}.{field}", getattr(probe, field))
    grace = probe.terminationGracePeriodSeconds
    if grace is not None and grace <= 0:
        errors.append(invalid(f"{path}.terminationGracePeriodSeconds", grace, "must be greater than 0"))
    return errors


def validate_restart_probe(probe: Probe, grace_s: int | None, path: str) -> Errors:
    """A liveness or startup probe: its success threshold must be 1."""
    errors = _validate_probe(probe, grace_s, path)
    if probe.successThreshold != 1:
        errors.append(invalid(f"{path}.successThreshold", probe.successThreshold or 0, "must be 1"))
    return errors


def validate_readiness_probe(probe: Probe, grace_s: int | None, path: str) -> Errors:
    """A readiness probe. It kills no container, so it must have no grace period."""
    errors = _validate_probe(probe, grace_s, path)
    grace = probe.terminationGracePeriodSeconds
    if grace is not None:
        detail = "must not be set for readinessProbes"
        errors.append(invalid(f"{path}.terminationGracePeriodSeconds", grace, detail))
    return errors


def _validate_hook(hook: LifecycleHandler | None, grace_s: int | None, path: str) -> Errors:
    if hook is None:
        return []
    return _validate_handler(hook, grace_s, path)


def validate_lifecycle(lifecycle: Lifecycle, grace_s: int | None, os_name: str, path: str) -> Errors:
    """postStart, preStop and the stop signal."""
    errors = _validate_hook(lifecycle.postStart, grace_s, f"{path}.postStart")
    errors += _validate_hook(lifecycle.preStop, grace_s, f"{path}.preStop")
    signal = lifecycle.stopSignal
    if signal:
        if not os_name:
            errors.append(forbidden(f"{path}.stopSignal", "may not be set for containers with empty `spec.os.name`"))
        supported = ("SIGKILL", "SIGTERM") if os_name == "windows" else LINUX_SIGNALS
        if signal not in supported:
            errors.append(not_supported(f"{path}.stopSignal", signal, supported))
    return errors
