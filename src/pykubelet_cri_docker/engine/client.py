"""Docker Engine's API as typed calls. Raises EngineError.

Owns: the version of the API, which is negotiated, and the deadlines. Containers are named by ID. Source: the Docker Engine API
reference.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar
from urllib.parse import quote

import msgspec

from pykubelet.base.kit.log import Log
from pykubelet.base.kit.text import parse_decimal
from pykubelet_cri_docker.engine import messages as docker
from pykubelet_cri_docker.engine.lists import MAX_ITEM, ArrayItems
from pykubelet_cri_docker.engine.transport import (
    UNREACHABLE,
    AnswerTooLong,
    EngineError,
    RawStream,
    Transport,
    target_of,
)

log = Log("cri-docker")
T = TypeVar("T")
#: The versions of the API that this program speaks.
OLDEST, NEWEST = (1, 41), (1, 47)
#: From here on, images can be measured without containers and volumes.
LAYERS_SIZE = (1, 42)
CALL_S = 120.0
#: Bytes of a line in a streamed answer; of an event, it has all labels of the container.
MAX_LINE = 8 << 20
#: Bytes of a list that is decoded at once; of a longer one, item by item.
SHORT_LIST = 1 << 20
#: Bytes of the list of this program's containers, and of that of all images, which have labels from outside.
MAX_CONTAINERS, MAX_IMAGES = 64 << 20, 512 << 20
#: How long a pull may go on without progress: containerd's time.
PULL_IDLE_S = 300.0
#: Between two looks at a removal that another call has begun.
REMOVAL_PAUSE_S = 0.1


class Engine:
    """The daemon on the socket at `path`. Create it inside the running event loop."""

    def __init__(self, path: str, call_s: float = CALL_S) -> None:
        self.path = path
        self._transport = Transport(path)
        self._call_s = call_s
        self._version: tuple[int, int] = (0, 0)
        #: Set when it is not known what a call has done: it had no answer, or could not be undone.
        self.lost = self._transport.lost

    def close(self) -> None:
        """Close idle connections."""
        self._transport.close()

    # The daemon

    async def version(self) -> docker.EngineVersion:
        """The daemon's version; also agrees on the version of the API, anew after the daemon was replaced."""
        found = _decode(await self._raw("GET", target_of("", "/version", {})), docker.EngineVersion)
        self._version = agreed_version(found)
        return found

    async def api_version(self) -> tuple[int, int]:
        """The agreed version of the API, such as 1, 41."""
        if not any(self._version):
            await self.version()
        return self._version

    async def info(self) -> docker.EngineInfo:
        """Its drivers, root directory and abilities."""
        return await self._get("/info", {}, docker.EngineInfo)

    @asynccontextmanager
    async def events(
        self, filters: Mapping[str, Sequence[str]], since: str = ""
    ) -> AsyncIterator[AsyncIterator[docker.DockerEvent]]:
        """Events as they come. `since`: seconds since the epoch with nanoseconds, for those before the call."""
        query = {"filters": _filters(filters), **({"since": since} if since else {})}
        async with self._transport.stream("GET", await self._target("/events", query)) as parts:
            yield (_decode(line, docker.DockerEvent) async for line in lines_of(parts))

    # Containers

    async def list_containers(self, labels: Sequence[str], name: str = "") -> list[docker.ContainerSummary]:
        """All containers that have these labels (`name` or `name=value`), whether they run or not.

        `name`: what their names begin with. Docker takes it as a regular expression.
        """
        wanted = {"label": labels, **({"name": [f"^/?{name}"]} if name else {})}
        query = {"all": "1", "filters": _filters(wanted)}
        found, skipped = await self._list("/containers/json", query, docker.ContainerSummary, MAX_CONTAINERS)
        if skipped:  # a client would make those that are left out again
            raise EngineError(UNREACHABLE, f"Docker Engine lists a container of more than {MAX_ITEM >> 20} MiB")
        return [each for each in found if any(begins_with(shown, name) for shown in each.names or ("",))]

    async def inspect(self, container_id: str) -> docker.DockerContainer:
        """All about a container."""
        return await self._get(f"/containers/{quote(container_id, safe='')}/json", {}, docker.DockerContainer)

    async def find(self, container_id: str, label: str, name: str = "") -> docker.DockerContainer | None:
        """A container that has a label (`name=value`), and whose name begins with `name`; None for any other, or if there is none."""
        key, _, value = label.partition("=")
        try:
            found = await self.inspect(container_id)
        except EngineError as error:
            if error.is_not_found:
                return None
            raise
        return found if found.labels.get(key) == value and begins_with(found.name, name) else None

    async def create(self, name: str, container: docker.NewContainer) -> str:
        """Create a container, and return its ID."""
        data = await self._post("/containers/create", {"name": name}, container)
        return _decode(data, docker.Created).id

    async def start(self, container_id: str) -> None:
        """Start it. Does nothing if it runs."""
        await self._post(f"/containers/{container_id}/start", {})

    async def stop(self, container_id: str, grace_s: int) -> None:
        """Send the stop signal, then SIGKILL after `grace_s` seconds. Does nothing if it does not run."""
        target = await self._target(f"/containers/{container_id}/stop", {"t": str(grace_s)})
        await self._transport.call("POST", target, None, self._call_s + grace_s)

    async def kill(self, container_id: str, signal: str) -> None:
        """Send a signal. A conflict if it does not run."""
        await self._post(f"/containers/{container_id}/kill", {"signal": signal})

    async def remove(self, container_id: str) -> None:
        """Remove it with the volumes that its image made; kill it first if it runs. Does nothing if it is not there."""
        target = await self._target(f"/containers/{container_id}", {"v": "1", "force": "1"})
        loop = asyncio.get_running_loop()
        until = loop.time() + self._call_s
        while True:
            try:
                await self._transport.call("DELETE", target, None, self._call_s)
                return
            except EngineError as error:
                if error.is_not_found:
                    return
                if not error.is_in_progress or loop.time() > until:
                    raise
            await asyncio.sleep(REMOVAL_PAUSE_S)

    async def update(self, container_id: str, resources: docker.Resources) -> None:
        """Set limits. Those with their default are left as they are."""
        await self._post(f"/containers/{container_id}/update", {}, resources)

    async def attach(self, container_id: str, *, stdin: bool, stdout: bool, stderr: bool) -> RawStream:
        """The streams of its first process. Output has heads of eight bytes unless the container has a terminal."""
        query = {name: "1" for name, wanted in (("stdin", stdin), ("stdout", stdout), ("stderr", stderr)) if wanted}
        target = await self._target(f"/containers/{container_id}/attach", {"stream": "1", **query})
        return await self._transport.hijack(target, None)

    async def resize(self, container_id: str, width: int, height: int) -> None:
        """Set the size of its terminal."""
        await self._post(f"/containers/{container_id}/resize", {"w": str(width), "h": str(height)})

    # Processes in containers

    async def create_exec(self, container_id: str, exec_: docker.NewExec) -> str:
        """Prepare a process, and return its ID."""
        return _decode(await self._post(f"/containers/{container_id}/exec", {}, exec_), docker.Created).id

    async def start_exec(self, exec_id: str, *, tty: bool) -> RawStream:
        """Start it. Output has heads of eight bytes unless it has a terminal."""
        target = await self._target(f"/exec/{exec_id}/start", {})
        return await self._transport.hijack(target, msgspec.json.encode(docker.StartExec(tty=tty)))

    async def inspect_exec(self, exec_id: str) -> docker.ExecState:
        """Whether it runs, or its exit code."""
        return await self._get(f"/exec/{exec_id}/json", {}, docker.ExecState)

    async def resize_exec(self, exec_id: str, width: int, height: int) -> None:
        """Set the size of its terminal."""
        await self._post(f"/exec/{exec_id}/resize", {"w": str(width), "h": str(height)})

    # Images

    async def list_images(self) -> list[docker.ImageSummary]:
        """All images but layers that only other images use. One with labels of megabytes is left out."""
        found, skipped = await self._list("/images/json", {}, docker.ImageSummary, MAX_IMAGES)
        if skipped:
            log.warning("images are left out of the list: their labels are too large", count=skipped)
        return found

    async def images_size(self) -> int:
        """The bytes that images use. Before API 1.42, layers of several images count for each: the exact figure takes a walk there."""
        if await self.api_version() >= LAYERS_SIZE:
            with suppress(AnswerTooLong):  # it has the labels of all images
                return (await self._get("/system/df", {"type": "image"}, docker.DiskUsage)).layers_size
        return sum(image.size for image in await self.list_images())

    async def inspect_image(self, name: str) -> docker.DockerImage:
        """An image by ID, tag or digest."""
        return await self._get(f"/images/{quote(name, safe='')}/json", {}, docker.DockerImage)

    async def pull(self, name: str, auth: str, idle_s: float = PULL_IDLE_S) -> None:
        """Pull an image, as long as it gets on. `auth`: the header with the credentials, or empty. `idle_s`: without progress."""
        target = await self._target("/images/create", {"fromImage": name})
        headers = {"X-Registry-Auth": auth} if auth else {}
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(idle_s) as limit, self._transport.stream("POST", target, None, headers) as parts:
                async for line in lines_of(parts):
                    limit.reschedule(loop.time() + idle_s)
                    if problem := _decode(line, docker.PullProgress).error:
                        raise EngineError(500, problem)
        except TimeoutError as error:
            raise EngineError(500, f"no progress within {idle_s:g} s") from error

    async def remove_image(self, name: str) -> None:
        """Remove a name of an image, or the image with its last name."""
        target = await self._target(f"/images/{quote(name, safe='')}", {"force": "1"})
        await self._transport.call("DELETE", target, None, self._call_s)

    # The rest

    async def _target(self, path: str, query: Mapping[str, str]) -> str:
        return target_of(_text(await self.api_version()), path, query)

    async def _raw(self, method: str, target: str, body: bytes | None = None) -> bytes:
        return (await self._transport.call(method, target, body, self._call_s))[1]

    async def _get(self, path: str, query: Mapping[str, str], answer: type[T]) -> T:
        return _decode(await self._raw("GET", await self._target(path, query)), answer)

    async def _list(self, path: str, query: Mapping[str, str], item: type[T], most: int) -> tuple[list[T], int]:
        """The items of a list of at most `most` bytes, and how many were too large for it."""
        target, size = await self._target(path, query), 0
        start, rest = list[bytes](), ArrayItems()
        found: list[T] = []
        try:
            async with asyncio.timeout(self._call_s), self._transport.stream("GET", target, reuse=True) as parts:
                async for part in parts:
                    start.append(part)
                    size += len(part)
                    if size > most:
                        raise AnswerTooLong("GET", target, most)
                    if size > SHORT_LIST:
                        found += [_decode(each, item) for each in rest.feed(b"".join(start))]
                        start.clear()
        except TimeoutError as error:
            raise EngineError(
                UNREACHABLE, f"no answer of Docker Engine to GET {target} within {self._call_s:g} s"
            ) from error
        if size <= SHORT_LIST:
            return _decode(b"".join(start), list[item]), 0  # type: ignore[valid-type]
        return found, rest.skipped

    async def _post(self, path: str, query: Mapping[str, str], body: docker.RequestBody | None = None) -> bytes:
        data = None if body is None else msgspec.json.encode(body)
        return await self._raw("POST", await self._target(path, query), data)


