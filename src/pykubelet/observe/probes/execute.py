"""Carrying out one probe: which question is asked of what, and by whom.

Owns: the choice of the prober, ports and addresses, `$(VAR)` in commands, retries. Reads nothing. A probe never raises;
what it came to is an `Outcome`.
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
from pykubelet.base.model.expansion import expand
from pykubelet.base.model.ids import ContainerID, PodRef
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.probing.grpc_health import probe_grpc
from pykubelet.edges.probing.http import HttpProber
from pykubelet.edges.probing.http_wire import HttpTarget
from pykubelet.edges.probing.outcome import Outcome, errored, failed, passed
from pykubelet.edges.probing.tcp import probe_tcp

TRIES = 3
OUTPUT_LIMIT = 10 << 10
NO_ADDRESS = "the pod has no IP address"


class Ask(Value):
    """One probe to be carried out. `pod_ip` is empty while the pod has none."""

    ref: PodRef
    container: Container
    probe: Probe
    id: ContainerID
    pod_ip: str
    timeout_s: float


class Prober(Protocol):
    """The real one, and fakes in tests."""

    async def probe(self, ask: Ask) -> Outcome: ...


class ContainerProber:
    """Asks real containers."""

    def __init__(self, cri: CriClient) -> None:
        self._cri = cri
        self._http = HttpProber()

    async def probe(self, ask: Ask) -> Outcome:
        """Up to three tries, as long as they tell nothing and the next one might."""
        for _ in range(TRIES - 1):
            outcome = await self._try(ask)
            if not outcome.error or outcome.is_final:
                return outcome
        return await self._try(ask)

    async def _try(self, ask: Ask) -> Outcome:
        probe = ask.probe
        if probe.exec is not None:
            return await self._exec(probe.exec, ask)
        if probe.httpGet is not None:
            return await self._http_get(probe.httpGet, ask)
        if probe.tcpSocket is not None:
            return await self._tcp(probe.tcpSocket, ask)
        if probe.grpc is not None:
            return await self._grpc(probe.grpc, ask)
        return errored(f"missing probe handler for {ask.ref}:{ask.container.name}")

    async def _exec(self, action: ExecAction, ask: Ask) -> Outcome:
        command = expanded_command(action.command, ask.container)
        try:
            answer = await self._cri.exec_sync(ask.id, command, int(ask.timeout_s))
        except CriError as error:
            if error.is_deadline:
                after = format_seconds(ask.timeout_s)
                said = f'command timed out: "{go_quotable(" ".join(command))}" timed out after {after}'
                return failed(said, timed_out=True)
            return errored(str(error), is_final=error.is_unavailable)
        output = (answer.stdout[:OUTPUT_LIMIT] + answer.stderr[:OUTPUT_LIMIT])[:OUTPUT_LIMIT].decode("utf-8", "replace")
        return passed(output) if answer.exit_code == 0 else failed(output)

    async def _http_get(self, action: HTTPGetAction, ask: Ask) -> Outcome:
        host, port = action.host or ask.pod_ip, resolve_port(action.port, ask.container.ports)
        if port is None:
            return errored(port_problem(action.port))
        if not host:
            return errored(NO_ADDRESS)
        headers = tuple((header.name, header.value) for header in action.httpHeaders)
        target = HttpTarget((action.scheme or "http").lower(), host.strip("[]"), port, action.path, headers)
        return await self._http.probe(target, ask.timeout_s)

    async def _tcp(self, action: TCPSocketAction, ask: Ask) -> Outcome:
        host, port = action.host or ask.pod_ip, resolve_port(action.port, ask.container.ports)
        if port is None:
            return errored(port_problem(action.port))
        if not host:
            return errored(NO_ADDRESS)
        return await probe_tcp(host.strip("[]"), port, ask.timeout_s)

    async def _grpc(self, action: GRPCAction, ask: Ask) -> Outcome:
        if not ask.pod_ip:
            return errored(NO_ADDRESS)
        return await probe_grpc(ask.pod_ip, action.port, action.service, ask.timeout_s)


def expanded_command(command: Sequence[str], container: Container) -> list[str]:
    """With the variables that the manifest gives literally; others are not known outside the container."""
    variables = {variable.name: variable.value for variable in container.env}
    return [expand(word, variables) for word in command]
