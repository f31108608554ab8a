"""The wiring of the ports: which cell and which edge each answer is made from. Nothing is decided here."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from pykubelet.app.parts import Cells, Loops, Machinery
from pykubelet.app.prepare import StartError
from pykubelet.app.room_settings import paths_of, pull_waits
from pykubelet.app.version import FULL, KUBERNETES
from pykubelet.base.api.codec import encode
from pykubelet.base.config.schema import to_plain
from pykubelet.base.config.settings import Settings
from pykubelet.base.model.node import NodeView
from pykubelet.edges.cri.log_reader import LogReader
from pykubelet.edges.host.errors import HostError
from pykubelet.edges.host.machine import Machine
from pykubelet.edges.host.notify import notify, watchdog_interval_s
from pykubelet.edges.identity.server_tls import ServerTls, TlsRules
from pykubelet.edges.identity.serving import ServingChoice, ensure_self_signed, needs_self_signed, serving_files
from pykubelet.edges.rpc.server import RpcServer
from pykubelet.report.server.api_routes import ApiRoutes, configz_answer, pods_answer, running_pods_answer
from pykubelet.report.server.container_logs import ContainerLogs
from pykubelet.report.server.counted import READ_ONLY, READ_WRITE, counted
from pykubelet.report.server.debug import Checkpoints, Debugging, DebugSettings, stories
from pykubelet.report.server.explain.documents import AskInputs, ask_routes
from pykubelet.report.server.gate import Gate, Reviewers, gate_rules
from pykubelet.report.server.health import PATH as HEALTH_PATH
from pykubelet.report.server.health import Check, default_checks, ping_check
from pykubelet.report.server.http.client_hello import ContextsByGroup
from pykubelet.report.server.http.listen import (
    ListenError,
    keep_serving_port,
    open_required_port,
    serve_port,
    serve_rpc_socket,
    serve_socket,
    serve_tls,
)
from pykubelet.report.server.http.server import JSON, Request, Response, Route, plain
from pykubelet.report.server.known_pods import KnownPods
from pykubelet.report.server.metrics.cadvisor import MachineFacts
from pykubelet.report.server.metrics.kubelet import Told
from pykubelet.report.server.metrics.routes import StatsRoutes, agent_metrics, health_metrics, probe_metrics
from pykubelet.report.server.node_logs import NodeLogs
from pykubelet.report.server.page.door import PageDoor, Sessions
from pykubelet.report.server.page.history import History
from pykubelet.report.server.page.serve import NodePage
from pykubelet.report.server.pod_resources import PodResources
from pykubelet.report.server.routes import (
    GET,
    POST,
    PUT,
    STREAM,
    Ask,
    OpenRoutes,
    Path,
    answering,
    health_routes,
    open_handler,
)
from pykubelet.report.server.streams import Streams
from pykubelet.report.server.turning import TurningInputs, syncloop_check
from pykubelet.report.server.watchdog import tell_service_manager
from pykubelet.report.server.zpages import Facts, ZPages


def serving_choice(settings: Settings) -> ServingChoice:
    config = settings.config
    return ServingChoice(
        cert_dir=settings.flags.cert_dir,
        certificate=config.tlsCertFile,
        key=config.tlsPrivateKeyFile,
        client_ca=config.authentication.x509.clientCAFile,
        bootstrap=config.serverTLSBootstrap and not settings.standalone,
    )


def wire_ports(m: Machinery, cells: Cells, reviewers: Reviewers | None) -> Loops:
    """The health port, the read-only port, the authenticated port, and the socket for people on the machine.

    `reviewers`: the API server's clients, None without one. Raises StartError where a port cannot be had.
    """
    listening = open_ports(m.settings)
    config, checks = m.settings.config, health_checks(m, cells)
    asked = asked_cells(cells)
    history = History(cells.usage.cell, m.usage_wanted, m.clock)
    page = NodePage(asked, cells.usage.cell, history, m.cri, m.clock, FULL)
    page_port = m.settings.flags.cadvisor_port
    sessions = Sessions(m.clock)
    door = PageDoor(page.ask, sessions, m.clock, page_port) if page_port else None
    explained = ask_routes(asked, m.clock)
    loops: Loops = [("socket", serve_socket(plain(with_link(explained, door)), paths_of(m.settings).socket))]
    if door is not None:
        loops.append(("history", history.run()))
        loops.append(("page", keep_serving_port(door.handle, "127.0.0.1", page_port, "the node's page")))
    if config.healthzPort:
        health = health_routes(ping_check())
        loops.append(
            ("healthz", keep_serving_port(health, config.healthzBindAddress, config.healthzPort, "health checks"))
        )
    pods = KnownPods(cells.roster.cell, cells.lifecycles.cell, cells.observed.cell, cells.statuses.cell)
    resources = RpcServer(PodResources(pods, m.clock).methods())
    path = f"{m.settings.root_dir}/pod-resources/kubelet.sock"
    loops.append(("pod-resources", serve_rpc_socket(resources, path, "pod resources")))
    loops.append(("service-manager", tell_service_manager(checks, watchdog_interval(m.settings), notify)))
    node = cells.node.cell.get()
    stats = StatsRoutes(cells.usage.cell, m.usage_wanted, m.clock, node.name, m.clock.wall(), machine_facts(m.machine))
    shown = shown_paths(pods, stats) | metrics_paths(m, cells, checks)
    if "readOnlyPort" in listening:
        handler = counted(open_handler(OpenRoutes(checks, shown)), READ_ONLY)
        loops.append(("read-only", serve_port(handler, listening["readOnlyPort"], "the read-only port")))
    if "port" in listening:
        gate = Gate(gate_rules(node.name, config.authentication, config.authorization), reviewers, m.clock)
        told = stories(explained, pods)
        routes = api_routes(m, pods, gate, (shown, checks), told, page if door is not None else None)
        loops += wire_server(m, node, routes, listening["port"])
    return loops


def health_checks(m: Machinery, cells: Cells) -> dict[str, Check]:
    turns = (cells.roster_turn.cell, cells.pods_turn.cell)
    inputs = TurningInputs(turns, cells.observed.cell, m.settings.sync_frequency_s)
    return {**default_checks(), "syncloop": syncloop_check(inputs, m.clock)}


def watchdog_interval(settings: Settings) -> float:
    """Raises StartError."""
    if not settings.enabled("SystemdWatchdog"):
        return 0.0
    try:
        return watchdog_interval_s()
    except HostError as error:
        raise StartError(str(error)) from error


def with_link(route: Route, door: PageDoor | None) -> Route:
    """The socket's answers, and links to the page where there is one."""

    def answer(request: Request) -> Response:
        if request.path == "/page-link" and door is not None:
            return Response(200, encode({"link": door.link()}), JSON)
        return route(request)

    return answer


