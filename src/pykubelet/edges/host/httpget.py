"""One HTTP GET with a limit on time and size: the manifest URL's way to the world.

Owns: a request without cookies or retries. aiohttp is imported on first use, because most nodes have no manifest URL.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.base.kit.values import Value


class HttpError(Exception):
    """No answer, an unreadable one, or one larger than allowed; the message says which."""


class HttpAnswer(Value):
    status: int
    reason: str
    body: bytes


async def http_get(
    url: str,
    headers: Mapping[str, tuple[str, ...]] | None = None,
    timeout_s: float = 10.0,
    limit: int = 10 << 20,
    verify: bool = True,
) -> HttpAnswer:
    """GET `url`; any status is an answer. A header may have several values. `verify`: the server's certificate.

    HttpError for everything else.
    """
    import aiohttp

    pairs = [(name, value) for name, values in (headers or {}).items() for value in values]
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.get(url, headers=pairs, ssl=verify) as answer,
        ):
            body = bytearray()
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > limit:
                    raise HttpError(f"{url}: the answer is larger than {limit} bytes")
            return HttpAnswer(answer.status, answer.reason or "", bytes(body))
    except TimeoutError as error:
        raise HttpError(f"{url}: no answer within {timeout_s:g} s") from error
    except (aiohttp.ClientError, ValueError, OSError) as error:
        raise HttpError(f"{url}: {error or type(error).__name__}") from error
