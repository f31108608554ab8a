"""Whether the CRI of a containerd has an image: it learns of new names by events, a moment after they appear."""

from __future__ import annotations

import asyncio

from pykubelet.edges.cri import cri_pb2 as pb
from pykubelet.net.grpc.call import call
from pykubelet.net.grpc.channel import Channel
from pykubelet.net.grpc.status import Code, RpcError
from pykubelet_images.containerd import CALL_S

#: The namespace that containerd's CRI uses.
NAMESPACE = "k8s.io"
_VERSION = "/runtime.v1.RuntimeService/Version"
_STATUS = "/runtime.v1.ImageService/ImageStatus"
#: Seconds between two questions.
POLL_S = 0.05


async def is_served(channel: Channel) -> bool:
    """Whether there is a CRI. Raises RpcError."""
    try:
        await call(channel, _VERSION, pb.VersionRequest(), pb.VersionResponse, CALL_S)
    except RpcError as error:
        if error.code is Code.UNIMPLEMENTED:
            return False
        raise
    return True


async def image_id(channel: Channel, name: str) -> str:
    """The ID of the image that pods get by this name; empty if they get none. Raises RpcError."""
    request = pb.ImageStatusRequest(image=pb.ImageSpec(image=name))
    return (await call(channel, _STATUS, request, pb.ImageStatusResponse, CALL_S)).image.id


async def wait_known(channel: Channel, name: str, wanted: str, timeout_s: float) -> bool:
    """Wait until pods get the image with this ID by this name. Returns whether they do. Raises RpcError."""
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                if await image_id(channel, name) == wanted:
                    return True
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        return False
