"""The wiring of a node in a cluster: what exists only with a kubeconfig. Nothing is decided here.

Imported only then: a node that stands alone pays nothing for it.
"""

from __future__ import annotations

from pykubelet.app.parts import Cells, Loops, Machinery
from pykubelet.app.prepare import StartError
from pykubelet.app.version import user_agent
from pykubelet.base.api.core import Pod
from pykubelet.base.config.settings import Settings
from pykubelet.base.kit.clock import Clock
from pykubelet.desired.sources.api import PODS_PATH, ApiSource, pods_of_node
from pykubelet.edges.kubeapi.client import ApiClient, ClientLimits
from pykubelet.edges.kubeapi.kubeconfig import KubeconfigError, load_access
from pykubelet.edges.kubeapi.listwatch import follow
from pykubelet.report.mirrors.loop import MirrorInputs, MirrorsLoop
from pykubelet.report.status.publish import PublishInputs, StatusPublisher


class Cluster:
    """How the API server is reached. `close` ends its connections; the loops must have ended before."""

    def __init__(self, client: ApiClient) -> None:
        self.client = client

    async def close(self) -> None:
        await self.client.close()


def join_cluster(settings: Settings, clock: Clock) -> Cluster:
    """The cluster that `--kubeconfig` names. Raises StartError."""
    try:
        access = load_access(settings.flags.kubeconfig)
    except KubeconfigError as error:
        raise StartError(f"invalid kubeconfig: {error}") from error
    limits = ClientLimits(settings.config.kubeAPIQPS or 0, settings.config.kubeAPIBurst)
    return Cluster(ApiClient(access, clock, limits, user_agent()))


def wire_api_source(m: Machinery, cells: Cells, cluster: Cluster) -> Loops:
    """desired/sources: the pods bound to this node; writes ApiPods and posts to the roster."""
    node = cells.node.cell
    listed = follow(cluster.client, PODS_PATH, Pod, m.clock, field_selector=pods_of_node(node.get().name))
    source = ApiSource(listed, node, m.sources, cells.api_pods.writer, m.clock)
    return [("api-pods", source.run())]


def wire_cluster_report(m: Machinery, cells: Cells, cluster: Cluster) -> Loops:
    """report: statuses and last deletions to the API server, mirror pods."""
    roster, lifecycles = cells.roster.cell, cells.lifecycles.cell
    inputs = PublishInputs(cells.api_pods.cell, roster, cells.statuses.cell, lifecycles)
    publisher = StatusPublisher(cluster.client, inputs, m.clock)
    mirrors = MirrorsLoop(cluster.client, MirrorInputs(roster, lifecycles, cells.node.cell), m.clock)
    return [("publisher", publisher.run()), ("mirrors", mirrors.run())]
