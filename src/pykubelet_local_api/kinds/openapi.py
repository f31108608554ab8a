"""The schemas of all kinds, for clients that validate and explain them. Pure."""

from __future__ import annotations

from pykubelet_local_api.kinds.discovery import ServedDocument


def openapi(path: str, accept: str) -> ServedDocument | None:  # noqa: ARG001
    """The document at this path; None: there is none."""
    return None
