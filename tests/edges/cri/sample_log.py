"""The log of a container, as a runtime writes it."""

from __future__ import annotations

FIRST = b"2026-01-02T03:04:05.123456789Z stdout F one\n"
SECOND = b"2026-01-02T03:04:06.5Z stderr F two\n"
PARTS = b"2026-01-02T03:04:07.1Z stdout P thr\n2026-01-02T03:04:08Z stdout F ee\n"
LOG = FIRST + SECOND + PARTS
