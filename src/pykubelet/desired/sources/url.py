"""The URL source: fetches one manifest over HTTP periodically.

Owns: the period, and the meaning of an answer. Without an answer with status 200, the set is kept. An empty body is an
empty set. The set itself is in `listed.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

from pykubelet.base.kit.cells import Post
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.model.labels import SOURCE_HTTP
from pykubelet.base.model.roster import SourceChanged
from pykubelet.desired.sources.decode import MAX_BYTES, ManifestRules
from pykubelet.desired.sources.listed import ListedPods
from pykubelet.desired.sources.static import Origin
from pykubelet.edges.host.services.httpget import HttpAnswer, HttpError, http_get

TIMEOUT_S = 10.0


class Fetch(Protocol):
    """The function that fetches the URL: `edges.host.httpget.http_get`, or a double."""

    async def __call__(
        self, url: str, headers: Mapping[str, tuple[str, ...]] | None, timeout_s: float, limit: int
    ) -> HttpAnswer: ...


def url_origin(url: str) -> Origin:
    """The origin of a manifest URL; user and password are not shown."""
    parts = urlsplit(url)
    shown = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    return Origin(SOURCE_HTTP, url, shown)


class UrlSource:
    """Fetches `url` every `period_s` seconds (httpCheckFrequency) and posts its set of pods to `out`."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, tuple[str, ...]],
        rules: ManifestRules,
        period_s: float,
        out: Post[SourceChanged],
        clock: Clock,
        fetch: Fetch = http_get,
    ) -> None:
        self._origin = url_origin(url)
        self._headers = headers
        self._period_s = period_s
        self._fetch = fetch
        self._listed = ListedPods(self._origin, rules, out, clock, SingleFlight("url source", 1))

    async def run(self) -> None:
        """Fetch periodically until cancelled."""
        while True:
            await self.ask()
            await asyncio.sleep(self._period_s)

    async def ask(self) -> None:
        """Fetch once, and post changes."""
        try:
            answer = await self._fetch(self._origin.place, self._headers, TIMEOUT_S, MAX_BYTES)
        except HttpError as error:
            self._listed.failed(str(error).replace(self._origin.place, self._origin.shown))
            return
        if answer.status != 200:
            self._listed.failed(f"the answer is {answer.status} {answer.reason}".rstrip())
            return
        await self._listed.take(answer.body)