def asked_cells(cells: Cells) -> AskInputs:
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
        more_waits=lambda pod: [
            *pull_waits(cells.pulls.cell.get(), pod),
            *cells.probe_waits.cell.get().pods.get(pod.uid, ()),
            *cells.report_waits.cell.get().pods.get(pod.uid, ()),
        ],
    )


def shown_paths(pods: KnownPods, stats: StatsRoutes) -> dict[str, Path]:
    """What the read-only port shows too."""
    listed = Path(answering(lambda: pods_answer(pods)), GET)
    summary = Path(stats.summary, STREAM | GET)
    return {
        "/pods": listed,
        "/pods/": listed,
        "/stats/summary": summary,
        "/stats/summary/": summary,
        "/metrics/resource": Path(stats.resource_metrics, GET),
        "/metrics/cadvisor": Path(stats.cadvisor_metrics, GET),
    }


def metrics_paths(m: Machinery, cells: Cells, checks: Mapping[str, Check]) -> dict[str, Path]:
    """What is counted, and what the cells say at the moment of the scrape."""
    gates = m.settings.gates.all()

    def told() -> Told:
        return Told(
            roster=cells.roster.cell.get(),
            lifecycles=cells.lifecycles.cell.get(),
            observed=cells.observed.cell.get(),
            statuses=cells.statuses.cell.get(),
            node=cells.node.cell.get(),
            gates=gates,
            version=KUBERNETES,
            cgroup_version=int(m.cgroups.version),
            credentials=cells.credentials.cell.get(),
            now=m.clock.wall(),
            mounts=cells.mounts.cell.get(),
            usage=cells.usage.cell.get(),
        )

    return {
        "/metrics": Path(agent_metrics(told), GET),
        "/metrics/probes": Path(probe_metrics, GET),
        "/metrics/slis": Path(health_metrics(checks), GET),
    }


def machine_facts(machine: Machine) -> MachineFacts:
    """As cAdvisor tells it."""
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


