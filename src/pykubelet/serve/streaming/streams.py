"""The handlers of exec, attach, portForward and run. They look up the pod and check the request; the runtime makes the stream.

Owns: the formats of these paths and queries, and the choice of streams that are translated here (`websocket/`);
`http/proxy.py` forwards all others. Reads: the known pods.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from msgspec.structs import asdict

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.metrics import Counter
from pykubelet.base.kit.text import parse_decimal
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.observed import ContainerView
from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.errors import CriCode, CriError
from pykubelet.net.http.proxy import proxy_upgrade
from pykubelet.net.http.server import JSON, Answer, Request, Response, text
from pykubelet.net.websocket.handshake import offered
from pykubelet.serve.endpoints.known_pods import KnownPods, container_spec, full_name
from pykubelet.serve.streaming.bridge import Bridge
from pykubelet.serve.streaming.command import PROTOCOL, RemoteCommand
from pykubelet.serve.streaming.relay import serve_websocket
from pykubelet.serve.streaming.tunnel import tunnel_for

RETRY_AFTER_S = 60
MAX_SHOWN = 64
_STATUS = {CriCode.NOT_FOUND: 404, CriCode.RESOURCE_EXHAUSTED: 429}
WEBSOCKETS = Counter(
    "kubelet_websocket_streaming_requests_total",
    "Total number of WebSocket streaming requests (exec/attach/portforward) received by the kubelet.",
    ("subresource",),
)
NO_POD = text(404, "pod does not exist")
NO_SUCH_UID = text(404, "pod not found")
NO_STREAM = text(400, "you must specify at least 1 of stdin, stdout, stderr")


class StreamingRuntime(Protocol):
    """The part of the CRI client used here. Raises CriError."""

    async def exec_url(self, request: pb.ExecRequest) -> str:
        """The URL at which the runtime serves the exec. Raises CriError."""
        ...

    async def attach_url(self, request: pb.AttachRequest) -> str:
        """The URL at which the runtime serves the attach. Raises CriError."""
        ...

    async def port_forward_url(self, sandbox_id: str, ports: Sequence[int] = ()) -> str:
        """The URL at which the runtime forwards ports of the sandbox. Raises CriError."""
        ...

    async def exec_sync(self, container_id: str, command: Sequence[str], timeout_s: int = 0) -> pb.ExecSyncResponse:
        """Run a command to its end. `timeout_s` 0: no limit. Raises CriError."""
        ...


class StreamTarget(Value):
    """The target in a path: `/<verb>/<namespace>/<pod>[/<uid>]/<container>`, or without a container."""

    namespace: str
    pod: str
    uid: str = ""
    container: str = ""


def container_target(path: str) -> StreamTarget | None:
    """Parse a path with a container at its end; None for other paths."""
    parts = path.strip("/").split("/")[1:]
    if len(parts) == 3:
        return StreamTarget(parts[0], parts[1], "", parts[2])
    return StreamTarget(*parts) if len(parts) == 4 else None


def pod_target(path: str) -> StreamTarget | None:
    """Parse `/<endpoint>/<namespace>/<pod>[/<uid>]`; None for other paths."""
    parts = path.strip("/").split("/")[1:]
    return StreamTarget(*parts) if len(parts) in (2, 3) else None


def _is_set(request: Request, name: str) -> bool:
    return request.first(name) in ("1", "true")


class _Streams(Value):
    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool


def wanted_streams(request: Request) -> _Streams | None:
    """The streams that the query requests; None if there are none. With a terminal there is no separate stderr."""
    tty = _is_set(request, "tty")
    streams = _Streams(
        _is_set(request, "input"), _is_set(request, "output"), _is_set(request, "error") and not tty, tty
    )
    return streams if streams.stdin or streams.stdout or streams.stderr else None


class Streams:
    """The handlers of the streaming paths. `idle_s`: `streamingConnectionIdleTimeout`. `websockets`: the newest kinds of
    WebSocket streams are translated here (gate ExtendWebSocketsToKubelet).
    """

    def __init__(self, pods: KnownPods, runtime: StreamingRuntime, idle_s: float, *, websockets: bool) -> None:
        self._pods = pods
        self._runtime = runtime
        self._idle_s = idle_s
        self._websockets = websockets

    async def exec(self, request: Request) -> Answer:
        """Run a command in a container, with the streams that the query names."""
        target = container_target(request.path)
        pod = self._find(target)
        if target is None or pod is None:
            return NO_POD
        streams = wanted_streams(request)
        if streams is None:
            return NO_STREAM
        container = self._running(pod, target)
        if container is None:
            return text(500, f'container not found ("{target.container}")')
        command = request.query.get("command", [])
        url = self._runtime.exec_url(pb.ExecRequest(container_id=container.id, cmd=command, **asdict(streams)))
        return await self._stream(request, "exec", url, self._translated(request, streams))

    async def attach(self, request: Request) -> Answer:
        """Attach to the container's first process."""
        target = container_target(request.path)
        pod = self._find(target)
        if target is None or pod is None:
            return NO_POD
        streams = wanted_streams(request)
        if streams is None:
            return NO_STREAM
        meant, container = self._meant(pod, target), self._running(pod, target)
        spec = container_spec(meant, target.container) if meant is not None else None
        if container is None or spec is None:
            return text(500, f"container {target.container} not found in pod {full_name(pod)}")
        streams = replace(streams, tty=bool(spec.tty), stderr=streams.stderr and not spec.tty)
        url = self._runtime.attach_url(pb.AttachRequest(container_id=container.id, **asdict(streams)))
        return await self._stream(request, "attach", url, self._translated(request, streams))

    async def port_forward(self, request: Request) -> Answer:
        """Forward connections to ports of the pod."""
        target = pod_target(request.path)
        pod = self._find(target)
        if target is None or pod is None:
            return NO_POD
        pod = self._meant(pod, target)
        if pod is None:
            return NO_SUCH_UID
        tunnel = tunnel_for(offered(request)) if self._websockets else None
        ports = forwarded_ports(request) if tunnel is None else []
        if isinstance(ports, Response):
            return ports
        sandbox = self._pods.sandbox(pod)
        if sandbox is None:
            return text(500, f'pod not found ("{full_name(pod)}")')
        return await self._stream(request, "portforward", self._runtime.port_forward_url(sandbox.id, ports), tunnel)

    async def run(self, request: Request) -> Answer:
        """Run a command and answer with its output."""
        target = container_target(request.path)
        pod = self._find(target)
        if target is None or pod is None:
            return NO_POD
        container = self._running(pod, target)
        if container is None:
            return text(500, f'container not found ("{target.container}")')
        try:
            command = request.first("cmd").split(" ")
            result = await self._runtime.exec_sync(container.id, command)
        except CriError as error:
            return text(500, str(error))
        if result.exit_code:
            problem = f"command '{' '.join(command)}' exited with {result.exit_code}: "
            return Response(500, problem.encode() + result.stderr)
        return Response(200, result.stdout + result.stderr, JSON)

    def _translated(self, request: Request, streams: _Streams) -> Bridge | None:
        """The translation of the stream; None for streams that are forwarded to the runtime unchanged."""
        return RemoteCommand(**asdict(streams)) if self._websockets and PROTOCOL in offered(request) else None

    async def _stream(self, request: Request, kind: str, url_call: Awaitable[str], bridge: Bridge | None) -> Answer:
        """Connect the client to the URL that the runtime returns; with a `bridge`, through it."""
        try:
            url = await url_call
        except CriError as error:
            return _refused(error)
        if bridge is None:
            return await proxy_upgrade(request, url, self._idle_s)
        WEBSOCKETS.inc(kind)
        return await serve_websocket(request, url, bridge, self._idle_s)

    def _find(self, target: StreamTarget | None) -> Pod | None:
        return self._pods.find(target.namespace, target.pod) if target is not None else None

    def _meant(self, pod: Pod, target: StreamTarget) -> Pod | None:
        """`pod`, or the pod of the target's name with its UID, if one is given."""
        return self._pods.find(target.namespace, target.pod, target.uid) if target.uid else pod

    def _running(self, pod: Pod, target: StreamTarget) -> ContainerView | None:
        meant = self._meant(pod, target)
        return self._pods.running(meant, target.container) if meant is not None else None


def forwarded_ports(request: Request) -> list[int] | Response:
    """The ports in the query, which only WebSocket clients give; or the answer for invalid ones."""
    is_websocket = request.headers.get("upgrade", "").lower() == "websocket"
    if not is_websocket:
        return []
    words = [word for value in request.query.get("port", ()) for word in value.split(",")]
    if not words or words == [""]:
        return text(400, 'query parameter "port" is required')
    ports = []
    for word in words:
        port = parse_decimal(word, 65535)
        if not port:
            return text(400, f'query parameter "port" must be a number from 1 to 65535, not "{word[:MAX_SHOWN]}"')
        ports.append(port)
    return ports


def _refused(error: CriError) -> Response:
    status = _STATUS.get(error.code, 500)
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 429 else {}
    return Response(status, str(error).encode(), headers=headers)
