"""The wiring of a node in a cluster: what exists only with a kubeconfig. Nothing is decided here.

Imported only then: a node that stands alone pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from pykubelet.act.volumes.registry import volume_keys
from pykubelet.app.parts import Cells, Loops, Machinery
from pykubelet.app.prepare import StartError
from pykubelet.app.version import FULL, user_agent
from pykubelet.app.wiring_server import serving_choice
from pykubelet.base.api.core import NodeSwapStatus, NodeSystemInfo, Pod, Taint
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.apistate import ApiState
from pykubelet.base.model.kube_events import normal
from pykubelet.base.model.needs import pod_needs
from pykubelet.base.model.reasons import EVENT_STARTING
from pykubelet.config.settings import Settings
from pykubelet.desired.content.loop import ContentLoop
from pykubelet.desired.content.model import ContentSettings, Strategy
from pykubelet.desired.sources.api import PODS_PATH, ApiSource, pods_of_node
from pykubelet.edges.host.fs.files import stat_file
from pykubelet.edges.host.proc.machine import Machine
from pykubelet.edges.identity.bootstrap import ApiAccess, BootstrapClient, find_entrance, first_pair, write_when_issued
from pykubelet.edges.identity.decide import client_certificate, serving_certificate
from pykubelet.edges.identity.rotation import CertificateLoop, CertificateSigners, IssuePeriods
from pykubelet.edges.identity.store import CertificateStore
from pykubelet.edges.kubeapi.client import ApiClient, ClientLimits
from pykubelet.edges.kubeapi.kubeconfig import KubeconfigError, Pem
from pykubelet.edges.kubeapi.listwatch import follow
from pykubelet.edges.plugins.pull_identity import PullIdentity
from pykubelet.report.events.send import EventSender
from pykubelet.report.mirrors.loop import MirrorInputs, MirrorsLoop
from pykubelet.report.node.api_node import ReporterClients
from pykubelet.report.node.csi_node import keep_csi_node
from pykubelet.report.node.lease import LeaseLoop
from pykubelet.report.node.model import NodePeriods, Registration
from pykubelet.report.node.reporter import NodeReporter, ReporterCells
from pykubelet.report.status.publish import PublishInputs, StatusPublisher
from pykubelet.serve.auth.auth_filter import Reviewers

#: Who shows a token waits no longer for its review to be sent: anybody can show tokens.
LONGEST_REVIEW_WAIT_S = 2.0
#: Device plugins' resources of an earlier life are known as long as this file is there.
DEVICE_CHECKPOINT = "device-plugins/kubelet_internal_checkpoint"


class Cluster(Value):
    """How the API server is reached. `heartbeat` is for signs of life: nothing else can be in their way. `events` has the
    limits of Events, the two of reviews are for the gate of the authenticated port, `bootstrap` is for a node without a certificate.

    `close` ends the connections; the loops must have ended before.
    """

    entrance: ApiAccess
    client: ApiClient
    heartbeat: ApiClient
    events: ApiClient
    token_reviews: ApiClient
    access_reviews: ApiClient
    bootstrap: BootstrapClient | None = None

    async def close(self) -> None:
        reviews = self.token_reviews, self.access_reviews
        for client in (self.client, self.heartbeat, self.events, *reviews, self.bootstrap):
            if client is not None:
                await client.close()

    @property
    def reviewers(self) -> Reviewers:
        """Anybody can show tokens, as fast as they like: nothing but tokens that are not known yet waits for their reviews."""
        return Reviewers(self.token_reviews, self.access_reviews)


def join_cluster(settings: Settings, clock: Clock) -> Cluster:
    """The cluster that `--kubeconfig` names, or `--bootstrap-kubeconfig` while there is none. Raises StartError."""
    config, flags = settings.config, settings.flags
    current = client_store(settings).current
    try:
        entrance = find_entrance(flags.kubeconfig, flags.bootstrap_kubeconfig, current)
    except KubeconfigError as error:
        raise StartError(f"invalid kubeconfig: {error}") from error
    rotated = Pem(current) if keeps_client_certificate(settings, entrance) else None
    agent = user_agent()
    answer_s = min(config.nodeStatusUpdateFrequency.s, float(config.nodeLeaseDurationSeconds))
    usual = ClientLimits(config.kubeAPIQPS or 0, config.kubeAPIBurst)
    every = (
        usual,
        ClientLimits(qps=0, deadline_s=answer_s),
        ClientLimits(config.eventRecordQPS or 0, config.eventBurst),
        replace(usual, longest_wait_s=LONGEST_REVIEW_WAIT_S),
        usual,
    )
    client, heartbeat, events, tokens, rights = (
        ApiClient(entrance.access, clock, limits, agent, rotated) for limits in every
    )
    bootstrap_client = None
    if entrance.bootstrap is not None:
        bootstrap_client = BootstrapClient(
            flags.bootstrap_kubeconfig,
            entrance.bootstrap,
            lambda access: ApiClient(access, clock, ClientLimits(), agent),
        )
    return Cluster(entrance, client, heartbeat, events, tokens, rights, bootstrap_client)


def client_store(settings: Settings) -> CertificateStore:
    return CertificateStore(settings.flags.cert_dir, "kubelet-client")


def keeps_client_certificate(settings: Settings, entrance: ApiAccess) -> bool:
    return settings.config.rotateCertificates or entrance.bootstrap is not None


def wire_identity(m: Machinery, cells: Cells, cluster: Cluster) -> Loops:
    """edges/identity: the certificates that are asked for at the API server; writes Credentials."""
    settings, entrance = m.settings, cluster.entrance
    name = cells.node.cell.get().name
    writer, tools = cells.credentials.writer, (m.clock, m.flight)
    loops: Loops = []
    if keeps_client_certificate(settings, entrance):
        client = CertificateLoop(
            client_certificate(name),
            client_store(settings),
            CertificateSigners(cluster.client, cluster.bootstrap),
            (writer, None),
            tools,
            IssuePeriods(look=m.periods.certificates_s, rotates=settings.config.rotateCertificates),
            first_pair(entrance.access),
        )
        loops.append(("client-certificate", client.run()))
    if entrance.writes:
        path, credentials = settings.flags.kubeconfig, cells.credentials.cell
        loops.append(("kubeconfig", write_when_issued(path, entrance.access, credentials, m.flight)))
    serving = serving_choice(settings)
    if serving.bootstrap and not serving.certificate and settings.enabled("RotateKubeletServerCertificate"):
        store = CertificateStore(settings.flags.cert_dir, "kubelet-server")
        ends = (writer, cells.node.cell)
        periods = IssuePeriods(look=m.periods.certificates_s)
        server = CertificateLoop(
            serving_certificate(name), store, CertificateSigners(cluster.client), ends, tools, periods
        )
        loops.append(("serving-certificate", server.run()))
    return loops


def wire_node(m: Machinery, cells: Cells, cluster: Cluster) -> Loops:
    """report/node: registration, status and lease; they write NodeView and ApiState."""
    config = m.settings.config
    cells.api_state.writer.publish(ApiState(cluster.client.access.server))
    periods = NodePeriods(
        update=config.nodeStatusUpdateFrequency.s,
        report=config.nodeStatusReportFrequency.s,
        images=m.periods.images_s,
    )
    clients = ReporterClients(watching=cluster.client, reporting=cluster.heartbeat)
    state = cells.api_state.writer
    reported = ReporterCells(cells.node.writer, cells.runtime.cell, cells.pressure.cell, m.node_wanted, state)
    about = registration(m.settings, m.machine, cells.node.cell.get().labels)
    reporter = NodeReporter(about, clients, reported, m.cri, m.recorder, m.clock, periods)
    seconds, others = (
        config.nodeLeaseDurationSeconds,
        (cluster.client, cluster.events, cluster.token_reviews, cluster.access_reviews),
    )
    lease = LeaseLoop(cluster.heartbeat, cells.node.cell, state, m.clock, seconds, others)
    m.recorder.post(normal(EVENT_STARTING, "Starting kubelet."))
    csi_node = keep_csi_node(cluster.client, cells.node.cell)
    return [("node-report", reporter.run()), ("lease", lease.run()), ("csi-node", csi_node)]


def registration(settings: Settings, machine: Machine, labels: Mapping[str, str]) -> Registration:
    """How the node presents itself."""
    config, flags = settings.config, settings.flags
    name = settings.node_name(machine.hostname)
    info = NodeSystemInfo(
        architecture=machine.architecture,
        bootID=machine.boot_id,
        kernelVersion=machine.kernel_version,
        kubeletVersion=FULL,
        machineID=machine.machine_id,
        operatingSystem="linux",
        osImage=machine.os_image,
        swap=NodeSwapStatus(capacity=machine.swap_bytes) if machine.swap_bytes else None,
        systemUUID=machine.system_uuid,
    )
    taints = config.registerWithTaints
    return Registration(
        name=name,
        hostname=name,
        labels=labels,
        taints=tuple(Taint(key=taint.key, value=taint.value, effect=taint.effect) for taint in taints),
        register=config.registerNode is not False,
        provider_id=config.providerID,
        external_cloud=flags.cloud_provider == "external",
        node_ips=flags.node_ip,
        controller_attach=config.enableControllerAttachDetach is not False,
        info=info,
        port=config.port,
        features=settings.declared_features,
        max_images=50 if config.nodeStatusMaxImages is None else config.nodeStatusMaxImages,
        reset_extended=stat_file(f"{settings.root_dir}/{DEVICE_CHECKPOINT}") is None,
        root_dir=settings.root_dir,
        local_storage=config.localStorageCapacityIsolation is not False,
    )


def wire_content(m: Machinery, cells: Cells, cluster: Cluster) -> Loops:
    """edges/content: what pods refer to; writes Content, which says from now on that there is somebody to ask."""
    config, writer = m.settings.config, cells.content.writer
    strategy = Strategy(config.configMapAndSecretChangeDetectionStrategy)
    settings = ContentSettings(strategy, reread_s=m.settings.sync_frequency_s)
    roster, node = cells.roster.cell, cells.node.cell
    content = ContentLoop(
        roster, writer, cluster.client, m.clock, settings, node, lambda pod: pod_needs(pod, volume_keys)
    )
    return [("content", content.run())]


def pull_identity(m: Machinery, cluster: Cluster) -> PullIdentity:
    """What credential providers are told about a pod's service account."""
    return PullIdentity(cluster.client, m.clock)


