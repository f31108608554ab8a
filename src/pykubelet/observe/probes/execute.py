"""Carries out one probe: exec, HTTP, TCP or gRPC.

Owns: the choice of the handler, ports and addresses, `$(VAR)` in commands, retries. Reads no cell. A probe never raises:
its result is an `Outcome`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pykubelet.base.api.core import (
    Container,
    ExecAction,
    GRPCAction,
    HTTPGetAction,
    Probe,
    TCPSocketAction,
)
from pykubelet.base.api.intorstring import go_quotable, port_problem, resolve_port
from pykubelet.base.kit.durations import format_seconds
from pykubelet.base.kit.values import Value
from pykubelet.base.model.arguments import ArgumentSpace, ArgumentsTooLongError
from pykubelet.base.model.ids import ContainerID, PodRef
from pykubelet.base.model.version import CURRENT, Release
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.probing.connection import Connector
from pykubelet.edges.probing.grpc_health import probe_grpc
from pykubelet.edges.probing.http import HttpProber
from pykubelet.edges.probing.http_target import HttpTarget
from pykubelet.edges.probing.outcome import Outcome, errored, failed, passed
from pykubelet.edges.probing.tcp import probe_tcp

TRIES = 3
OUTPUT_LIMIT = 10 << 10
HTTP2 = "HTTP2"
TLS = "TLS"
NO_ADDRESS = "the pod has no IP address"
#: How a command begins that a process extension runs, in place of the container's runtime (`extension.py`).
EXTENSION = "extension:"


class ProbeRequest(Value):
    """One probe to run. `id`: the container instance. `pod_ip`: empty while the pod has none."""

    ref: PodRef
    container: Container
    probe: Probe
    id: ContainerID
    pod_ip: str
    timeout_s: float


class Prober(Protocol):
    """Carries out probes; tests have doubles."""

    async def probe(self, request: ProbeRequest) -> Outcome:
        """Carry out one probe. Never raises: failures are outcomes."""


class ContainerProber:
    """Probes containers over the network, and by commands that the runtime runs. `grpc_redials`: as in `Behavior`."""

    def __init__(self, cri: CriClient, release: Release = CURRENT, *, grpc_redials: bool = True) -> None:
        self._cri = cri
        self._grpc_redials = grpc_redials
        self._user_agent = f"kube-probe/{release}"
        self._connector = Connector()
        self._http = HttpProber(self._user_agent, self._connector)

    async def probe(self, request: ProbeRequest) -> Outcome:
        """Run the probe, up to three times: an error is retried unless it is final."""
        for _ in range(TRIES - 1):
            outcome = await self._try(request)
            if not outcome.error or outcome.is_final:
                return outcome
        return await self._try(request)

    async def _try(self, request: ProbeRequest) -> Outcome:
        probe = request.probe
        if probe.exec is not None:
            return await self._exec(probe.exec, request)
        if probe.httpGet is not None:
            return await self._http_get(probe.httpGet, request)
        if probe.tcpSocket is not None:
            return await self._tcp(probe.tcpSocket, request)
        if probe.grpc is not None:
            return await self._grpc(probe.grpc, request)
        return errored(f"missing probe handler for {request.ref}:{request.container.name}")

    async def _exec(self, action: ExecAction, request: ProbeRequest) -> Outcome:
        try:
            command = expanded_command(action.command, request.container)
        except ArgumentsTooLongError as error:
            return errored(str(error), is_final=True)
        try:
            answer = await self._cri.exec_sync(request.id, command, int(request.timeout_s))
        except CriError as error:
            if error.is_deadline:
                after = format_seconds(request.timeout_s)
                message = f'command timed out: "{go_quotable(" ".join(command))}" timed out after {after}'
                return failed(message, timed_out=True)
            return errored(str(error), is_final=error.is_unavailable)
        output = (answer.stdout[:OUTPUT_LIMIT] + answer.stderr[:OUTPUT_LIMIT])[:OUTPUT_LIMIT].decode("utf-8", "replace")
        return passed(output) if answer.exit_code == 0 else failed(output)

    async def _http_get(self, action: HTTPGetAction, request: ProbeRequest) -> Outcome:
        host, port = action.host or request.pod_ip, resolve_port(action.port, request.container.ports)
        if port is None:
            return errored(port_problem(action.port))
        if not host:
            return errored(NO_ADDRESS)
        headers = tuple((header.name, header.value) for header in action.httpHeaders)
        scheme, is_http2 = (action.scheme or "http").lower(), action.protocol == HTTP2
        target = HttpTarget(scheme, host.strip("[]"), port, action.path, headers, is_http2)
        return await self._http.probe(target, request.timeout_s)

    async def _tcp(self, action: TCPSocketAction, request: ProbeRequest) -> Outcome:
        host, port = action.host or request.pod_ip, resolve_port(action.port, request.container.ports)
        if port is None:
            return errored(port_problem(action.port))
        if not host:
            return errored(NO_ADDRESS)
        return await probe_tcp(host.strip("[]"), port, request.timeout_s)

    async def _grpc(self, action: GRPCAction, request: ProbeRequest) -> Outcome:
        if not request.pod_ip:
            return errored(NO_ADDRESS)
        target = request.pod_ip, action.port, action.service, request.timeout_s, self._user_agent
        is_tls = action.mode == TLS
        return await probe_grpc(*target, redials=self._grpc_redials, is_tls=is_tls, connector=self._connector)


def extension_of(probe: Probe) -> str | None:
    """The name of the process extension that answers a probe; None: another handler does."""
    command = probe.exec.command if probe.exec is not None else ()
    return command[0].removeprefix(EXTENSION) if command and command[0].startswith(EXTENSION) else None


def expanded_command(command: Sequence[str], container: Container) -> Sequence[str]:
    """The command with the variables that have literal values in the pod expanded; others are only known in the container.

    Raises ArgumentsTooLongError.
    """
    variables = {variable.name: variable.value for variable in container.env}
    return ArgumentSpace().expand_all("command", command, variables)
