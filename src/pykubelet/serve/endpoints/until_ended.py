"""An answer with a notification of its end, for what measures requests until their last byte."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from pykubelet.net.http.server import Answer, Closable, ServedConnection, StreamedResponse, Takeover


def until_ended(answer: Answer, ended: Callable[[], None]) -> Answer:
    """The same answer; `ended` is called when it is complete: at once, or when its stream or its connection ends."""
    if isinstance(answer, StreamedResponse):
        return StreamedResponse(answer.status, _Chunks(answer.chunks, ended), answer.content_type, answer.headers)
    if isinstance(answer, Takeover):
        return _takeover(answer, ended)
    ended()
    return answer


def _takeover(answer: Takeover, ended: Callable[[], None]) -> Takeover:
    async def talk(connection: ServedConnection) -> None:
        try:
            await answer.talk(connection)
        finally:
            ended()

    return Takeover(talk)


class _Chunks:
    """The chunks of a stream, with a notification of its end."""

    def __init__(self, chunks: AsyncIterator[bytes], ended: Callable[[], None]) -> None:
        self._chunks = chunks
        self._ended = ended

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._chunks

    async def __anext__(self) -> bytes:
        return await anext(self._chunks)

    async def aclose(self) -> None:
        try:
            if isinstance(self._chunks, Closable):
                await self._chunks.aclose()
        finally:
            self._ended()
