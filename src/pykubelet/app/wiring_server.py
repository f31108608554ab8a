"""The wiring of the ports: the cells and adapters that their endpoints (`serve/endpoints/table.py`) read."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from functools import cache, partial

from pykubelet.app.parts import Cells, Loops, Points, SharedParts
from pykubelet.app.prepare import AgentStartError
from pykubelet.app.version import build_labels
from pykubelet.base.api.codec import encode
from pykubelet.base.kit.cells import Post
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.values import replace
from pykubelet.base.model.extensions import ExtensionWanted
from pykubelet.base.model.node import NodeView
from pykubelet.config.settings import Settings
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.host.proc.machine import Machine
from pykubelet.edges.host.services.notify import notify, watchdog_interval_s
from pykubelet.edges.host.services.unix_socket import keep_serving_socket
from pykubelet.edges.identity.server_tls import ServerTls, TlsRules, given_files_problem
from pykubelet.edges.identity.serving import ServingChoice, ensure_self_signed, needs_self_signed, serving_files
from pykubelet.net.grpc.server import RpcServer
from pykubelet.net.grpc.services import Services
from pykubelet.net.http.client_hello import ContextsByGroup
from pykubelet.net.http.server import JSON, Answer, Handler, Request, Response, ServedConnection
from pykubelet.serve.auth.auth_filter import AuthFilter, Reviewers, auth_rules
from pykubelet.serve.endpoints.api_routes import ApiHandler
from pykubelet.serve.endpoints.browsers import for_own_hosts, node_names
from pykubelet.serve.endpoints.contention import Contention
from pykubelet.serve.endpoints.counted import READ_ONLY, READ_WRITE, counted
from pykubelet.serve.endpoints.endpoint import authorization_rules, metric_labels
from pykubelet.serve.endpoints.health import Check, SyncLoopInputs, default_checks, ping_check, syncloop_check
from pykubelet.serve.endpoints.known_pods import KnownPods
from pykubelet.serve.endpoints.pod_resources import PodResources, ResourceCells
from pykubelet.serve.endpoints.pods_api import LIMITS, PodsApi
from pykubelet.serve.endpoints.routes import api_router, health_routes, read_only_router, unauthenticated_handler
from pykubelet.serve.endpoints.table import ENDPOINTS, EndpointInputs
from pykubelet.serve.endpoints.watchdog import notify_service_manager
from pykubelet.serve.explain.documents import (
    AskInputs,
    DiagnosticCells,
    EvictionCells,
    ExplainRoute,
    PlacementCells,
    StorageCells,
    ask_routes,
)
from pykubelet.serve.explain.volumes import VolumeSearch
from pykubelet.serve.listen import (
    ListenError,
    keep_serving_port,
    open_required_port,
    serve_port,
    serve_socket,
    serve_tls,
)
from pykubelet.serve.metrics.cadvisor import MachineFacts
from pykubelet.serve.metrics.kubelet import MetricsInputs
from pykubelet.serve.metrics.routes import StatsRoutes, UsageRules
from pykubelet.serve.page.history import History
from pykubelet.serve.page.login import LoopbackPage, Sessions
from pykubelet.serve.page.serve import NodePage

EXTENSION_PATH = "/extensions/"
#: The name of the loop that answers health checks.
HEALTH_PORT = "healthz"


def serving_choice(settings: Settings) -> ServingChoice:
    """The source of the serving certificate: files, the API server, or the agent itself."""
    config = settings.config
    return ServingChoice(
        cert_dir=settings.flags.cert_dir,
        certificate=config.tlsCertFile,
        key=config.tlsPrivateKeyFile,
        client_ca=config.authentication.x509.clientCAFile,
        bootstrap=config.serverTLSBootstrap and not settings.standalone,
    )


def wire_ports(m: SharedParts, cells: Cells, reviewers: Reviewers | None, points: Points) -> Loops:
    """The health port, the read-only port, the authenticated port, and the root-only socket for users on the machine.

    `reviewers`: clients of the API server; None without one. Raises AgentStartError if a required port cannot be opened.
    """
    check_given_files(m.settings)
    listening = open_ports(m.settings)
    config, checks = m.settings.config, health_checks(m, cells)
    documents = explain_inputs(m, cells, points)
    history = History(cells.usage.cell, m.usage_wanted, m.clock)
    page = NodePage(documents, cells.usage.cell, history, m.cri, m.clock, m.settings.version)
    page_port = m.settings.flags.cadvisor_port
    sessions = Sessions(m.clock)
    loopback_page = LoopbackPage(page.ask, sessions, m.clock, page_port) if page_port else None
    explained = ask_routes(documents, m.clock)
    loops: Loops = [
        ("socket", serve_socket(socket_handler(explained, loopback_page, m.extensions_wanted), m.settings.paths.socket))
    ]
    if loopback_page is not None:
        loops.append(("history", history.run()))
        loops.append(("page", keep_serving_port(loopback_page.handle, "127.0.0.1", page_port, "the node's page")))
    if config.healthzPort:
        health = health_routes(ping_check())
        loops.append(
            (HEALTH_PORT, keep_serving_port(health, config.healthzBindAddress, config.healthzPort, "health checks"))
        )
    pods = KnownPods(cells.roster.cell, cells.lifecycles.cell, cells.observed.cell, cells.statuses.cell)
    resources = RpcServer(Services(PodResources(pods, resource_cells(m, cells), m.clock).methods()))
    path = f"{m.settings.flags.root_dir}/pod-resources/kubelet.sock"
    loops.append(("pod-resources", keep_serving_socket(resources.serve, path, "pod resources")))
    loops += wire_pods_api(m.settings, pods, m.clock)
    loops.append(("service-manager", notify_service_manager(checks, watchdog_interval(m.settings), notify)))
    node, paths = cells.node.cell.get(), metric_labels(ENDPOINTS)
    inputs = endpoint_inputs(m, cells, pods, checks, explained, page)
    if "port" in listening and config.enableContentionProfiling and config.enableProfilingHandler:
        contention = Contention()
        inputs = replace(inputs, contention=contention)
        loops.append(("contention", contention.watch()))
    if "readOnlyPort" in listening:
        handler = unauthenticated_handler(read_only_router(ENDPOINTS, inputs))
        handler = for_own_hosts(handler, lambda: node_names(cells.node.cell.get()))
        handler = counted(handler, READ_ONLY, paths)
        loops.append(("read-only", serve_port(handler, listening["readOnlyPort"], "the read-only port")))
    if "port" in listening:
        auth = AuthFilter(auth_rules(node.name, config, authorization_rules(ENDPOINTS)), reviewers, m.clock)
        api = ApiHandler(auth, api_router(ENDPOINTS, m.settings, inputs))
        loops += wire_server(m, node, counted(api.handle, READ_WRITE, paths), listening["port"])
    return loops


def wire_pods_api(settings: Settings, pods: KnownPods, clock: Clock) -> Loops:
    """The socket of the Pods API. With the gate off, it depends on the release whether clients get an error or find no socket."""
    enabled = settings.enabled("PodsAPI")
    if not enabled and not settings.behavior.is_pods_api_always_served:
        return []
    api = PodsApi(pods, clock, enabled=enabled)
    server, path = RpcServer(api.services(), LIMITS), f"{settings.flags.root_dir}/pods-api/pods-api.sock"
    return [("pods-api", keep_serving_socket(server.serve, path, "the Pods API"))]


def resource_cells(m: SharedParts, cells: Cells) -> ResourceCells:
    """What the pod resources API reads."""
    active_only = m.settings.enabled("KubeletPodResourcesListUseActivePods")
    return ResourceCells(cells.placements.cell, cells.claims.cell, active_only)


def endpoint_inputs(
    m: SharedParts, cells: Cells, pods: KnownPods, checks: Mapping[str, Check], explained: ExplainRoute, page: NodePage
) -> EndpointInputs:
    """The inputs of the handlers in the endpoint table."""
    started_at, gates = m.clock.wall(), cache(m.settings.gates.all)
    node, machine = cells.node.cell.get().name, machine_facts(m.machine)
    return EndpointInputs(
        settings=m.settings,
        clock=m.clock,
        flight=m.flight,
        runtime=m.cri,
        pods=pods,
        checks=checks,
        usage=StatsRoutes(
            cells.usage.cell, m.usage_wanted, m.clock, node, started_at, machine, usage_rules(m.settings)
        ),
        metrics=partial(metrics_inputs, m, cells, gates),
        explain=explained,
        page=page,
        started_at=started_at,
    )


def usage_rules(settings: Settings) -> UsageRules:
    """The rules of the endpoints that serve usage."""
    return UsageRules(settings.usage_max_age_s, with_hidden=bool(settings.config.showHiddenMetricsForVersion))


def health_checks(m: SharedParts, cells: Cells) -> dict[str, Check]:
    """The checks of `/healthz`, by name."""
    heartbeats = (cells.roster_heartbeat.cell, cells.pods_heartbeat.cell)
    inputs = SyncLoopInputs(heartbeats, cells.observed.cell, m.settings.config.syncFrequency.s)
    return {**default_checks(), "syncloop": syncloop_check(inputs, m.clock)}


def watchdog_interval(settings: Settings) -> float:
    """The interval of systemd's watchdog in seconds; 0 if the gate SystemdWatchdog is off. Raises AgentStartError."""
    if not settings.enabled("SystemdWatchdog"):
        return 0.0
    try:
        return watchdog_interval_s()
    except HostError as error:
        raise AgentStartError(str(error)) from error


