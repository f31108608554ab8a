"""Requests one service account token of one pod, and replaces it before it expires.

Owns: the TokenRequest, and when it is repeated. A token that cannot be replaced is kept while it is valid. Its age is
measured from its arrival on the agent's clock, so a difference to the server's clock does not matter. When the wall clock
jumps (`clock_jumped`), tokens that are overdue by the wall clock are replaced too.
Source: KEP-1205; the API reference, TokenRequest.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AbstractAsyncContextManager, nullcontext

from pykubelet.base.kit.cells import Post, within
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.model.content import Found, Present, TokenKey, Unreadable
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.tokens import HeldToken, request_token
from pykubelet.provide.objects.decide import retry_delay_s
from pykubelet.provide.objects.model import Answered, ContentSettings

log = Log("content")
#: Seconds after a pod arrives until its tokens are requested. Its sandbox is begun first, because that takes much longer,
#: and containers need the token only afterwards.
SETTLE_S = 0.02
RETRY_S = 0.02
RETRY_CAP_S = 60.0
_FORBIDDEN = 403


class TokenKeeper:
    """Keeps one token. `run` posts the token, and each replacement; it never returns. `slot`: entered for each request."""

    def __init__(
        self,
        key: TokenKey,
        client: ApiClient,
        clock: Clock,
        settings: ContentSettings,
        answers: Post[Answered],
        slot: AbstractAsyncContextManager[object] | None = None,
    ) -> None:
        self._slot = slot or nullcontext()
        self._key = key
        self._client = client
        self._clock = clock
        self._settings = settings
        self._answers = answers
        self._held: HeldToken | None = None
        self._answered: Found | None = None
        self._jumped = asyncio.Event()

    def clock_jumped(self) -> None:
        """Have the age of the token checked now, because the wall clock has jumped."""
        self._jumped.set()

    async def run(self) -> None:
        """Request the token, and replace it before it expires."""
        await asyncio.sleep(SETTLE_S)
        asked_at, failures = self._clock.monotonic(), 0
        while True:
            try:
                async with self._slot:
                    self._held = await request_token(self._client, self._key, self._clock)
            except ApiError as error:
                failures += 1
                self._failed(error, asked_at, failures)
                first_s = RETRY_S if self._held is None else self._settings.refresh_retry_s
                await self._sleep(retry_delay_s(failures, first_s, RETRY_CAP_S, random.random(), error.retry_after_s))
                continue
            if failures and isinstance(self._answered, (Present, Unreadable)):
                log.info("a token can be requested again", **self._names())
            failures = 0
            self._answer(Present(self._held.token))
            await self._until_due(self._held)

    async def _until_due(self, held: HeldToken) -> None:
        while (left := held.refresh_s - held.age_s(self._clock.monotonic(), self._clock.wall())) > 0:
            await self._sleep(left)

    async def _sleep(self, seconds: float) -> None:
        """Sleep for this long, or until the wall clock jumps."""
        self._jumped.clear()
        await within(seconds, self._jumped.wait())

    def _failed(self, error: ApiError, asked_at: float, failures: int) -> None:
        now, wall = self._clock.monotonic(), self._clock.wall()
        held = self._held
        if held is None:
            may_pass = error.is_transient or error.status == _FORBIDDEN
            if not may_pass or now - asked_at >= self._settings.answer_timeout_s:
                self._answer_unreadable(f"failed to fetch token: {error.message}")
        elif held.age_s(now, wall) >= held.life_s:
            account = f"{self._key.namespace}/{self._key.service_account}"
            self._answer_unreadable(f'token "{account}" expired and refresh failed: {error.message}')
        if failures == 1 and held is not None:
            log.warning(
                "a token cannot be replaced; the old one is kept while it is valid", **self._names(), error=error
            )

    def _names(self) -> dict[str, object]:
        account = f"{self._key.namespace}/{self._key.service_account}"
        return {"account": account, "pod": self._key.pod_name, "uid": self._key.pod}

    def _answer_unreadable(self, message: str) -> None:
        since = self._answered.since if isinstance(self._answered, Unreadable) else self._clock.wall()
        self._answer(Unreadable(message, since))

    def _answer(self, found: Found) -> None:
        if found != self._answered:
            self._answered = found
            self._answers.post(Answered(self._key, found))
