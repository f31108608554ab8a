"""The agent that all situations share."""

from __future__ import annotations

from agent.conftest import agent

__all__ = ["agent"]
