"""Keeps certificates valid while the program runs: looks at the files once a minute, in a thread, and loads what was renewed.

Once a minute, because a machine without a clock of its own starts with a wrong time, which is set when the network is up.
"""

from __future__ import annotations

import asyncio
import ssl

from pykubelet.base.kit.cells import CellWriter
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import SingleFlight, value_of
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value
from pykubelet_local_api.access.files import AccessError
from pykubelet_local_api.access.place import AccessFiles, AuthorityPem, load_files
from pykubelet_local_api.access.preparing import AccessUpkeep

log = Log("local-api")
PERIOD_S = 60.0
#: A disk that does not answer for so long is reported, and asked again later: seconds.
DEADLINE_S = 90.0


class TlsContexts(Value):
    """Where certificates are loaded: the server's context; `agent`: those with which the API calls the agent; `own`: those with which
    this program calls the API."""

    server: ssl.SSLContext
    agent: tuple[ssl.SSLContext, ...] = ()
    own: tuple[ssl.SSLContext, ...] = ()


class CertificateUpkeep:
    """Renews certificates. `authority`: where a renewed authority is published, which certificates are signed with."""

    def __init__(
        self,
        upkeep: AccessUpkeep,
        files: AccessFiles,
        contexts: TlsContexts,
        authority: CellWriter[AuthorityPem],
        clock: Clock,
    ) -> None:
        self._upkeep = upkeep
        self._loaded = files
        self._contexts = contexts
        self._authority = authority
        self._clock = clock
        self._flight = SingleFlight("certificates", workers=1)

    async def run(self) -> None:
        """Keep the certificates valid, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            await self.renew()

    async def renew(self) -> None:
        """Renew what is due. What goes wrong is logged; the certificates before stay in use."""
        try:
            now = self._clock.wall()
            files = value_of(await self._flight.run("renew", lambda: self._upkeep.files(now), DEADLINE_S), _late)
            if files.versions != self._loaded.versions:
                self._load(files)
        except AccessError as error:
            log.warning("certificates cannot be renewed", error=str(error))

    def _load(self, files: AccessFiles) -> None:
        """Use the files for new connections. On the loop's thread, so that no handshake meets half of them."""
        contexts, pem = self._contexts, files.authority.pem
        load_files(contexts.server, pem, files.server)
        for context in contexts.agent:
            load_files(context, pem, files.agent_client)
        for context in contexts.own:
            load_files(context, pem, files.own_client)
        if pem != self._loaded.authority.pem:
            self._authority.publish(files.authority)
        self._loaded = files
        log.info("certificates were renewed", folder=str(self._upkeep.place.folder))


def _late(_: float) -> AccessError:
    return AccessError(f"the disk or the process does not answer for {DEADLINE_S:.0f} s")
