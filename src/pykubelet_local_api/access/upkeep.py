"""Keeps certificates valid while the program runs: looks at the files once a minute, in a thread, and loads what was renewed.

Once a minute, because a machine without a clock of its own starts with a wrong time, which is set when the network is up.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import SingleFlight, value_of
from pykubelet.base.kit.log import Log
from pykubelet_local_api.access.authority import AccessFiles, ApiPlace, load_files, prepare
from pykubelet_local_api.access.files import AccessError

log = Log("local-api")
PERIOD_S = 60.0
#: A disk that does not answer for so long is reported, and asked again later: seconds.
DEADLINE_S = 30.0


class CertificateUpkeep:
    """Renews certificates. `server`: the context of the server; `clients`: those with which the API calls the agent."""

    def __init__(
        self,
        place: ApiPlace,
        files: AccessFiles,
        server: ssl.SSLContext,
        clients: Sequence[ssl.SSLContext],
        clock: Clock,
    ) -> None:
        self._place = place
        self._loaded = files
        self._server = server
        self._clients = clients
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
            files = value_of(await self._flight.run("renew", lambda: prepare(self._place, now), DEADLINE_S), _late)
            if files.versions != self._loaded.versions:
                self._load(files)
        except AccessError as error:
            log.warning("certificates cannot be renewed", error=str(error))

    def _load(self, files: AccessFiles) -> None:
        """Use the files for new connections. On the loop's thread, so that no handshake meets half of them."""
        load_files(self._server, files.authority.pem, files.server)
        for client in self._clients:
            load_files(client, files.authority.pem, files.agent_client)
        self._loaded = files
        log.info("certificates were renewed", folder=str(self._place.folder))


def _late(_: float) -> AccessError:
    return AccessError(f"the disk does not answer for {DEADLINE_S:.0f} s")
