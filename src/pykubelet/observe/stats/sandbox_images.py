"""The images of pause containers, which dashboards use to distinguish containers from other cgroups.

CRI reports a sandbox's image only in the verbose part of its status, so each sandbox is asked for once. A runtime that does
not report it is not asked again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError

MAX_NAME = 1024


class _SandboxInfo(msgspec.Struct, frozen=True):
    """The part of the verbose status that is needed."""

    image: str = ""


def image_of(answer: pb.PodSandboxStatusResponse) -> str:
    """The image in a verbose sandbox status of containerd or CRI-O; "" if there is none. Pure."""
    try:
        return msgspec.json.decode(answer.info.get("info", "{}"), type=_SandboxInfo).image[:MAX_NAME]
    except msgspec.DecodeError:
        return ""


class SandboxImages:
    """The images by sandbox ID."""

    def __init__(self, cri: CriClient) -> None:
        self._cri = cri
        self._images: dict[str, str] = {}

    @property
    def known(self) -> Mapping[str, str]:
        """The images that were asked for; "" where the runtime does not report one."""
        return self._images

    async def learn(self, sandboxes: Collection[str]) -> None:
        """Ask for the sandboxes that are not known yet, one after the other, and forget all others."""
        for gone in self._images.keys() - set(sandboxes):
            del self._images[gone]
        for sandbox in sandboxes:
            if sandbox not in self._images:
                try:
                    self._images[sandbox] = image_of(await self._cri.pod_sandbox_status(sandbox, verbose=True))
                except CriError as error:
                    if not error.is_not_found:
                        return  # the runtime has a problem: the next measurement asks again
