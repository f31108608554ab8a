"""The extensions of the agent as users see them (docs/extensions/README.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.values import Value

_KEY = "extension "
#: The point of a process extension that provides volumes.
PROVIDES_VOLUMES = "volume"

#: Asks the extensions for other values of a cgroup: of the container with this name, or with "" of the pod's own. The last two are the
#: values that the agent would write, by file of cgroup v2, and whether the cgroup is a new one, so that nothing must be taken back.
#: Returns the values that change.
AskForValues = Callable[[Pod, str, Mapping[str, str], bool], Mapping[str, str]]


def extension_key(name: str) -> str:
    """The key of an extension in the records of work and in the charges for an end of the agent."""
    return _KEY + name


def is_extension_key(key: str) -> bool:
    """Whether a key is that of an extension, and not of a pod or a manifest."""
    return key.startswith(_KEY)


class ExtensionState(Value):
    """An extension that was loaded. `points`: where it takes part in decisions. `file`: what it was loaded from.

    `off`: why it is not asked any more; "" while it is. `error`: its last failure, at `error_at` (wall seconds); "" for none.
    """

    name: str
    version: str
    file: str
    points: tuple[str, ...]
    off: str = ""
    error: str = ""
    error_at: float = 0.0


class ExtensionStates(Value):
    """The extensions in the order in which they are asked."""

    extensions: tuple[ExtensionState, ...] = ()

    def named(self, name: str) -> ExtensionState | None:
        """The extension with this name."""
        return next((state for state in self.extensions if state.name == name), None)


class ExtensionWanted(Value):
    """Posted to app/extensions: ask an extension again that is off."""

    name: str
