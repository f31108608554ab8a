"""The cluster as the benchmark sees it: requests by the administrator, one watch of all pods, and the server's own count.

Owns: one HTTP session. Times are the wall clock in nanoseconds, at which an answer or a change had arrived here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import aiohttp

from bench.runtime import BenchError

T = TypeVar("T")
PODS = "/api/v1/namespaces/default/pods"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
MERGE = "application/merge-patch+json"
STRATEGIC_MERGE = "application/strategic-merge-patch+json"
_LONGEST_LINE = 4 << 20
# few, so that pods created at once do not begin with a crowd of handshakes; one is the watch's
_CONNECTIONS = 6


class AdminAccess(Protocol):
    """Where an API server is, and the folder of the administrator's `admin.crt` and `admin.key`."""

    @property
    def server(self) -> str: ...
    @property
    def authority(self) -> Path: ...
    @property
    def pki(self) -> Path: ...


class Api:
    """The administrator's requests, on connections that are kept."""

    def __init__(self, plane: AdminAccess) -> None:
        context = ssl.create_default_context(cafile=str(plane.authority))
        context.load_cert_chain(plane.pki / "admin.crt", plane.pki / "admin.key")
        connector = aiohttp.TCPConnector(ssl=context, limit=_CONNECTIONS)
        self._session = aiohttp.ClientSession(plane.server, connector=connector, read_bufsize=_LONGEST_LINE)

    async def close(self) -> None:
        await self._session.close()

    async def request(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Any:
        """The answer's JSON. Raises BenchError with any other answer than a good one."""
        data = None if body is None else json.dumps(body)
        try:
            async with self._session.request(method, path, data=data, headers={"Content-Type": kind}) as answer:
                text = await answer.text()
        except aiohttp.ClientError as error:
            raise BenchError(f"{method} {path}: {error}") from error
        if answer.status >= 300:
            raise BenchError(f"{method} {path}: {answer.status} {text}")
        return json.loads(text)

    async def create_pod(self, pod: Mapping[str, Any]) -> int:
        """When the call began."""
        began = time.time_ns()
        await self.request("POST", PODS, pod)
        return began

    async def delete_pod(self, name: str, grace_s: int) -> int:
        """When the call began."""
        began = time.time_ns()
        await self.request("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": grace_s})
        return began

    async def patch_status(self, name: str, status: Mapping[str, Any]) -> int:
        """When the call began."""
        began = time.time_ns()
        await self.request("PATCH", f"{PODS}/{name}/status", {"status": status}, MERGE)
        return began

    def stream(self, path: str) -> Any:
        """A watch, as aiohttp's request context."""
        return self._session.get(path, timeout=aiohttp.ClientTimeout(total=None))


class PodWatch:
    """All pods of the namespace: when each was first seen, first seen Ready, and gone, by name; and its newest state."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.seen: dict[str, int] = {}
        self.ready: dict[str, int] = {}
        self.gone: dict[str, int] = {}
        self.unready: set[str] = set()
        self.newest: dict[str, tuple[int, Mapping[str, Any]]] = {}
        self._wakeup = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> PodWatch:
        version = (await self._api.request("GET", PODS))["metadata"]["resourceVersion"]
        self._reader = asyncio.create_task(self._read(version))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader

    async def _read(self, version: str) -> None:
        while True:  # the server ends a watch after some minutes
            path = f"{PODS}?watch=1&resourceVersion={version}&allowWatchBookmarks=true"
            async with self._api.stream(path) as answer:
                async for line in answer.content:
                    now = time.time_ns()
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise BenchError(f"the watch of pods failed: {event['object']}")
                    version = event["object"]["metadata"]["resourceVersion"]
                    self._take(event["type"], event["object"], now)

    def _take(self, kind: str, pod: Mapping[str, Any], now: int) -> None:
        if kind == "BOOKMARK":
            return
        name = pod["metadata"]["name"]
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))
        self.seen.setdefault(name, now)
        self.newest[name] = now, pod
        if kind == "DELETED":
            self.gone.setdefault(name, now)
            del self.newest[name]
        elif ready:
            self.ready.setdefault(name, now)
        elif name in self.ready and "deletionTimestamp" not in pod["metadata"]:
            self.unready.add(name)
        self._wakeup.set()

    async def wait(self, what: str, found: Callable[[], T | None], timeout_s: float = 120.0) -> T:
        """The first result of `found` that is not None, asked again at every event."""
        try:
            async with asyncio.timeout(timeout_s):
                while (result := found()) is None:
                    if self._reader is not None and self._reader.done():
                        raise BenchError(f"the watch of pods has ended: {self._reader.exception()}")
                    self._wakeup.clear()
                    await self._wakeup.wait()
                return result
        except TimeoutError as error:
            raise BenchError(f"{what}: not within {timeout_s:.0f} s") from error

    async def seen_at(self, name: str) -> int:
        return await self.wait(f"{name} seen", lambda: self.seen.get(name))

    async def ready_at(self, name: str) -> int:
        return await self.wait(f"{name} Ready", lambda: self.ready.get(name))

    async def shows(self, name: str, what: str, holds: Callable[[Mapping[str, Any]], bool]) -> int:
        """When the first of the states that come from now on, or the newest, had arrived of which `holds` is true."""

        def found() -> int | None:
            state = self.newest.get(name)
            return state[0] if state is not None and holds(state[1]) else None

        return await self.wait(f"{name} {what}", found)

    async def gone_at(self, name: str) -> int:
        return await self.wait(f"{name} gone", lambda: self.gone.get(name))


class Audit:
    """Requests that one user has sent, as the API server's audit log records them."""

    def __init__(self, path: Path, user: str) -> None:
        self._path = path
        self._user = user

    def mark(self) -> int:
        """A place in the log: now."""
        return self._path.stat().st_size

    def since(self, mark: int) -> list[tuple[str, str]]:
        """(verb, resource/subresource) of each request since `mark`; a watch counts once, when it begins."""
        with self._path.open("rb") as log:
            log.seek(mark)
            lines = log.read().splitlines()
        seen: dict[str, tuple[str, str]] = {}
        for line in lines:
            entry = json.loads(line)
            if entry["user"].get("username") != self._user:
                continue
            if entry["verb"] == "watch" and entry["stage"] != "ResponseStarted":
                continue
            place = entry.get("objectRef") or {}
            resource = "/".join(part for part in (place.get("resource", ""), place.get("subresource", "")) if part)
            seen[entry["auditID"]] = (entry["verb"], resource or entry["requestURI"])
        return list(seen.values())
