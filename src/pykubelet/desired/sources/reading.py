"""What the sources of manifests share: decoding without blocking the event loop and without crashing, and first-seen times.

Small manifests are decoded on the event loop. Large ones, and those that may take longer than their size suggests, are decoded
in a thread with a deadline. An unexpected exception becomes a problem of that manifest and is logged
with its traceback; other manifests are not affected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Set

from pykubelet.base.api.core import Pod
from pykubelet.base.api.documents import may_be_slow
from pykubelet.base.api.times import format_nano_time
from pykubelet.base.kit.flight import WORK, Done, Failed, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value
from pykubelet.base.model.labels import CONFIG_SEEN
from pykubelet.base.model.remarks import Remark
from pykubelet.base.model.roster import ManifestProblem
from pykubelet.desired.sources.decode import Decoded, ManifestRules, decode_manifest, problem
from pykubelet.desired.sources.quarantine import manifest_key
from pykubelet.desired.sources.static import Origin, with_seen

log = Log("sources")

#: Larger manifests are decoded in a thread. Decoding takes about a second per megabyte.
INLINE_BYTES = 16 << 10
DECODE_DEADLINE_S = 120.0


def log_new(found: Iterable[ManifestProblem | Remark], known: Container[ManifestProblem | Remark]) -> None:
    """Log the problems and remarks that are not `known` yet."""
    for item in found:
        if item not in known:
            what = "bad manifest" if isinstance(item, ManifestProblem) else "remark about a manifest"
            about = item.document or None
            log.warning(what, origin=item.origin, document=about, field=item.field_path or None, reason=item.reason)


async def read_manifest(data: bytes, origin: Origin, rules: ManifestRules, flight: SingleFlight) -> Decoded:
    """The result of `decode_manifest`. Never raises because of a manifest's content."""
    if len(data) <= INLINE_BYTES and not may_be_slow(data):
        await asyncio.sleep(0)  # others go on between two of many manifests
        return _decode(data, origin, rules)
    outcome = await flight.run(f"manifest {origin.place}", lambda: _decode(data, origin, rules), DECODE_DEADLINE_S)
    match outcome:
        case Done(value):
            return value
        case Failed(error):
            raise error
        case _:
            return (problem(origin, "", f"takes longer than {DECODE_DEADLINE_S:g} s to read"),)


def _decode(data: bytes, origin: Origin, rules: ManifestRules) -> Decoded:
    try:
        with WORK.on(manifest_key(origin.shown)):
            return decode_manifest(data, origin, rules)
    except Exception as error:
        log.error("a manifest cannot be read because of a bug", origin=origin.shown, exc_info=error)
        return (problem(origin, "", f"cannot be read: {type(error).__name__}: {error}"),)


class _Marked(Value):
    """A pod as in its source, and with the annotation."""

    given: Pod
    annotated: Pod


class FirstSeen:
    """Adds the annotation `kubernetes.io/config.seen`. A pod that was away and returns gets a new time."""

    def __init__(self) -> None:
        self._pods: dict[tuple[str, str], _Marked] = {}

    def forget(self, uids: Set[str]) -> None:
        """Forget pods that were away between two scans."""
        if uids:
            self._pods = {key: known for key, known in self._pods.items() if known.given.metadata.uid not in uids}

    def mark(self, pods: Iterable[Pod], wall_s: float) -> tuple[Pod, ...]:
        """The annotated pods; unchanged pods are the same objects as in the last call."""
        now, before = format_nano_time(int(wall_s * 1_000_000_000)), self._pods
        keyed = [(_key(pod), pod) for pod in pods]
        marked = [_mark(pod, before.get(key), now) for key, pod in keyed]
        self._pods = {key: known for (key, _), known in zip(keyed, marked, strict=True)}
        return tuple(known.annotated for known in marked)


def _key(pod: Pod) -> tuple[str, str]:
    return pod.metadata.uid, pod.metadata.name


def _mark(pod: Pod, before: _Marked | None, now: str) -> _Marked:
    if before is None:
        return _Marked(pod, with_seen(pod, now))
    if before.given is pod:
        return before
    annotated = with_seen(pod, before.annotated.metadata.annotations[CONFIG_SEEN])
    return _Marked(pod, before.annotated if annotated == before.annotated else annotated)
