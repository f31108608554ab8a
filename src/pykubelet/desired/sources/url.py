"""The URL source: fetches one manifest over HTTP periodically.

Owns: the period, and the meaning of an answer. Without an answer with status 200, the set is kept. An empty body is an
empty set; an unchanged body changes nothing. Posts `SourceChanged` with the whole set after each change, and once after
the first valid answer. Until then it posts only problems: its set is not known, so no pod is killed because of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.mailbox import Post
from pykubelet.base.model.content import ManifestObject
from pykubelet.base.model.labels import SOURCE_HTTP
from pykubelet.base.model.remarks import Remark
from pykubelet.base.model.roster import ManifestProblem, SourceChanged
from pykubelet.desired.sources.decode import MAX_BYTES, Decoded, ManifestRules, Problems, is_usable, problem
from pykubelet.desired.sources.reading import FirstSeen, log_new, read_manifest
from pykubelet.desired.sources.static import Origin
from pykubelet.edges.host.services.httpget import HttpAnswer, HttpError, http_get

log = Log("sources")

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
        self._rules = rules
        self._period_s = period_s
        self._out = out
        self._clock = clock
        self._fetch = fetch
        self._flight = SingleFlight("url source", 1)
        self._seen = FirstSeen()
        self._body: bytes | None = None
        self._body_is_bad = False
        self._pods: tuple[Pod, ...] = ()
        self._objects: tuple[ManifestObject, ...] = ()
        self._problems: tuple[ManifestProblem, ...] = ()
        self._remarks: tuple[Remark, ...] = ()
        self._ready = False

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
            words = str(error).replace(self._origin.place, self._origin.shown)
            self._failed((problem(self._origin, "", words),))
            return
        if answer.status != 200:
            self._failed((problem(self._origin, "", f"the answer is {answer.status} {answer.reason}".rstrip()),))
            return
        if answer.body == self._body:
            if not self._body_is_bad:
                self._cleared()
            return
        if reason := self._rules.refused(self._origin.shown, answer.body):
            self._failed((problem(self._origin, "", reason),))
            return
        result = await self._decode(answer.body)
        self._body = answer.body
        self._body_is_bad = not is_usable(result)
        remarks = tuple(item for item in result if isinstance(item, Remark))
        log_new(remarks, self._remarks)
        remarked, self._remarks = remarks != self._remarks, remarks
        if self._body_is_bad:
            self._failed(tuple(item for item in result if isinstance(item, ManifestProblem)), remarked)
            return
        pods = self._seen.mark((item for item in result if isinstance(item, Pod)), self._clock.wall())
        objects = tuple(item for item in result if isinstance(item, ManifestObject))
        changed = (pods, objects) != (self._pods, self._objects) or bool(self._problems) or remarked or not self._ready
        self._pods, self._objects, self._problems, self._ready = pods, objects, (), True
        if changed:
            self._post()

    async def _decode(self, body: bytes) -> Decoded:
        if not body:
            return ()
        return await read_manifest(body, self._origin, self._rules, self._flight)

    def _failed(self, problems: Problems, remarked: bool = False) -> None:
        """Keep the set, and post the problems if they have changed, or the remarks have."""
        if problems == self._problems and not remarked:
            return
        log_new(problems, self._problems)
        self._problems = problems
        self._post()

    def _cleared(self) -> None:
        """Clear the problems, because the URL answers again with the same body."""
        if self._problems:
            log.info("manifest URL answers again", origin=self._origin.shown)
            self._problems = ()
            self._post()

    def _post(self) -> None:
        self._out.post(
            SourceChanged(
                SOURCE_HTTP,
                self._pods,
                self._problems,
                known=self._ready,
                objects=self._objects,
                remarks=self._remarks,
            )
        )
