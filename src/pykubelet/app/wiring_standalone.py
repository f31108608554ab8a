"""The wiring of a node without an API server: the objects that manifests refer to, and the pod CIDR of the configuration."""

from __future__ import annotations

from functools import partial

from pykubelet.app.parts import Cells, Loops, SharedParts
from pykubelet.base.model.needs import pod_needs
from pykubelet.provide.objects.manifests import StandaloneContent
from pykubelet.provide.volumes.plan import volume_keys
from pykubelet.report.node.pod_cidr import PodCidr, keep_pod_cidr


def wire_standalone(m: SharedParts, cells: Cells) -> Loops:
    """provide/objects: claims and volumes of manifests; writes Content. report/node: sends the pod CIDR to the runtime."""
    path, needs = f"{m.settings.flags.root_dir}/volume_bindings", partial(pod_needs, volume_keys=volume_keys)
    content = StandaloneContent(path, cells.roster.cell, cells.node.cell, cells.content.writer, m.flight, needs)
    loops: Loops = [("content", content.run())]
    cidr = m.settings.config.podCIDR
    if cidr:
        loops.append(("pod-cidr", keep_pod_cidr(cidr, PodCidr(m.cri), cells.runtime.cell)))
    return loops
