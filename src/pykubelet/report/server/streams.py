"""exec, attach, portForward and run: what is asked is looked up and checked, the runtime gives the stream.

Owns: the shapes of these paths and queries. Reads: the pods that are known. The bytes are moved by `proxy.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pykubelet.base.api.core import Pod
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.errors import CriCode, CriError
from pykubelet.report.server.http import JSON, Answer, Request, Response, text
from pykubelet.report.server.known_pods import KnownPods, container_spec, full_name
from pykubelet.report.server.proxy import proxy_upgrade

RETRY_AFTER_S = 60
_STATUS = {CriCode.NOT_FOUND: 404, CriCode.RESOURCE_EXHAUSTED: 429}
NO_POD = text(404, "pod does not exist")
NO_STREAM = text(400, "you must specify at least 1 of stdin, stdout, stderr")


class StreamingRuntime(Protocol):
    """The part of the CRI client used here. Raises CriError."""

    async def exec_url(self, request: pb.ExecRequest) -> str: ...

    async def attach_url(self, request: pb.AttachRequest) -> str: ...

    async def port_forward_url(self, sandbox_id: str, ports: Sequence[int] = ()) -> str: ...

    async def exec_sync(self, container_id: str, command: Sequence[str], timeout_s: int = 0) -> pb.ExecSyncResponse: ...


@dataclass(frozen=True, slots=True)
class Target:
    """`/<verb>/<namespace>/<pod>[/<uid>]/<container>`, or without a container."""

    namespace: str
    pod: str
    uid: str = ""
    container: str = ""


def container_target(path: str) -> Target | None:
    """The path below the verb, with a container at its end; None for other shapes."""
    parts = path.strip("/").split("/")[1:]
    if len(parts) == 3:
        return Target(parts[0], parts[1], "", parts[2])
    return Target(*parts) if len(parts) == 4 else None


def pod_target(path: str) -> Target | None:
    parts = path.strip("/").split("/")[1:]
    return Target(*parts) if len(parts) in (2, 3) else None


def _is_set(request: Request, name: str) -> bool:
    return request.first(name) in ("1", "true")


@dataclass(frozen=True, slots=True)
class _Streams:
    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool


def wanted_streams(request: Request) -> _Streams | None:
    """None when none is wanted. With a terminal there is no separate stderr."""
    tty = _is_set(request, "tty")
    streams = _Streams(
        _is_set(request, "input"), _is_set(request, "output"), _is_set(request, "error") and not tty, tty
    )
    return streams if streams.stdin or streams.stdout or streams.stderr else None


class Streams:
    """The handlers of the streaming paths. `idle_s`: `streamingConnectionIdleTimeout`."""

    def __init__(self, pods: KnownPods, runtime: StreamingRuntime, idle_s: float) -> None:
        self._pods = pods
        self._runtime = runtime
        self._idle_s = idle_s

    async def exec(self, request: Request) -> Answer:
        target = container_target(request.path)
        pod = self._find(target)
        if target is None or pod is None:
            return NO_POD
        streams = wanted_streams(request)
        if streams is None:
            return NO_STREAM
        container = self._pods.running(pod, target.container)
        if container is None:
            return text(500, f'container not found ("{target.container}")')
        asked = pb.ExecRequest(
            container_id=container.id,
            cmd=request.query.get("command", []),
            tty=streams.tty,
            stdin=streams.stdin,
            stdout=streams.stdout,
            stderr=streams.stderr,
        )
        return await self._proxied(request, self._runtime.exec_url(asked))

    async def attach(self, request: Request) -> Answer:
        target = container_target(request.path)
        pod = self._find(target)
        if target is None or pod is None:
            return NO_POD
        streams = wanted_streams(request)
        if streams is None:
            return NO_STREAM
        container = self._pods.running(pod, target.container)
        spec = container_spec(pod, target.container)
        if container is None or spec is None:
            return text(500, f"container {target.container} not found in pod {full_name(pod)}")
        tty = bool(spec.tty)
        asked = pb.AttachRequest(
            container_id=container.id,
            stdin=streams.stdin,
            stdout=streams.stdout,
            stderr=streams.stderr and not tty,
            tty=tty,
        )
        return await self._proxied(request, self._runtime.attach_url(asked))

    async def port_forward(self, request: Request) -> Answer:
        target = pod_target(request.path)
        pod = self._find(target)
        if target is None or pod is None:
            return NO_POD
        ports = forwarded_ports(request)
        if isinstance(ports, Response):
            return ports
        sandbox = self._pods.sandbox(pod)
        if sandbox is None:
            return text(500, f'pod not found ("{full_name(pod)}")')
        return await self._proxied(request, self._runtime.port_forward_url(sandbox.id, ports))

    async def run(self, request: Request) -> Answer:
        """Run a command and answer with all it said."""
        target = container_target(request.path)
        pod = self._find(target)
        if target is None or pod is None:
            return NO_POD
        container = self._pods.running(pod, target.container)
        if container is None:
            return text(500, f'container not found ("{target.container}")')
        try:
            said = await self._runtime.exec_sync(container.id, request.first("cmd").split(" "))
        except CriError as error:
            return text(500, str(error))
        if said.exit_code:
            return text(500, f"command terminated with exit code {said.exit_code}")
        return Response(200, said.stdout + said.stderr, JSON)

    async def _proxied(self, request: Request, asking: Awaitable[str]) -> Answer:
        """The stream at the URL that the runtime is being asked for."""
        try:
            url = await asking
        except CriError as error:
            return _refused(error)
        return await proxy_upgrade(request, url, self._idle_s)

    def _find(self, target: Target | None) -> Pod | None:
        return self._pods.find(target.namespace, target.pod, target.uid) if target is not None else None


def forwarded_ports(request: Request) -> list[int] | Response:
    """The ports named in the query, which only WebSocket clients do; or what is wrong with them."""
    is_websocket = request.headers.get("upgrade", "").lower() == "websocket"
    if not is_websocket:
        return []
    words = [word for value in request.query.get("port", ()) for word in value.split(",")]
    if not words or words == [""]:
        return text(400, 'query parameter "port" is required')
    ports = []
    for word in words:
        if not word.isascii() or not word.isdigit() or not 1 <= int(word[:6]) <= 65535:
            return text(400, f'query parameter "port" must be a number from 1 to 65535, not "{word}"')
        ports.append(int(word))
    return ports


def _refused(error: CriError) -> Response:
    status = _STATUS.get(error.code, 500)
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 429 else {}
    return Response(status, str(error).encode(), headers=headers)
