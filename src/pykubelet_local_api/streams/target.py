"""Where a stream of a pod goes: its container, and the path and query at the agent. Pure.

Owns: the options of these subresources, normalized as the agent expects them, and the messages for wrong ones.
Source: PodLogOptions, PodExecOptions, PodAttachOptions and PodPortForwardOptions in the Kubernetes API reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote, urlencode

from pykubelet.base.api.times import parse_time
from pykubelet.base.manifests.validation.errors import Errors, forbidden, invalid, not_supported
from pykubelet_local_api import errors
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json, name_of, namespace_of

Query = Mapping[str, list[str]]
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_LOG_STREAMS = ("All", "Stderr", "Stdout")
_LOG_FLAGS = ("follow", "previous", "timestamps")
_LOG_NUMBERS = ("sinceSeconds", "tailLines", "limitBytes")
_LOG_OPTIONS = ResourceKind("", "v1", "PodLogOptions", "podlogoptions")
#: The parameters of exec and attach, and the agent's names for them.
_ATTACHED = {"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"}
_MAX_INT64 = (1 << 63) - 1
_SHOWN = 100


def log_target(pod: Json, query: Query) -> str:
    """The path and query of a container's log. Raises StatusError."""
    options = _log_options(name_of(pod), query)
    path = _path("containerLogs", pod, chosen_container(pod, _first(query, "container")))
    return f"{path}?{urlencode(options)}"


def command_target(subresource: str, pod: Json, query: Query) -> str:
    """The path and query of an exec or attach. Raises StatusError."""
    path = _path(subresource, pod, chosen_container(pod, _first(query, "container")))
    _check_assigned(pod)
    given = [(theirs, "1") for ours, theirs in _ATTACHED.items() if _flag(query, ours)]
    if subresource == "exec":
        given += [("command", word) for word in query.get("command", ())]
    return f"{path}?{urlencode(given)}" if given else path


def forward_target(pod: Json, query: Query) -> str:
    """The path and query of a port-forward. Raises StatusError."""
    _check_assigned(pod)
    ports = [_integer(port) for port in query.get("ports", ())]
    path = _path("portForward", pod)
    return f"{path}?{urlencode({'port': ','.join(map(str, ports))})}" if ports else path


def skips_verification(query: Query) -> bool:
    """Whether the client wants a log although the agent's certificate is not valid."""
    return _flag(query, "insecureSkipTLSVerifyBackend")


def chosen_container(pod: Json, wanted: str) -> str:
    """The container that is meant. Raises StatusError (400) if there is none, or more than one."""
    names = list(_container_names(pod))
    if wanted:
        if wanted not in names:
            raise errors.bad_request(f"container {wanted[:_SHOWN]} is not valid for pod {name_of(pod)}")
        return wanted
    usual: list[Json] = pod["spec"].get("containers") or []
    if len(usual) == 1:
        return str(usual[0]["name"])
    message = f"a container name must be specified for pod {name_of(pod)}"
    raise errors.bad_request(f"{message}, choose one of: [{' '.join(names)}]" if usual else message)


def _container_names(pod: Json) -> Iterator[str]:
    for field in ("initContainers", "containers", "ephemeralContainers"):
        for container in pod["spec"].get(field) or ():
            yield str(container["name"])


def _check_assigned(pod: Json) -> None:
    if not pod["spec"].get("nodeName"):
        raise errors.bad_request(f"pod {name_of(pod)} does not have a host assigned")


def _path(kind: str, pod: Json, *more: str) -> str:
    return "/" + "/".join(quote(part, safe="") for part in (kind, namespace_of(pod), name_of(pod), *more))


def _log_options(pod: str, query: Query) -> dict[str, str]:
    numbers = {name: _integer(given) for name in _LOG_NUMBERS if (given := _first(query, name))}
    since = _first(query, "sinceTime")
    stream = _first(query, "stream") or "All"
    wrong = _log_errors(numbers, since, stream)
    if wrong:
        raise errors.invalid(_LOG_OPTIONS, pod, wrong)
    options = {name: "true" for name in _LOG_FLAGS if _flag(query, name)}
    options |= {name: str(number) for name, number in numbers.items()}
    if since:
        options["sinceTime"] = since
    return options | {"stream": stream}


def _log_errors(numbers: Mapping[str, int], since: str, stream: str) -> Errors:
    found: Errors = []
    if numbers.get("tailLines", 0) < 0:
        found.append(invalid("tailLines", numbers["tailLines"], "must be greater than or equal to 0"))
    if numbers.get("limitBytes", 1) < 1:
        found.append(invalid("limitBytes", numbers["limitBytes"], "must be greater than 0"))
    if "sinceSeconds" in numbers and since:
        found.append(forbidden("", "at most one of `sinceTime` or `sinceSeconds` may be specified"))
    elif numbers.get("sinceSeconds", 1) < 1:
        found.append(invalid("sinceSeconds", numbers["sinceSeconds"], "must be greater than 0"))
    if since:
        _check_time(since)
    if stream not in _LOG_STREAMS:
        found.append(not_supported("stream", stream[:_SHOWN], _LOG_STREAMS))
    if stream != "All" and "tailLines" in numbers:
        found.append(forbidden("", "`tailLines` and specific `stream` are mutually exclusive for now"))
    return found


def _check_time(given: str) -> None:
    try:
        parse_time(given)
    except ValueError:
        shown = given[:_SHOWN]
        layout = "2006-01-02T15:04:05Z07:00"
        raise errors.bad_request(f'parsing time "{shown}" as "{layout}": cannot parse "{shown}" as "2006"') from None


def _first(query: Query, name: str) -> str:
    values = query.get(name)
    return values[0] if values else ""


def _flag(query: Query, name: str) -> bool:
    """Whether a flag is set. Any value but `false` and `0` sets it, also the empty one."""
    values = query.get(name)
    return values is not None and values[0].lower() not in ("0", "false")


def _integer(given: str) -> int:
    if not _INTEGER.fullmatch(given):
        raise errors.bad_request(f'strconv.ParseInt: parsing "{given[:_SHOWN]}": invalid syntax')
    number = int(given)
    if not -_MAX_INT64 - 1 <= number <= _MAX_INT64:
        raise errors.bad_request(f'strconv.ParseInt: parsing "{given}": value out of range')
    return number
