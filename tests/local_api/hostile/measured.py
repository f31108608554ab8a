"""A local API in a thread of its own, whose event loop knows how long each of its iterations kept other clients waiting."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.client
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from local_api.requests.sides import tls_of
from local_api.server import account_made, serving

from pykubelet_local_api.objects import Json
from pykubelet_local_api.wiring import LocalApi

WITHIN_S = 60.0


class MeasuredLoop(asyncio.SelectorEventLoop):
    """`longest_s`: the CPU time of the longest iteration since `reset`."""

    longest_s = 0.0

    def reset(self) -> None:
        """Measure anew."""
        self.longest_s = 0.0

    def _run_once(self) -> None:
        began = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self.longest_s = max(self.longest_s, time.thread_time() - began)


class MeasuredApi:
    """The running API, and a client of it that is the administrator."""

    def __init__(self, api: LocalApi, loop: MeasuredLoop) -> None:
        self.api = api
        self.loop = loop
        self._place = urlsplit(api.url)
        self._tls = tls_of(Path(api.kubeconfig))
        self._kept: http.client.HTTPSConnection | None = None
        self._authority = str(Path(api.kubeconfig).parent / "ca.crt")

    def connect(self, *, has_certificate: bool = True) -> http.client.HTTPSConnection:
        """A connection of the administrator, or of a client without a certificate."""
        tls = self._tls if has_certificate else ssl.create_default_context(cafile=self._authority)
        return http.client.HTTPSConnection(self._place.hostname or "", self._place.port, context=tls, timeout=WITHIN_S)

    def close(self) -> None:
        """Close the connection that is kept."""
        if self._kept is not None:
            self._kept.close()

    def ask(
        self, method: str, path: str, body: object = None, media_type: str = "application/json", **headers: str
    ) -> tuple[int, bytes]:
        """Send a request. The connection is kept for the next one, unless it was closed."""
        data = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        sent = ({"Content-Type": media_type} if data is not None else {}) | headers
        if self._kept is not None:
            try:
                return self._ask(self._kept, method, path, data, sent)
            except (OSError, http.client.HTTPException):
                self._kept.close()
        self._kept = self.connect()
        return self._ask(self._kept, method, path, data, sent)

    def _ask(
        self,
        connection: http.client.HTTPSConnection,
        method: str,
        path: str,
        data: bytes | None,
        headers: dict[str, str],
    ) -> tuple[int, bytes]:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a body that is refused is not read
            connection.request(method, path, data, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


@contextmanager
def measured_api(folder: Path) -> Iterator[MeasuredApi]:
    """An API that runs in a thread until the block ends. What other tests have left in memory is not its garbage collector's work."""
    gc.collect()
    gc.freeze()
    loop = MeasuredLoop()
    started: Future[LocalApi] = Future()
    stop = asyncio.Event()

    async def serve() -> None:
        async with serving(folder) as api:
            await account_made(api)
            started.set_result(api)
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    made = MeasuredApi(started.result(WITHIN_S), loop)
    try:
        yield made
    finally:
        made.close()
        loop.call_soon_threadsafe(stop.set)
        thread.join(WITHIN_S)
        loop.close()
        gc.unfreeze()


class SmallClient:
    """Another client meanwhile, which reads and writes small things. `reads`, `writes`: the seconds that each took."""

    def __init__(self, api: MeasuredApi) -> None:
        self._api = api
        self.reads: list[float] = []
        self.writes: list[float] = []

    @contextmanager
    def working(self) -> Iterator[None]:
        """Work until the block ends."""
        ended = threading.Event()
        path = "/api/v1/namespaces/default/configmaps"
        self._api.ask("POST", path, {"metadata": {"name": "small"}})

        def work() -> None:
            connection = self._api.connect()
            number = 0
            while not ended.is_set():
                number += 1
                began = time.monotonic()
                connection.request("GET", f"{path}/small")
                connection.getresponse().read()
                self.reads.append(time.monotonic() - began)
                began = time.monotonic()
                body = msgspec.json.encode({"data": {"n": str(number)}})
                connection.request("PATCH", f"{path}/small", body, {"Content-Type": "application/merge-patch+json"})
                connection.getresponse().read()
                self.writes.append(time.monotonic() - began)
                ended.wait(0.02)
            connection.close()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(WITHIN_S)


def shown(found: Json) -> str:
    """A failed answer, in short."""
    return str(found)[:300]
