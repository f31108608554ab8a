"""The wiring of a node in a cluster: the components that exist only with a kubeconfig. It contains no logic.

It is imported only then, so that a standalone node does not pay for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pykubelet.app.parts import Cells, Loops, SharedParts
from pykubelet.app.prepare import AgentStartError
from pykubelet.app.version import user_agent
from pykubelet.app.wiring_server import serving_choice
from pykubelet.base.api.core import NodeSwapStatus, NodeSystemInfo, Pod, Taint
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.kube_events import normal
from pykubelet.base.model.needs import pod_needs
from pykubelet.base.model.node import ApiState
from pykubelet.base.model.reasons import EVENT_STARTING
from pykubelet.config.settings import Settings
from pykubelet.desired.sources.api import PODS_PATH, ApiSource, pods_of_node
from pykubelet.edges.host.fs.files import stat_file
from pykubelet.edges.host.proc.machine import Machine
from pykubelet.edges.identity.bootstrap import ApiAccess, BootstrapClient, choose_access, first_pair, write_when_issued
from pykubelet.edges.identity.decide import client_certificate, serving_certificate
from pykubelet.edges.identity.keys import make_stub_requests
from pykubelet.edges.identity.rotation import CertificateLoop, CertificateSigners, IssuePeriods
from pykubelet.edges.identity.store import CertificateStore
from pykubelet.edges.kubeapi.client import ApiClient, ClientLimits
from pykubelet.edges.kubeapi.kubeconfig import KubeconfigError, Pem
from pykubelet.edges.kubeapi.listwatch import follow
from pykubelet.edges.plugins.pull_identity import PullIdentity
from pykubelet.provide.objects.certificates import CertificateTools
from pykubelet.provide.objects.loop import ContentLoop
from pykubelet.provide.objects.model import ContentInputs, ContentSettings, Strategy
from pykubelet.provide.placement.devices.device_checkpoint import FILE_NAME
from pykubelet.provide.volumes.plan import volume_keys
from pykubelet.report.events.send import EventPeriods, EventSender
from pykubelet.report.mirrors.loop import MirrorInputs, MirrorPeriods, MirrorsLoop
from pykubelet.report.node.api_node import ReporterClients
from pykubelet.report.node.csi_node import CsiNodeKeeper
from pykubelet.report.node.lease import LeaseLoop, LeasePeriods
from pykubelet.report.node.model import NodePeriods, NodeRegistration
from pykubelet.report.node.reporter import NodeReporter, ReporterCells
from pykubelet.report.status.publish import PublishInputs, StatusPublisher
from pykubelet.report.status.records import PublishPeriods
from pykubelet.serve.auth.auth_filter import Reviewers

#: The longest wait, in seconds, before a TokenReview is sent. It is limited because any client can send tokens.
LONGEST_REVIEW_WAIT_S = 2.0


class Cluster(Value):
    """The clients of the API server. `heartbeat`: for the Lease and the node's status, so that no other request delays them.

    `events`: has the rate limits of Events. `token_reviews`, `access_reviews`: for the authenticated port. `bootstrap`: for a
    node without a certificate. `close` ends the connections; the loops must have ended before.
    """

    access: ApiAccess
    client: ApiClient
    heartbeat: ApiClient
    events: ApiClient
    token_reviews: ApiClient
    access_reviews: ApiClient
    bootstrap: BootstrapClient | None = None

    async def close(self) -> None:
        """Close all connections to the API server."""
        reviews = self.token_reviews, self.access_reviews
        for client in (self.client, self.heartbeat, self.events, *reviews, self.bootstrap):
            if client is not None:
                await client.close()

    @property
    def reviewers(self) -> Reviewers:
        """The clients for reviews. Unauthenticated clients can send many tokens, so TokenReviews have their own rate limit."""
        return Reviewers(self.token_reviews, self.access_reviews)

    def pull_identity(self, m: SharedParts) -> PullIdentity:
        """The service account data that credential providers get about a pod (KEP-4412)."""
        return PullIdentity(self.client, m.clock)

    def wire_identity(self, m: SharedParts, cells: Cells) -> Loops:
        """edges/identity: the certificates that the agent requests from the API server; writes Credentials."""
        settings, access = m.settings, self.access
        name = cells.node.cell.get().name
        writer, tools = cells.credentials.writer, (m.clock, m.flight)
        loops: Loops = []
        if keeps_client_certificate(settings, access):
            client = CertificateLoop(
                client_certificate(name),
                client_store(settings),
                CertificateSigners(self.client, self.bootstrap),
                (writer, None),
                tools,
                IssuePeriods(look=m.periods.certificates_s, rotates=settings.config.rotateCertificates),
                first_pair(access.access),
            )
            loops.append(("client-certificate", client.run()))
        if access.writes:
            path, credentials = settings.flags.kubeconfig, cells.credentials.cell
            loops.append(("kubeconfig", write_when_issued(path, access.access, credentials, m.flight)))
        serving = serving_choice(settings)
        if serving.bootstrap and not serving.certificate and settings.enabled("RotateKubeletServerCertificate"):
            store = CertificateStore(settings.flags.cert_dir, "kubelet-server")
            ends = (writer, cells.node.cell)
            periods = IssuePeriods(look=m.periods.certificates_s)
            server = CertificateLoop(
                serving_certificate(name, dns_only=settings.enabled("AllowDNSOnlyNodeCSR")),
                store,
                CertificateSigners(self.client),
                ends,
                tools,
                periods,
            )
            loops.append(("serving-certificate", server.run()))
        return loops

    def wire_node(self, m: SharedParts, cells: Cells) -> Loops:
        """report/node: registration, node status and Lease; writes ApiNode and ApiState."""
        config = m.settings.config
        cells.api_state.writer.publish(ApiState(self.client.access.server))
        periods = NodePeriods(
            update=config.nodeStatusUpdateFrequency.s,
            report=config.nodeStatusReportFrequency.s,
            images=m.periods.images_s,
            retry_max=m.periods.node_retry_max_s,
            watch=m.periods.watch,
        )
        clients = ReporterClients(watching=self.client, reporting=self.heartbeat)
        state, node, api_node = cells.api_state.writer, cells.node.cell, cells.api_node
        runtime, pressure, shutdown = cells.runtime.cell, cells.pressure.cell, cells.shutdown.cell
        reported = ReporterCells(
            node, api_node.writer, runtime, pressure, shutdown, cells.mounts.cell, m.node_wanted, state
        )
        about = registration(m.settings, m.machine, node.get().labels)
        reporter = NodeReporter(about, clients, reported, m.cri, m.recorder, m.clock, periods)
        lease_periods = LeasePeriods(config.nodeLeaseDurationSeconds, m.periods.node_retry_max_s)
        others = (self.client, self.events, self.token_reviews, self.access_reviews)
        lease = LeaseLoop(self.heartbeat, about.name, api_node.cell, state, m.clock, lease_periods, others)
        m.recorder.post(normal(EVENT_STARTING, "Starting kubelet."))
        csi_node = CsiNodeKeeper(
            self.client, about.name, api_node.cell, cells.plugins.cell, m.clock, m.periods.watch, cells.mounts.cell
        )
        return [("node-report", reporter.run()), ("lease", lease.run()), ("csi-node", csi_node.run())]

    def wire_content(self, m: SharedParts, cells: Cells) -> Loops:
        """provide/objects: the API objects that pods refer to; writes Content."""
        config, writer = m.settings.config, cells.content.writer
        strategy = Strategy(config.configMapAndSecretChangeDetectionStrategy)
        settings = ContentSettings(
            strategy,
            reread_s=m.settings.config.syncFrequency.s,
            watch=m.periods.watch,
            node=cells.node.cell.get().name,
            trust_bundles=m.settings.enabled("ClusterTrustBundleProjection"),
            pod_certificates=m.settings.enabled("PodCertificateRequest"),
        )
        inputs = ContentInputs(cells.roster.cell, cells.api_node.cell)
        needs, issuing = (
            partial(pod_needs, volume_keys=volume_keys),
            CertificateTools(m.recorder, make_stub_requests),
        )
        content = ContentLoop(inputs, writer, self.client, m.clock, settings, needs, issuing)
        return [("content", content.run())]

    def wire_api_source(self, m: SharedParts, cells: Cells) -> Loops:
        """desired/sources: the pods bound to this node; writes ApiPods and posts to the roster."""
        node = cells.node.cell
        selector = pods_of_node(node.get().name)
        listed = follow(self.client, PODS_PATH, Pod, m.clock, field_selector=selector, periods=m.periods.watch)
        source = ApiSource(listed, node, m.pod_updates, cells.api_pods.writer, m.clock)
        return [("api-pods", source.run())]

    def wire_report(self, m: SharedParts, cells: Cells) -> Loops:
        """report: sends statuses, final deletions and Events to the API server, and keeps mirror pods."""
        roster, lifecycles, api = cells.roster.cell, cells.lifecycles.cell, cells.api_state.cell
        node, away_s = cells.node.cell, m.periods.status_retry_max_s
        event_periods = EventPeriods(retry_max_s=m.periods.event_retry_max_s)
        inputs = PublishInputs(cells.api_pods.cell, roster, cells.statuses.cell, lifecycles, api)
        publisher = StatusPublisher(
            self.client, inputs, cells.status_diagnostics.writer, m.clock, PublishPeriods(away_max_s=away_s)
        )
        events = EventSender(self.events, m.outbox, roster, cells.starts.cell, node, m.clock, event_periods)
        mirrored = MirrorInputs(roster, lifecycles, node, api, cells.api_pods.cell, cells.statuses.cell)
        mirrors = MirrorsLoop(self.client, mirrored, m.clock, MirrorPeriods(away_max_s=away_s))
        return [("publisher", publisher.run()), ("mirrors", mirrors.run()), ("event-sender", events.run())]


def join_cluster(settings: Settings, clock: Clock) -> Cluster:
    """The cluster that `--kubeconfig` names, or `--bootstrap-kubeconfig` while there is none. Raises AgentStartError."""
    config, flags = settings.config, settings.flags
    current = client_store(settings).current
    try:
        access = choose_access(flags.kubeconfig, flags.bootstrap_kubeconfig, current)
    except KubeconfigError as error:
        raise AgentStartError(f"invalid kubeconfig: {error}") from error
    rotated = Pem(current) if keeps_client_certificate(settings, access) else None
    agent, drops = user_agent(settings.version), settings.behavior.drops_managed_fields
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
        ApiClient(access.access, clock, limits, agent, rotated, drops_managed_fields=drops) for limits in every
    )
    bootstrap_client = None
    if access.bootstrap is not None:
        bootstrap_client = BootstrapClient(
            flags.bootstrap_kubeconfig,
            access.bootstrap,
            partial(ApiClient, clock=clock, limits=ClientLimits(), user_agent=agent),
        )
    return Cluster(access, client, heartbeat, events, tokens, rights, bootstrap_client)


def client_store(settings: Settings) -> CertificateStore:
    """The files of the client certificate in `--cert-dir`."""
    return CertificateStore(settings.flags.cert_dir, "kubelet-client")


def keeps_client_certificate(settings: Settings, access: ApiAccess) -> bool:
    """Whether the agent requests its client certificate itself: with `rotateCertificates`, and after a TLS
    bootstrap."""
    return settings.config.rotateCertificates or access.bootstrap is not None


def registration(settings: Settings, machine: Machine, labels: Mapping[str, str]) -> NodeRegistration:
    """The data with which the node registers."""
    config, flags = settings.config, settings.flags
    name = settings.node_name(machine.hostname)
    info = NodeSystemInfo(
        architecture=machine.architecture,
        bootID=machine.boot_id,
        kernelVersion=machine.kernel_version,
        kubeletVersion=settings.version,
        machineID=machine.machine_id,
        operatingSystem="linux",
        osImage=machine.os_image,
        runningInUserNamespace=machine.in_user_namespace if settings.behavior.is_user_namespace_reported else None,
        swap=NodeSwapStatus(capacity=machine.swap_bytes) if machine.swap_bytes else None,
        systemUUID=machine.system_uuid,
    )
    taints = config.registerWithTaints
    return NodeRegistration(
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
        # as long as this file exists, resources of device plugins from before a restart are known
        reset_extended=stat_file(f"{settings.paths.device_plugins}/{FILE_NAME}") is None,
        local_storage=config.localStorageCapacityIsolation is not False,
        reads_forbidden=not settings.enabled("KubeletRegistrationGetOnExistsOnly"),
        decimal_storage=settings.behavior.decimal_storage,
    )
