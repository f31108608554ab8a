"""What an exception refers to: those that led to it, and the frames in which it was raised."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


def causes(error: BaseException) -> Iterator[BaseException]:
    """The exception, the one that it was raised from or while handling, and so on; each once."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


@contextmanager
def releasing_frames(reader: asyncio.StreamReader) -> Iterator[None]:
    """In the end, let the error of a connection that was reset keep no frames: they refer to the reader, which has the error.

    The reader would wait for a garbage collection, and the buffers of a TLS connection with it.
    """
    try:
        yield
    finally:
        if (failure := reader.exception()) is not None:
            failure.with_traceback(None)
