"""Asks a process extension to set up and tear down volumes. Imported only if there is one.

`docs/extensions/protocol.md` has the protocol.
"""

from __future__ import annotations

import asyncio
import base64

from msgspec import Raw

from pykubelet.base.api.codec import encode
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.edges.plugins.extension_messages import ProtocolError, parse_prepared
from pykubelet.edges.plugins.extension_process import ExtensionCallError, ExtensionProcess
from pykubelet.provide.volumes.directories import VolumeDirs
from pykubelet.provide.volumes.flex.plan import ExtensionPlan
from pykubelet.provide.volumes.kind import NotYetError, StillAtWork, UncertainError, VolumesError

log = Log("provide.volumes")

#: Seconds for an answer to `set_up`. Work that takes longer is answered by `wait`.
SET_UP_S = 30.0
#: Seconds for an answer to `tear_down`, and for all of its tries; then the agent removes the volume without it.
TEAR_DOWN_S, TEAR_DOWN_ALL_S = 10.0, 30.0
#: Seconds between two tries of `tear_down`.
TEAR_DOWN_AGAIN_S = 1.0


class ProcessVolumes:
    """The calls of one process: `ExtensionVolumes`."""

    def __init__(self, process: ExtensionProcess, clock: Clock) -> None:
        self._process = process
        self._clock = clock

    async def set_up(self, plan: ExtensionPlan) -> None:
        """See `ExtensionVolumes.set_up`. A call without an answer is uncertain: the volume may be there."""
        name = self._process.name
        fields = {
            "pod": Raw(encode(plan.pod)),
            "volume": plan.spec_name,
            "path": str(plan.directory),
            "readOnly": plan.mounted.read_only,
            "fsType": plan.fs_type,
            "options": plan.options,
            "secrets": {key: base64.b64encode(value).decode() for key, value in plan.secrets.data.items()},
        }
        try:
            answer = parse_prepared(await self._process.call("set_up", fields, SET_UP_S), "set_up")
        except ExtensionCallError as error:
            kind = UncertainError if error.is_away or error.is_late else VolumesError
            raise kind(f"extension {name}: {error}") from error
        except ProtocolError as error:
            raise VolumesError(f"extension {name}: {error}") from error
        if not answer.ready:
            raise NotYetError(answer.wait, StillAtWork(name, answer.again_s))

    async def tear_down(self, dirs: VolumeDirs) -> None:
        """See `ExtensionVolumes.tear_down`."""
        fields = {"pod": {"metadata": {"uid": dirs.uid}}, "volume": dirs.name, "path": str(dirs.path)}
        until, why = self._clock.monotonic() + TEAR_DOWN_ALL_S, ""
        while (left := until - self._clock.monotonic()) > 0:
            try:
                await self._process.call("tear_down", fields, min(left, TEAR_DOWN_S))
                return
            except ExtensionCallError as error:
                why = str(error)
            await asyncio.sleep(TEAR_DOWN_AGAIN_S)
        name = self._process.name
        log.warning("a volume is removed without its extension", extension=name, volume=dirs.path, why=why)