def wire_api_source(m: Machinery, cells: Cells, cluster: Cluster) -> Loops:
    """desired/sources: the pods bound to this node; writes ApiPods and posts to the roster."""
    node = cells.node.cell
    listed = follow(cluster.client, PODS_PATH, Pod, m.clock, field_selector=pods_of_node(node.get().name))
    source = ApiSource(listed, node, m.pod_updates, cells.api_pods.writer, m.clock)
    return [("api-pods", source.run())]


def wire_cluster_report(m: Machinery, cells: Cells, cluster: Cluster) -> Loops:
    """report: statuses, last deletions and Events to the API server, mirror pods."""
    roster, lifecycles, api = cells.roster.cell, cells.lifecycles.cell, cells.api_state.cell
    inputs = PublishInputs(cells.api_pods.cell, roster, cells.statuses.cell, lifecycles, api)
    publisher = StatusPublisher(cluster.client, inputs, cells.report_waits.writer, m.clock)
    events = EventSender(cluster.events, m.outbox, roster, lifecycles, cells.node.cell, m.clock)
    mirrors = MirrorsLoop(cluster.client, MirrorInputs(roster, lifecycles, cells.node.cell, api), m.clock)
    return [("publisher", publisher.run()), ("mirrors", mirrors.run()), ("event-sender", events.run())]
