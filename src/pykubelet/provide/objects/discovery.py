"""Asks the API server which version of an API it serves."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.edges.kubeapi.errors import ApiError

CERTIFICATES = "/apis/certificates.k8s.io"


class _Resource(msgspec.Struct, frozen=True):
    name: str = ""


class _Resources(msgspec.Struct, frozen=True):
    resources: tuple[_Resource, ...] = ()


async def served_version(client: ApiClient, group: str, versions: Sequence[str], plural: str) -> str:
    """The first of `versions` in which the server has `plural`, "" for none. `group`: `/apis/` and its name. Raises ApiError."""
    for version in versions:
        try:
            found = await client.get(f"{group}/{version}", _Resources)
        except ApiError as error:
            if not error.is_not_found:
                raise
            continue
        if any(resource.name == plural for resource in found.resources):
            return version
    return ""
