"""The commands of this package, which the distribution's entry points name. Cheap to import."""

from __future__ import annotations

from pykubelet.base.kit.commands import Command

REPLAY = Command("replay", "FILE", "run a recording of `explain --recording` again", "pykubelet_offline.replay")
SIMULATE = Command(
    "simulate",
    "COMMAND ...",
    "try what a node would decide on pods, also with extensions",
    "pykubelet_offline.simulate",
)
