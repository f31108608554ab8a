"""Decoding a manifest without holding up the event loop, and without a crash.

Small manifests are decoded on the event loop; large ones, and those with aliases (whose size says nothing about what they
expand to), in a thread with a deadline. A bug that a manifest uncovers is that manifest's problem: it is logged with
its traceback, and the other manifests are not concerned.
"""

from __future__ import annotations

from pykubelet.base.api.documents import may_expand
from pykubelet.base.kit.flight import Done, Failed, Flight
from pykubelet.base.kit.log import Log
from pykubelet.desired.sources.decode import Pods, Problems, decode_manifest, problem
from pykubelet.desired.sources.static import Origin

log = Log("sources")

#: Larger manifests are decoded in a thread. The event loop reads about a megabyte in a second.
INLINE_BYTES = 16 << 10
DECODE_DEADLINE_S = 120.0


async def read_manifest(data: bytes, origin: Origin, node_name: str, flight: Flight) -> Pods | Problems:
    """What `decode_manifest` makes of `data`. Never raises for what a manifest holds."""
    if len(data) <= INLINE_BYTES and not may_expand(data):
        return _decode(data, origin, node_name)
    outcome = await flight.run(f"manifest {origin.place}", lambda: _decode(data, origin, node_name), DECODE_DEADLINE_S)
    match outcome:
        case Done(value):
            return value
        case Failed(error):
            raise error
        case _:
            return (problem(origin, "", f"takes longer than {DECODE_DEADLINE_S:g} s to read"),)


def _decode(data: bytes, origin: Origin, node_name: str) -> Pods | Problems:
    try:
        return decode_manifest(data, origin, node_name)
    except Exception as error:
        log.error("a manifest cannot be read because of a bug", origin=origin.shown, exc_info=error)
        return (problem(origin, "", f"cannot be read: {type(error).__name__}: {error}"),)
