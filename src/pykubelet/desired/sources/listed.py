"""The set of pods of a source that delivers all its manifests as one document: a URL, or a process extension.

Owns: the last set that could be used. A document that cannot be used changes only the problems; an unchanged document changes nothing. On a
node without an API server, it may be several documents: those that can be used are.
Posts `SourceChanged` with the whole set after each change, and once after the first usable document. Until then it posts only problems:
the set is not known, so no pod is killed because of it.
"""

from __future__ import annotations

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.cells import Post
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.model.content import ManifestObject
from pykubelet.base.model.remarks import Remark
from pykubelet.base.model.roster import ManifestProblem, SourceChanged
from pykubelet.desired.sources.decode import Decoded, ManifestRules, Problems, is_usable, problem
from pykubelet.desired.sources.reading import FirstSeen, log_new, read_manifest
from pykubelet.desired.sources.static import Origin

log = Log("sources")


class ListedPods:
    """The set of one source, posted to `out`. `awaited` False: other pods do not wait until it is known."""

    def __init__(
        self, origin: Origin, rules: ManifestRules, out: Post[SourceChanged], clock: Clock, flight: SingleFlight
    ) -> None:
        self.awaited = True
        self._origin = origin
        self._rules = rules
        self._out = out
        self._clock = clock
        self._flight = flight
        self._seen = FirstSeen()
        self._body: bytes | None = None
        self._wrong: Problems = ()  # what is wrong with the last document
        self._pods: tuple[Pod, ...] = ()
        self._objects: tuple[ManifestObject, ...] = ()
        self._problems: tuple[ManifestProblem, ...] = ()
        self._remarks: tuple[Remark, ...] = ()
        self.is_known = False

    async def take(self, body: bytes) -> None:
        """Take a document over; an empty one is an empty set."""
        if body == self._body:
            self.answered()
            return
        if reason := self._rules.refused(self._origin.shown, body):
            self.failed(reason)
            return
        result = await self._decode(body)
        self._body = body
        self._wrong = tuple(item for item in result if isinstance(item, ManifestProblem))
        remarks = tuple(item for item in result if isinstance(item, Remark))
        log_new(remarks, self._remarks)
        remarked, self._remarks = remarks != self._remarks, remarks
        if not is_usable(result):
            self._failed(self._wrong, remarked)
            return
        log_new(self._wrong, self._problems)
        pods = self._seen.mark((item for item in result if isinstance(item, Pod)), self._clock.wall())
        objects = tuple(item for item in result if isinstance(item, ManifestObject))
        now = (pods, objects, self._wrong)
        changed = now != (self._pods, self._objects, self._problems) or remarked or not self.is_known
        self._pods, self._objects, self._problems, self.is_known = *now, True
        if changed:
            self._post()

    async def _decode(self, body: bytes) -> Decoded:
        if not body:
            return ()
        return await read_manifest(body, self._origin, self._rules, self._flight)

    def failed(self, reason: str) -> None:
        """Keep the set, and post the problem if it is new."""
        self._failed((problem(self._origin, "", reason),))

    def give_up(self, reason: str) -> None:
        """Have other pods not wait for a set any more. What is wrong with the last document, if anything, is the reason."""
        was_awaited, self.awaited = self.awaited, False
        self._failed(self._wrong or (problem(self._origin, "", reason),), was_awaited)

    def _failed(self, problems: Problems, changed: bool = False) -> None:
        """Keep the set, and post the problems if they, or something else, have changed."""
        if problems == self._problems and not changed:
            return
        log_new(problems, self._problems)
        self._problems = problems
        self._post()

    def answered(self) -> None:
        """Note that the source is there again, with the same document: only what is wrong with that is a problem."""
        if self._wrong:
            self._failed(self._wrong)
        elif self._problems:
            log.info("a source of pods answers again", origin=self._origin.shown)
            self._problems = ()
            self._post()

    def _post(self) -> None:
        self._out.post(
            SourceChanged(
                self._origin.source,
                self._pods,
                self._problems,
                known=self.is_known,
                objects=self._objects,
                remarks=self._remarks,
                awaited=self.awaited,
            )
        )