def agreed_version(found: docker.EngineVersion) -> tuple[int, int]:
    """The newest version that both sides speak. Raises EngineError if there is none. Pure."""
    theirs, oldest = _numbers(found.api_version), _numbers(found.min_api_version)
    if theirs < OLDEST or oldest > NEWEST:
        spoken = f"{found.min_api_version} to {found.api_version}"
        ours = f"{_text(OLDEST)} to {_text(NEWEST)}"
        raise EngineError(UNREACHABLE, f"Docker Engine {found.version} speaks API {spoken}; this program needs {ours}")
    return min(theirs, NEWEST)


def _numbers(version: str) -> tuple[int, int]:
    major, _, minor = version.partition(".")
    return parse_decimal(major, 99) or 0, parse_decimal(minor, 9999) or 0


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _filters(filters: Mapping[str, Sequence[str]]) -> str:
    return msgspec.json.encode(filters).decode()


def _decode(data: bytes, answer: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=answer)
    except msgspec.DecodeError as error:
        raise EngineError(UNREACHABLE, f"an answer of Docker Engine cannot be read: {error}") from error


def begins_with(name: str, prefix: str) -> bool:
    """Whether the name of a container, which Docker shows with a slash before it, begins so. Pure."""
    return name.removeprefix("/").startswith(prefix)


async def lines_of(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The lines of a streamed answer. One that is longer than `MAX_LINE` is left out, so that those after it arrive."""
    rest, is_skipping = b"", False
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        if is_skipping and lines:
            del lines[0]
            is_skipping = False
        if len(rest) > MAX_LINE or is_skipping:
            if not is_skipping:
                log.warning("Docker Engine sent a line that is too long; it is left out", limit=MAX_LINE)
            rest, is_skipping = b"", True
        for line in lines:
            if line.strip():
                yield line
    if rest.strip():
        yield rest