def socket_handler(
    explained: ExplainRoute, loopback_page: LoopbackPage | None, wanted: Post[ExtensionWanted] | None = None
) -> Handler:
    """The handler of the root-only socket: the link to the page for `/page-link`, else the answer of `explained`.

    A POST to `/extensions/NAME` has an extension enabled that is off.
    """

    async def handle(request: Request, _: ServedConnection) -> Answer:
        if request.method == "POST" and request.path.startswith(EXTENSION_PATH) and wanted is not None:
            wanted.post(ExtensionWanted(request.path.removeprefix(EXTENSION_PATH)))
            return Response(202, b"{}", JSON)
        if request.path == "/page-link" and loopback_page is not None:
            return Response(200, encode({"link": loopback_page.link()}), JSON)
        return await explained(request)

    return handle


def explain_inputs(m: SharedParts, cells: Cells, points: Points) -> AskInputs:
    """The cells behind the answers of `pykubelet explain`."""
    return AskInputs(
        roster=cells.roster.cell,
        lifecycles=cells.lifecycles.cell,
        observed=cells.observed.cell,
        mounts=cells.mounts.cell,
        statuses=cells.statuses.cell,
        recent=cells.recent.cell,
        node=cells.node.cell,
        runtime=cells.runtime.cell,
        api=cells.api_state.cell,
        credentials=cells.credentials.cell,
        eviction=EvictionCells(
            cells.signals.cell, cells.evictions.cell, cells.usage.cell, m.usage_wanted, points.rank_for_eviction
        ),
        placement=PlacementCells(cells.placements.cell, cells.claims.cell),
        plugins=cells.plugins.cell,
        storage=StorageCells(cells.api_node.cell, cells.content.cell, VolumeSearch(m.settings.paths, m.volume_flight)),
        diagnostics=DiagnosticCells(
            cells.pod_diagnostics.cell,
            cells.placement_diagnostics.cell,
            cells.volume_diagnostics.cell,
            (cells.image_diagnostics.cell, cells.probe_diagnostics.cell, cells.status_diagnostics.cell),
        ),
        remarks=m.settings.remarks,
        extensions=cells.extensions.cell,
    )


