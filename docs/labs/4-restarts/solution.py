import zlib
from dataclasses import dataclass
from itertools import takewhile

from pykubelet.extension import Container, Exit, Extension, RestartAfter, RestartAnswer, RestartHistory, RestartNever

EX_CONFIG = 78


@dataclass(frozen=True)
class RestartSettings:
    healthy_s: float = 60.0
    longest_s: float = 60.0


class WiseRestarts(Extension):
    name, api, Settings = "wise-restarts", "1.0", RestartSettings

    def restart(self, container: Container, history: RestartHistory) -> RestartAnswer:
        last = history.exits[0]
        if last.reason == "OOMKilled":
            return None
        if last.exit_code == EX_CONFIG:
            wrong = sum(1 for _ in takewhile(lambda exit: exit.exit_code == EX_CONFIG, history.exits))
            return RestartNever("its configuration is wrong (exit code 78)") if wrong >= 3 else None
        if not self._is_short(last):
            return RestartAfter(1.0)
        short = sum(1 for _ in takewhile(self._is_short, history.exits))
        delay_s = min(self.settings.longest_s, 2.0 ** (short - 1))
        return RestartAfter(delay_s * (1 + _share(history.pod.uid)) / 2)

    def _is_short(self, exit: Exit) -> bool:
        return exit.finished_at - exit.started_at < self.settings.healthy_s


def _share(text: str) -> float:
    """A number from 0 to 1 that is always the same for a text, and another one for another text."""
    return zlib.crc32(text.encode()) / 0xFFFFFFFF
