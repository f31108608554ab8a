"""Reads and changes iptables rules through its programs.

Owns: their command lines. The programs wait for the xtables lock, which all of them share.
"""

from __future__ import annotations

from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.services.process import ProgramResult, run_program

_WAIT = ("-w", "5")
_DEADLINE_S = 30.0
_NOT_THERE = 1


class Iptables:
    """Runs `program` (`iptables` or `ip6tables`). `within`: words before it, for example to enter a network namespace."""

    def __init__(self, program: str, within: tuple[str, ...] = ()) -> None:
        self._program = program
        self._within = within

    async def has_chain(self, table: str, chain: str) -> bool:
        """Whether the table has the chain. Raises HostError if the program fails for another reason."""
        return await self._is_there("-t", table, "-S", chain)

    async def has_rule(self, table: str, chain: str, rule: tuple[str, ...]) -> bool:
        """Whether the chain has exactly this rule. Raises HostError if the program fails for another reason."""
        return await self._is_there("-t", table, "-C", chain, *rule)

    async def restore(self, script: str) -> None:
        """Apply `script` without removing existing rules; each table is applied as a whole or not at all. Raises HostError."""
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


def _refused(argv: tuple[str, ...], done: ProgramResult) -> HostError:
    return HostError("run", " ".join(argv), "EIO", done.err.decode(errors="replace").strip())
