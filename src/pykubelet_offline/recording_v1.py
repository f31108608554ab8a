"""Recordings of version 1, whose states had the parts of today's values in fields of their own. Pure."""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]

#: Fields of the state that have other places now.
_MOVED = frozenset({
    "exits", "holds", "pending_holds", "reset", "restart_without_backoff", "reported_backoffs", "retry_at", "unstarted", "pod_error",
    "pod_failures", "applied", "starting", "adopted_size", "resize", "lost", "ends", "uncounted",
})  # fmt: skip
_RENAMED_EVENTS = {"Woke": "TimerFired"}
#: The keys of pauses that were not those of a container.
_POD, _RESIZE = "", "/resize"


def upgraded(recording: Document) -> Document:
    """The recording in the form of version 2. Raises KeyError, TypeError or AttributeError if it is not one of version 1."""
    before: Document = dict(recording["state"])
    steps, state = [], _with_parts(before)
    for step in recording["steps"]:
        now = {**before, **step["changed"]}
        after = _with_parts(now)
        changed = {name: value for name, value in after.items() if name not in state or state[name] != value}
        event_type = _RENAMED_EVENTS.get(step["event_type"], step["event_type"])
        steps.append({**step, "event_type": event_type, "changed": changed})
        before, state = now, after
    return {**recording, "version": 2, "state": _with_parts(dict(recording["state"])), "steps": steps}


def _with_parts(state: Document) -> Document:
    """A state of version 2 with the contents of one of version 1. A field that the recording agent did not have is empty."""
    pauses, unstarted = state.get("retry_at", {}), state.get("unstarted", {})
    error = state.get("pod_error")
    return {
        **{name: value for name, value in state.items() if name not in _MOVED},
        "back_offs": {
            "exits": state.get("exits", {}),
            "entries": state.get("holds", {}),
            "pending": state.get("pending_holds", {}),
            "pauses": {
                name: {"until": at, "unstarted": unstarted.get(name)}
                for name, at in pauses.items()
                if name not in (_POD, _RESIZE)
            },
            "whole_pod": state.get("reset"),
            "exempt": state.get("restart_without_backoff", []),
            "reported": state.get("reported_backoffs", []),
        },
        "failure": error and {"error": error, "count": state.get("pod_failures", 1), "retry_at": pauses.get(_POD)},
        "loss": {
            "lost": state.get("lost"),
            "ends": state.get("ends", {}),
            "uncounted": state.get("uncounted", []),
        },
        "sizes": {
            "applied": state.get("applied", {}),
            "starting": state.get("starting", {}),
            "adopted": state.get("adopted_size"),
            "resize": state.get("resize"),
            "retry_at": pauses.get(_RESIZE),
        },
    }
