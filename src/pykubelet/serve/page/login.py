"""The node's page on loopback: a link is valid once, for five minutes, and opens a session in one browser.

Owns: the links and the sessions.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable

from pykubelet.base.kit.clock import Clock
from pykubelet.net.http.server import Answer, Connection, Request, Response, text

PREFIX = "/page"
LINK_S = 300.0
SESSION_S = 12 * 3600.0
MAX_SESSIONS = 64
COOKIE = "pykubelet-page"
Page = Callable[[Request], Awaitable[Answer]]


class Sessions:
    """Each by its cookie, with its end (monotonic seconds).

    They end with the agent: while the agent does not have the port, another local user can take it, and is sent the cookies.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends: dict[str, float] = {}

    def add(self) -> str:
        """A new session's cookie. Above MAX_SESSIONS the oldest ends."""
        now, cookie = self._clock.monotonic(), secrets.token_urlsafe(32)
        self._ends = {name: end for name, end in self._ends.items() if end > now}
        while len(self._ends) >= MAX_SESSIONS:
            del self._ends[next(iter(self._ends))]
        self._ends[cookie] = now + SESSION_S
        return cookie

    def has(self, cookie: str) -> bool:
        return self._clock.monotonic() < self._ends.get(cookie, 0.0)


class LoopbackPage:
    """`handle` answers on `port` of loopback; `page` answers requests with a session."""

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
            return text(403, "Forbidden\n")  # a foreign name that resolves to this address
        if request.method not in ("GET", "HEAD"):
            return text(405, "405: Method Not Allowed")
        if request.path == f"{PREFIX}/open":
            return self._open(request.first("token"))
        if not self._is_known(request.headers.get("cookie", "")):
            return text(401, "This page opens with a link from: pykubelet page\n")
        if request.path == "/":
            return Response(301, b"", headers={"Location": f"{PREFIX}/"})
        return await self._page(request)

    def _open(self, token: str) -> Answer:
        link, now = self._link, self._clock.monotonic()
        if link is None or now > link[1] or not hmac.compare_digest(link[0].encode(), token.encode()):
            return text(401, "This link has been used or is too old; get another with: pykubelet page\n")
        self._link = None
        session = self._sessions.add()
        cookie = f"{COOKIE}={session}; HttpOnly; SameSite=Strict; Path=/; Max-Age={int(SESSION_S)}"
        return Response(303, b"", headers={"Location": f"{PREFIX}/", "Set-Cookie": cookie})

    def _is_known(self, cookies: str) -> bool:
        for cookie in cookies.split(";"):
            name, _, value = cookie.strip().partition("=")
            if name == COOKIE and self._sessions.has(value):
                return True
        return False
