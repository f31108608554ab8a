"""The needs of a pod, in the order in which a start meets them. Its end gives them back in the reverse order.

What depends on it: a missing image is reported before any other lack, as in the reference; a cgroup is removed after the volumes
whose memory it is charged with; `DevicesNeed` sets the devices to which `ClaimsNeed` and others add; a `subPathExpr` of `VolumesNeed`
may refer to variables of the content and the devices.
"""

from __future__ import annotations

from pykubelet.act.pods.needs.cgroup import CgroupNeed
from pykubelet.act.pods.needs.claims import ClaimsNeed
from pykubelet.act.pods.needs.content import ContentNeed
from pykubelet.act.pods.needs.devices import DevicesNeed
from pykubelet.act.pods.needs.images import ImagesNeed
from pykubelet.act.pods.needs.volumes import VolumesNeed
from pykubelet.act.pods.tools import MakeNeed

NEEDS: tuple[MakeNeed, ...] = (
    ImagesNeed,
    CgroupNeed,
    ContentNeed,
    DevicesNeed,
    ClaimsNeed,
    VolumesNeed,
)