def metrics_inputs(m: SharedParts, cells: Cells, gates: Callable[[], Mapping[str, tuple[bool, str]]]) -> MetricsInputs:
    """The values of the cells at the time of the scrape. `gates`: every feature gate of the release, whether it is on, and its stage."""
    from pykubelet.provide.volumes.plan import PLUGINS  # all kinds of volumes; the health port does not wait for them

    return MetricsInputs(
        roster=cells.roster.cell.get(),
        lifecycles=cells.lifecycles.cell.get(),
        observed=cells.observed.cell.get(),
        statuses=cells.statuses.cell.get(),
        node=cells.node.cell.get(),
        gates=gates(),
        version=m.settings.kubernetes_version,
        release=m.settings.release,
        build=build_labels(),
        cgroup_version=int(m.cgroups.version),
        credentials=cells.credentials.cell.get(),
        now=m.clock.wall(),
        mounts=cells.mounts.cell.get(),
        usage=cells.usage.cell.get(),
        volume_plugins=PLUGINS,
        plugins=cells.plugins.cell.get(),
        claims=cells.claims.cell.get(),
        content=cells.content.cell.get(),
    )


def machine_facts(machine: Machine) -> MachineFacts:
    """The machine's facts, as cAdvisor reports them."""
    return MachineFacts(
        cores=machine.cpu_milli // 1000,
        physical_cores=machine.cores,
        sockets=machine.sockets,
        memory=machine.memory_bytes,
        swap=machine.swap_bytes,
        boot_id=machine.boot_id,
        machine_id=machine.machine_id,
        system_uuid=machine.system_uuid,
        kernel=machine.kernel_version,
        os=machine.os_image,
    )


def open_ports(settings: Settings) -> dict[str, socket.socket]:
    """Open the required ports. Returns the sockets by the setting of their port. Raises AgentStartError if one fails."""
    config = settings.config
    wanted = {"port": config.port if config.enableServer else 0, "readOnlyPort": config.readOnlyPort}
    opened: dict[str, socket.socket] = {}
    try:
        for setting, port in wanted.items():
            if port:
                opened[setting] = open_required_port(setting, config.address, port)
    except ListenError as error:
        for sock in opened.values():
            sock.close()
        raise AgentStartError(str(error)) from error
    return opened


def check_given_files(settings: Settings) -> None:
    """Check the configured certificates once at the start, as the reference does. Raises AgentStartError."""
    choice = serving_choice(settings)
    if settings.config.enableServer:
        problem = given_files_problem(choice.certificate, choice.key, choice.client_ca)
        if problem:
            raise AgentStartError(problem)


def wire_server(m: SharedParts, node: NodeView, handler: Handler, listening: socket.socket) -> Loops:
    """The authenticated port and its certificate."""
    config = m.settings.config
    choice = serving_choice(m.settings)
    files = serving_files(choice)
    rules = TlsRules(config.tlsMinVersion, config.tlsCipherSuites, frozenset(config.tlsCurvePreferences))
    tls = ServerTls(files, rules, m.clock)
    context = ContextsByGroup(tls.contexts) if len(tls.contexts) > 1 else tls.context
    made = ensure_self_signed(files, node.name, node.ips, m.flight) if needs_self_signed(choice) else None
    idle_s = config.streamingConnectionIdleTimeout.s
    return [("server", serve_tls(handler, listening, context, made, idle_s))]
