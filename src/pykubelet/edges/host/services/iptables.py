"""iptables, asked and told through its programs.

Owns: how they are called. They wait for the lock that all users of the filter share.
"""

from __future__ import annotations

from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.services.process import Finished, run_program

_WAIT = ("-w", "5")
_DEADLINE_S = 30.0
_NOT_THERE = 1


class Iptables:
    """`program`: `iptables` or `ip6tables`. `within`: words before it, such as those that enter a network namespace."""

    def __init__(self, program: str, within: tuple[str, ...] = ()) -> None:
        self._program = program
        self._within = within

    async def has_chain(self, table: str, chain: str) -> bool:
        return await self._is_there("-t", table, "-S", chain)

    async def has_rule(self, table: str, chain: str, rule: tuple[str, ...]) -> bool:
        return await self._is_there("-t", table, "-C", chain, *rule)

    async def restore(self, script: str) -> None:
        """Do all of `script` beside what is there; each table as a whole or not at all. HostError when refused."""
        argv = (*self._within, f"{self._program}-restore", "--noflush", *_WAIT)
        done = await run_program(argv, stdin=script.encode(), timeout_s=_DEADLINE_S)
        if done.code != 0:
            raise _refused(argv, done)

    async def _is_there(self, *arguments: str) -> bool:
        argv = (*self._within, self._program, *_WAIT, *arguments)
        done = await run_program(argv, timeout_s=_DEADLINE_S)
        if done.code not in (0, _NOT_THERE):
            raise _refused(argv, done)
        return done.code == 0


def _refused(argv: tuple[str, ...], done: Finished) -> HostError:
    return HostError("run", " ".join(argv), "EIO", done.err.decode(errors="replace").strip())
