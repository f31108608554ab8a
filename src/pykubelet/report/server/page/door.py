"""The page's door on loopback: a link is good once and for five minutes, and opens a session in one browser.

Owns: the links and the sessions, and the file where sessions outlive the agent: hashes of their cookies, from which no cookie
can be made, and when they end.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable

from pykubelet.base.api.codec import DecodeError, decode, encode
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Done, Flight
from pykubelet.base.kit.log import Log
from pykubelet.edges.host.checkpoint import Checkpoint
from pykubelet.report.server.http.server import Answer, Connection, Request, Response, text

log = Log("page")
PREFIX = "/page"
LINK_S = 300.0
SESSION_S = 12 * 3600.0
MAX_SESSIONS = 64
FILE_DEADLINE_S = 5.0
COOKIE = "pykubelet-page"
Page = Callable[[Request], Awaitable[Answer]]


class Sessions:
    """Known by the hash of their cookie; each with its end (wall seconds). A file that is lost or bad ends them all."""

    def __init__(self, path: str, flight: Flight, clock: Clock) -> None:
        self._file = Checkpoint(path)
        self._flight = flight
        self._clock = clock
        self._turn = asyncio.Lock()
        self._ends: dict[str, float] | None = None

    async def add(self) -> str:
        """A new session's cookie. The oldest makes room for it."""
        now, cookie = self._clock.wall(), secrets.token_urlsafe(32)
        async with self._turn:
            ends = {name: end for name, end in (await self._known()).items() if end > now}
            while len(ends) >= MAX_SESSIONS:
                del ends[next(iter(ends))]
            self._ends = ends = {**ends, _hash(cookie): now + SESSION_S}
            saved = await self._flight.run("page-sessions", lambda: self._file.save(encode(ends)), FILE_DEADLINE_S)
        if not isinstance(saved, Done):
            log.warning("sessions of the node's page will end with the agent", path=self._file.path, error=saved)
        return cookie

    async def has(self, cookie: str) -> bool:
        async with self._turn:
            return self._clock.wall() < (await self._known()).get(_hash(cookie), 0.0)

    async def _known(self) -> dict[str, float]:
        if self._ends is None:
            loaded = await self._flight.run("page-sessions", self._file.load, FILE_DEADLINE_S)
            try:
                self._ends = decode(dict[str, float], loaded.value) if isinstance(loaded, Done) and loaded.value else {}
            except DecodeError:
                self._ends = {}
        return self._ends


def _hash(cookie: str) -> str:
    return hashlib.sha256(cookie.encode()).hexdigest()


class PageDoor:
    """`handle` answers on `port` of loopback; `page` is asked for those who are known."""

    def __init__(self, page: Page, sessions: Sessions, clock: Clock, port: int) -> None:
        self._page = page
        self._sessions = sessions
        self._clock = clock
        self._port = port
        self._link: tuple[str, float] | None = None

    def link(self) -> str:
        """A new link; the one before is void."""
        token = secrets.token_urlsafe(32)
        self._link = (token, self._clock.monotonic() + LINK_S)
        return f"http://127.0.0.1:{self._port}{PREFIX}/open?token={token}"

    async def handle(self, request: Request, _: Connection) -> Answer:
        if request.headers.get("host", "") not in (f"127.0.0.1:{self._port}", f"localhost:{self._port}"):
            return text(403, "Forbidden\n")  # a name of somebody else's that leads here
        if request.method not in ("GET", "HEAD"):
            return text(405, "405: Method Not Allowed")
        if request.path == f"{PREFIX}/open":
            return await self._open(request.first("token"))
        if not await self._is_known(request.headers.get("cookie", "")):
            return text(401, "This page opens with a link from: pykubelet page\n")
        if request.path == "/":
            return Response(301, b"", headers={"Location": f"{PREFIX}/"})
        return await self._page(request)

    async def _open(self, token: str) -> Answer:
        link, now = self._link, self._clock.monotonic()
        if link is None or now > link[1] or not hmac.compare_digest(link[0].encode(), token.encode()):
            return text(401, "This link has been used or is too old; get another with: pykubelet page\n")
        self._link = None
        session = await self._sessions.add()
        cookie = f"{COOKIE}={session}; HttpOnly; SameSite=Strict; Path=/; Max-Age={int(SESSION_S)}"
        return Response(303, b"", headers={"Location": f"{PREFIX}/", "Set-Cookie": cookie})

    async def _is_known(self, cookies: str) -> bool:
        for cookie in cookies.split(";"):
            name, _, value = cookie.strip().partition("=")
            if name == COOKIE and await self._sessions.has(value):
                return True
        return False
