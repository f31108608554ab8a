"""Decodes manifests without blocking the event loop, and without crashing.

Small manifests are decoded on the event loop. Large ones, and those that may take longer than their size suggests, are decoded
in a thread with a deadline. An unexpected exception becomes a problem of that manifest and is logged
with its traceback; other manifests are not affected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable

from pykubelet.base.api.documents import may_be_slow
from pykubelet.base.kit.flight import Done, Failed, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.work import WORK
from pykubelet.base.model.remarks import Remark
from pykubelet.base.model.roster import ManifestProblem
from pykubelet.desired.sources.decode import Decoded, ManifestRules, decode_manifest, problem
from pykubelet.desired.sources.quarantine import manifest_key
from pykubelet.desired.sources.static import Origin

log = Log("sources")

#: Larger manifests are decoded in a thread. Decoding takes about a second per megabyte.
INLINE_BYTES = 16 << 10
DECODE_DEADLINE_S = 120.0


def log_new(found: Iterable[ManifestProblem | Remark], known: Container[ManifestProblem | Remark]) -> None:
    """Log the problems and remarks that are not `known` yet."""
    for one in found:
        if one not in known:
            what = "bad manifest" if isinstance(one, ManifestProblem) else "remark about a manifest"
            log.warning(what, origin=one.origin, field=one.field_path or None, reason=one.reason)


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
