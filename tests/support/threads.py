"""A system that has no thread left for a while."""

from __future__ import annotations

import threading

import pytest


def refuse_threads(monkeypatch: pytest.MonkeyPatch, name: str, times: int = 1) -> list[str]:
    """Let the first starts of a thread of this name fail. Returns a list to which each failure adds the name."""
    start, refused = threading.Thread.start, list[str]()

    def start_or_refuse(thread: threading.Thread) -> None:
        if thread.name == name and len(refused) < times:
            refused.append(name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_refuse)
    return refused
