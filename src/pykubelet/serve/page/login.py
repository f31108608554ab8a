"""The node's page on loopback. A link is valid once, within five minutes, and opens a session in one browser.

Owns: the links and the sessions.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable

from pykubelet.base.kit.clock import Clock
from pykubelet.net.http.server import Answer, Request, Response, ServedConnection, text

PREFIX = "/page"
LINK_S = 300.0
SESSION_S = 12 * 3600.0
MAX_SESSIONS = 64
COOKIE = "pykubelet-page"
Page = Callable[[Request], Awaitable[Answer]]


class Sessions:
    """The sessions by cookie, with their ends (monotonic seconds).

    They are not kept across restarts: while the agent is not running, another local user can open the port and get the cookies.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends: dict[str, float] = {}

    def add(self) -> str:
        """Create a session and return its cookie. If there are more than MAX_SESSIONS, the oldest ends."""
        now, cookie = self._clock.monotonic(), secrets.token_urlsafe(32)
        self._ends = {name: end for name, end in self._ends.items() if end > now}
        while len(self._ends) >= MAX_SESSIONS:
            del self._ends[next(iter(self._ends))]
        self._ends[cookie] = now + SESSION_S
        return cookie

    def has(self, cookie: str) -> bool:
        """Whether the cookie belongs to a session that has not ended."""
        return self._clock.monotonic() < self._ends.get(cookie, 0.0)


class LoopbackPage:
    """The page on `port` of loopback. `page`: answers requests that have a session."""

    def __init__(self, page: Page, sessions: Sessions, clock: Clock, port: int) -> None:
        self._page = page
        self._sessions = sessions
        self._clock = clock
        self._port = port
        self._link: tuple[str, float] | None = None

    def link(self) -> str:
        """Create a link. The previous one becomes invalid."""
        token = secrets.token_urlsafe(32)
        self._link = (token, self._clock.monotonic() + LINK_S)
        return f"http://127.0.0.1:{self._port}{PREFIX}/open?token={token}"

    async def handle(self, request: Request, _: ServedConnection) -> Answer:
        """The page for a browser with a session; 401 without one, 403 for another host name."""
        if request.headers.get("host", "") not in (f"127.0.0.1:{self._port}", f"localhost:{self._port}"):
            return text(403, "Forbidden\n")  # another name that resolves to this address (DNS rebinding)
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
