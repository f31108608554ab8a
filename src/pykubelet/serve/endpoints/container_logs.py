"""`/containerLogs/<namespace>/<pod>/<container>`: finds the log, or answers why there is none.

Owns: the format of the query and the messages. Reads: the known pods. `edges/cri/log_reader.py` reads the file.
Source: PodLogOptions in the Kubernetes API reference.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Mapping

from pykubelet.base.api.core import ContainerStatus, Pod
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.ids import PodUID, pods_of
from pykubelet.edges.cri.log_reader import LogReader
from pykubelet.edges.cri.log_render import LogOptions, LogStream
from pykubelet.edges.cri.logs import parse_timestamp_ns
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.net.http.server import Answer, Request, Response, StreamedResponse, text
from pykubelet.serve.endpoints.known_pods import KnownPods, container_spec
from pykubelet.serve.streaming.streams import container_target

TEXT_PLAIN = "text/plain"
UNDECODABLE = Response(400, b'{"message": "Unable to decode query."}')
INVALID = Response(422, b'{"message": "Invalid request."}')
NO_SPLIT = 'unable to return the given log stream: "{}". Please enable PodLogsQuerySplitStreams feature gate in kubelet'
_INTEGER = re.compile(r"[+-]?\d{1,19}")
_TRUE, _FALSE = {"1", "t", "T", "true", "TRUE", "True"}, {"0", "f", "F", "false", "FALSE", "False"}


class QueryError(Exception):
    """The query is invalid. `answer`: the answer for the client."""

    def __init__(self, answer: Response) -> None:
        super().__init__(answer.body)
        self.answer = answer


def log_options(query: Mapping[str, list[str]], wall: float, *, split_streams: bool) -> tuple[LogOptions, bool]:
    """Parse the options, and whether the previous instance is meant. `wall`: the current wall second. Raises QueryError."""
    reads = _Reads(query)
    tail = reads.integer("tailLines")
    legacy = reads.text("tail")
    if legacy is not None:
        tail = None if legacy == "all" else reads.integer("tail")
    since_s, since_time = reads.integer("sinceSeconds"), reads.text("sinceTime")
    limit = reads.integer("limitBytes")
    stream = reads.text("stream") or LogStream.ALL
    if stream not in tuple(LogStream):
        raise QueryError(INVALID)
    is_wrong = (
        (tail is not None and tail < 0)
        or (limit is not None and limit < 1)
        or (since_s is not None and since_s < 1)
        or (since_s is not None and since_time is not None)
        or (stream != LogStream.ALL and tail is not None)
    )
    if is_wrong:
        raise QueryError(INVALID)
    if stream != LogStream.ALL and not split_streams:
        raise QueryError(text(400, NO_SPLIT.format(stream)))
    since_ns = int((wall - since_s) * 1e9) if since_s is not None else None
    if since_time is not None:
        since_ns = parse_timestamp_ns(since_time.encode())
        if since_ns is None:
            raise QueryError(UNDECODABLE)
    options = LogOptions(reads.flag("follow"), reads.flag("timestamps"), tail, limit, since_ns, LogStream(stream))
    return options, reads.flag("previous")


class _Reads:
    """Reads typed values of a query. An empty value counts as missing. Raises QueryError."""

    def __init__(self, query: Mapping[str, list[str]]) -> None:
        self._query = query

    def text(self, name: str) -> str | None:
        values = self._query.get(name)
        return values[0] if values and values[0] else None

    def integer(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not _INTEGER.fullmatch(value):
            raise QueryError(UNDECODABLE)
        return int(value)

    def flag(self, name: str) -> bool:
        value = self.text(name)
        if value is None:
            # a parameter without a value counts as set
            return bool(self._query.get(name))
        if value not in _TRUE | _FALSE:
            raise QueryError(UNDECODABLE)
        return value in _TRUE


def choose_log(pod: Pod, statuses: tuple[ContainerStatus, ...], name: str, *, previous: bool) -> str:
    """The ID of the container instance whose log is read, from the pod's status.

    Raises LookupError with the message for the client.
    """
    status = next((s for s in statuses if s.name == name), None)
    where = f'container "{name}" in pod "{pod.metadata.name}"'
    if status is None:
        raise LookupError(f"{where} is not available")
    last = status.lastState.terminated if status.lastState is not None else None
    state = status.state
    if previous:
        if last is None or not last.containerID:
            raise LookupError(f"previous terminated {where} not found")
        return last.containerID
    if state is not None and state.running is not None and status.containerID:
        return status.containerID
    if state is not None and state.terminated is not None:
        ended = state.terminated.containerID or (last.containerID if last is not None else "")
        if not ended:
            raise LookupError(f"{where} is terminated")
        return ended
    if last is not None:
        if not last.containerID:
            raise LookupError(f"{where} is terminated")
        return last.containerID
    waiting = state.waiting if state is not None else None
    reason = waiting.reason if waiting is not None else ""
    match reason:
        case "ErrImagePull":
            raise LookupError(f"{where} is waiting to start: image can't be pulled")
        case "ImagePullBackOff":
            raise LookupError(f"{where} is waiting to start: trying and failing to pull image")
        case "":
            raise LookupError(f"{where} is waiting to start - no logs yet")
        case _:
            raise LookupError(f"{where} is waiting to start: {reason}")


def _bare(container_id: str) -> str:
    return container_id.partition("://")[2] or container_id


def _unreadable(error: HostError) -> bytes:
    return f"unable to retrieve container logs: {error}\n".encode()


class ContainerLogs:
    """The handler. `split_streams`: gate PodLogsQuerySplitStreams."""

    def __init__(self, pods: KnownPods, reader: LogReader, clock: Clock, *, split_streams: bool) -> None:
        self._pods = pods
        self._reader = reader
        self._clock = clock
        self._split_streams = split_streams

    async def answer(self, request: Request) -> Answer:
        """The log, as a stream if it is long or followed. 404 if there is none and 400 for invalid options, with Kubernetes' messages."""
        target = container_target(request.path)
        if target is None or not target.container:
            return text(404, "404: Page Not Found")
        try:
            options, previous = log_options(request.query, self._clock.wall(), split_streams=self._split_streams)
        except QueryError as error:
            return error.answer
        pod = self._pods.find(target.namespace, target.pod, target.uid)
        if pod is None:
            return text(404, f'pod "{target.pod}" does not exist')
        if container_spec(pod, target.container) is None:
            return text(404, f'container "{target.container}" not found in pod "{target.pod}"')
        status = self._pods.status(pod)
        statuses = (*status.containerStatuses, *status.initContainerStatuses, *status.ephemeralContainerStatuses)
        try:
            chosen = choose_log(pod, statuses, target.container, previous=previous)
        except LookupError as error:
            return text(400, str(error))
        return await self._log(pod, chosen, options, has_body=request.method != "HEAD")

    async def _log(self, pod: Pod, chosen: str, options: LogOptions, *, has_body: bool) -> Answer:
        container_id = _bare(chosen)
        container = self._pods.instance(pod, container_id)
        if container is None or not container.log_path:
            return Response(200, f"unable to retrieve container logs for {chosen}".encode(), TEXT_PLAIN)

        if has_body and not options.follow:
            try:
                short = await self._reader.read_short(container.log_path, options, container_id)
            except HostError as error:
                short = _unreadable(error)
            if short is not None:
                return Response(200, short, TEXT_PLAIN, is_chunked=True)

        def has_ended() -> bool:
            now = self._pods.instance(pod, container_id)
            return now is None or not now.is_running

        texts = self._follow(pod, container.log_path, container_id, options, has_ended)
        return StreamedResponse(200, texts, TEXT_PLAIN)

    async def _follow(
        self, pod: Pod, path: str, container_id: str, options: LogOptions, has_ended: Callable[[], bool]
    ) -> AsyncIterator[bytes]:
        wake = asyncio.Event()
        texts = self._reader.read(path, options, has_ended, wake, container_id)
        async with Supervisor("log") as supervisor, contextlib.AsyncExitStack() as stack:
            if options.follow:
                supervisor.start_root("log-ended", self._ring(pod, has_ended, wake))
            stack.push_async_callback(texts.aclose)
            try:
                async for piece in texts:
                    yield piece
            except HostError as error:
                yield _unreadable(error)

    async def _ring(self, pod: Pod, has_ended: Callable[[], bool], wake: asyncio.Event) -> None:
        await self._pods.observed.entry(pods_of, PodUID(pod.metadata.uid)).wait_for(lambda _: has_ended())
        wake.set()
