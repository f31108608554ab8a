"""Keeps the list of Services, from which pods' environments are made. Headless ones are left out if the API server can.

The first list is read from the store, not from a cache, because the environment of the first pods is made from it and
never changes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from pykubelet.base.api.core import Service
from pykubelet.base.kit.cells import Post
from pykubelet.base.kit.clock import Clock
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.listwatch import Listed, WatchPeriods, follow
from pykubelet.provide.objects.model import ServicesListed

PATH = "/api/v1/services"
WITH_ADDRESS = "spec.clusterIP!=None"
_BAD_REQUEST = 400


async def keep_services(client: ApiClient, clock: Clock, answers: Post[ServicesListed], periods: WatchPeriods) -> None:
    """Watch the Services and post each change. Never returns."""
    selector = WITH_ADDRESS
    while True:
        listing = follow(client, PATH, Service, clock, field_selector=selector, periods=periods, newest=True)
        await _take(listing, answers, selector)
        selector = ""  # an older API server does not support the selector


async def _take(listing: AsyncGenerator[Listed[Service], None], answers: Post[ServicesListed], selector: str) -> None:
    """Post each change of the Services until the API server refuses the selector."""
    async with aclosing(listing) as listings:
        async for listed in listings:
            if selector and _is_refused(listed.error):
                return
            if listed.synced:
                answers.post(ServicesListed(tuple(listed.items.values())))


def _is_refused(error: ApiError | None) -> bool:
    return error is not None and error.status == _BAD_REQUEST
