"""The registered plugins, and those that could not be registered, as plain values for JSON. Pure."""

from __future__ import annotations

from typing import Any

from pykubelet.base.model.plugins import Plugins


def plugins_document(plugins: Plugins) -> list[dict[str, Any]]:
    """`[{"socket", "type", "name", "endpoint", "versions", "since", "problem"}]`, by socket. `since`: wall seconds.

    A socket whose plugin could not be registered has only its `problem`.
    """
    found: dict[str, dict[str, Any]] = {
        socket: {
            "socket": socket,
            "type": plugin.type.value,
            "name": plugin.name,
            "endpoint": plugin.endpoint,
            "versions": list(plugin.versions),
            "since": plugin.registered_at,
            "problem": "",
        }
        for socket, plugin in plugins.plugins.items()
    }
    unknown: dict[str, Any] = {"type": "", "name": "", "endpoint": "", "versions": [], "since": None}
    for socket, problem in plugins.problems.items():
        found[socket] = {**found.get(socket, {"socket": socket, **unknown}), "problem": problem}
    return [found[socket] for socket in sorted(found)]
