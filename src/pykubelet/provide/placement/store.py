"""The state files of the CPU and Memory Manager below the root directory: read at the start, replaced at each change.

A damaged file stops the start of the agent, so a power cut must not leave one. It may undo the newest changes: no container has survived
it, and pods get their CPUs and memory anew.
"""

from __future__ import annotations

from pykubelet.base.kit.flight import Done, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.edges.host.fs import files
from pykubelet.edges.host.fs.errors import suppress_not_found
from pykubelet.provide.placement import cpu_state, memory_state
from pykubelet.provide.placement.managers import Managers

log = Log("placement")
_LIMIT = 64 << 20
#: As long as this, a disk that hangs delays the placement of pods once. What could not be written is written later.
DEADLINE_S = 5.0


class StateFiles:
    """The two files. `save` writes only what has changed since the last time. `has_data`: in the format of 1.37."""

    def __init__(self, root_dir: str, flight: SingleFlight, *, has_data: bool = False) -> None:
        self.cpu_path = f"{root_dir}/{cpu_state.FILE_NAME}"
        self.memory_path = f"{root_dir}/{memory_state.FILE_NAME}"
        self._flight = flight
        self._has_data = has_data
        self._written: dict[str, str | None] = {}

    def read(self) -> tuple[str | None, str | None]:
        """The texts of the files; None for one that does not exist. Raises HostError."""
        for path in (self.cpu_path, self.memory_path):
            text: str | None = None
            with suppress_not_found:
                text = files.read_bytes(path, _LIMIT).decode("utf-8", "replace")
            self._written[path] = text
        return self._written[self.cpu_path], self._written[self.memory_path]

    def is_saved(self, managers: Managers) -> bool:
        """Whether the files have the state."""
        return not self._unsaved(managers)

    async def save(self, managers: Managers) -> bool:
        """Write the state, if it has changed. Returns whether the files have it; an error is logged, and the caller tries again."""
        if not (changed := self._unsaved(managers)):
            return True

        def write() -> None:
            for path, text in changed.items():
                files.write_atomic(path, text.encode(), 0o600, whole=True)

        outcome = await self._flight.run_next("placement", write, DEADLINE_S)
        if isinstance(outcome, Done):
            self._written.update(changed)
            return True
        for path in changed:
            self._written.pop(path, None)  # what is in the file now is not known
        log.warning("the state of the resource managers cannot be written", files=", ".join(changed), error=outcome)
        return False

    def _unsaved(self, managers: Managers) -> dict[str, str]:
        """The new texts of the files that have another one, by path."""
        memory, has_data = managers.memory, self._has_data
        texts = {
            self.cpu_path: cpu_state.encode(managers.cpu_policy, managers.cpu_state, has_data=has_data),
            self.memory_path: memory_state.encode(memory.policy, memory.state, has_data=has_data),
        }
        return {path: text for path, text in texts.items() if self._written.get(path) != text}