def api_routes(
    m: Machinery,
    pods: KnownPods,
    gate: Gate,
    open_to_all: tuple[Mapping[str, Path], Mapping[str, Check]],
    told: Ask,
    page: NodePage | None,
) -> ApiRoutes:
    """Every path of the authenticated port and who answers it. `open_to_all`: the read-only port's paths, and checks."""
    shown, checks = open_to_all
    settings, config = m.settings, m.settings.config
    websockets = settings.enabled("ExtendWebSocketsToKubelet")
    streams = Streams(pods, m.cri, config.streamingConnectionIdleTimeout.s, websockets=websockets)
    split = settings.enabled("PodLogsQuerySplitStreams")
    logs = ContainerLogs(pods, LogReader(m.flight), m.clock, split_streams=split)
    configz = configz_answer(to_plain(config))
    exact = dict(shown)
    below = {
        "/exec/": Path(streams.exec, STREAM),
        "/attach/": Path(streams.attach, STREAM),
        "/portForward/": Path(streams.port_forward, STREAM),
        "/run/": Path(streams.run, POST),
        "/containerLogs/": Path(logs.answer, GET),
        "/runningpods/": Path(answering(lambda: running_pods_answer(pods.observed)), GET),
    }
    debugging = bool(config.enableDebuggingHandlers)
    if debugging:
        exact["/configz"] = Path(answering(lambda: configz), GET)
        debug = Debugging(
            DebugSettings(
                profiling=bool(config.enableProfilingHandler), flags_handler=bool(config.enableDebugFlagsHandler)
            )
        )
        exact["/debug/flags/v"] = Path(debug.verbosity, PUT)
        below["/debug/pprof/"] = Path(debug.pprof, GET)
        below["/debug/pods/"] = Path(told, GET)
        exact["/debug/node"] = Path(told, GET)
        queries = bool(config.enableSystemLogQuery) and settings.enabled("NodeLogQuery")
        node_logs = NodeLogs(m.flight, enabled=bool(config.enableSystemLogHandler), queries=queries)
        below["/logs/"] = Path(node_logs.answer, GET)
        if page is not None:
            below["/page/"] = Path(page.ask, GET)
        if settings.enabled("ContainerCheckpoint"):
            below["/checkpoint/"] = Path(Checkpoints(pods, m.cri, settings.root_dir, m.flight, m.clock).answer, POST)
        exact |= about_itself(m, (HEALTH_PATH, *exact, *below))
    return ApiRoutes(gate, OpenRoutes(checks, exact, below, debugging=debugging))


def about_itself(m: Machinery, paths: tuple[str, ...]) -> dict[str, Path]:
    """What the agent says of its flags, and of itself and all its paths; `paths`: those that there are beside."""
    enabled = m.settings.enabled
    there = {"/flagz": enabled("ComponentFlagz"), "/statusz": enabled("ComponentStatusz")}
    names = [name for name, is_there in there.items() if is_there]
    zpages = ZPages(page_facts(m, (*paths, *names)), m.clock)
    asks = {"/flagz": zpages.flagz, "/statusz": zpages.statusz}
    return {name: Path(asks[name], GET) for name in names}


def page_facts(m: Machinery, paths: tuple[str, ...]) -> Facts:
    flags = m.settings.flags
    return Facts(
        flags={name.replace("_", "-"): str(getattr(flags, name)) for name in flags.__struct_fields__},
        version=KUBERNETES,
        started_at=m.clock.wall(),
        paths=tuple(sorted(paths)),
    )


def open_ports(settings: Settings) -> dict[str, socket.socket]:
    """The ports without which there is no agent, by the setting that gives them. Raises StartError."""
    config = settings.config
    wanted = {"port": config.port if config.enableServer else 0, "readOnlyPort": config.readOnlyPort}
    opened: dict[str, socket.socket] = {}
    try:
        for setting, port in wanted.items():
            if port:
                opened[setting] = open_required_port(setting, config.address, port)
    except ListenError as error:
        for one in opened.values():
            one.close()
        raise StartError(str(error)) from error
    return opened


def wire_server(m: Machinery, node: NodeView, routes: ApiRoutes, listening: socket.socket) -> Loops:
    """The authenticated port and its certificate."""
    config = m.settings.config
    choice = serving_choice(m.settings)
    files = serving_files(choice)
    rules = TlsRules(config.tlsMinVersion, config.tlsCipherSuites, frozenset(config.tlsCurvePreferences))
    tls = ServerTls(files, rules, m.clock)
    context = ContextsByGroup(tls.contexts) if len(tls.contexts) > 1 else tls.context
    made = ensure_self_signed(files, node.name, node.ips, m.flight) if needs_self_signed(choice) else None
    handler, idle_s = counted(routes.handle, READ_WRITE), config.streamingConnectionIdleTimeout.s
    return [("server", serve_tls(handler, listening, context, made, idle_s))]
