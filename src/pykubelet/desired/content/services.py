"""Keeps the list of Services, which every pod's environment is made from. Headless ones are left out where possible.

The first list is the newest: it is asked for when the first pod is there, whose environment stays as it is made then.
"""

from __future__ import annotations

from contextlib import aclosing

from pykubelet.base.api.core import Service
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.mailbox import Post
from pykubelet.desired.content.model import ServicesListed
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.listwatch import follow

PATH = "/api/v1/services"
WITH_ADDRESS = "spec.clusterIP!=None"
_BAD_REQUEST = 400


async def keep_services(client: ApiClient, clock: Clock, answers: Post[ServicesListed]) -> None:
    """Never ends."""
    selector = WITH_ADDRESS
    while True:
        await _follow(client, clock, answers, selector)
        selector = ""  # an older API server knows no selector by address


async def _follow(client: ApiClient, clock: Clock, answers: Post[ServicesListed], selector: str) -> None:
    """Until the API server refuses the selector."""
    async with aclosing(follow(client, PATH, Service, clock, field_selector=selector, newest=True)) as listings:
        async for listed in listings:
            if selector and _is_refused(listed.error):
                return
            if listed.synced:
                answers.post(ServicesListed(tuple(listed.items.values())))


def _is_refused(error: ApiError | None) -> bool:
    return error is not None and error.status == _BAD_REQUEST
