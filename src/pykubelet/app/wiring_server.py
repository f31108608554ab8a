"""The wiring of the authenticated port: which cell and which edge each of its answers is made from.

Nothing is decided here. Without `enableServer` none of it exists.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from pykubelet.base.config.schema import to_plain
from pykubelet.base.config.settings import Settings
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Flight
from pykubelet.base.model.node import NodeView
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.log_reader import LogReader
from pykubelet.edges.identity.server_tls import ServerTls, TlsRules
from pykubelet.edges.identity.serving import ServingChoice, ensure_self_signed, needs_self_signed, serving_files
from pykubelet.report.server.api_routes import (
    GET,
    POST,
    STREAM,
    ApiRoutes,
    Path,
    answering,
    configz_answer,
    pods_answer,
    running_pods_answer,
)
from pykubelet.report.server.container_logs import ContainerLogs
from pykubelet.report.server.gate import Gate, Reviewer, gate_rules
from pykubelet.report.server.health import default_checks
from pykubelet.report.server.known_pods import KnownPods
from pykubelet.report.server.listen import serve_tls
from pykubelet.report.server.streams import Streams

Loops = list[tuple[str, Coroutine[Any, Any, None]]]


def serving_choice(settings: Settings) -> ServingChoice:
    config = settings.config
    return ServingChoice(
        cert_dir=settings.flags.cert_dir,
        certificate=config.tlsCertFile,
        key=config.tlsPrivateKeyFile,
        client_ca=config.authentication.x509.clientCAFile,
        bootstrap=config.serverTLSBootstrap and not settings.standalone,
    )


def api_routes(
    settings: Settings, pods: KnownPods, cri: CriClient, gate: Gate, tools: tuple[Clock, Flight]
) -> ApiRoutes:
    """Every path and who answers it."""
    clock, flight = tools
    config = settings.config
    streams = Streams(pods, cri, config.streamingConnectionIdleTimeout.s)
    split = settings.enabled("PodLogsQuerySplitStreams")
    logs = ContainerLogs(pods, LogReader(flight), clock, split_streams=split)
    configz = configz_answer(to_plain(config))
    exact = {
        "/pods": Path(answering(lambda: pods_answer(pods)), GET),
        "/pods/": Path(answering(lambda: pods_answer(pods)), GET),
    }
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
    return ApiRoutes(gate, default_checks(), exact, below, debugging=debugging)


def wire_server(
    settings: Settings,
    node: NodeView,
    pods: KnownPods,
    cri: CriClient,
    tools: tuple[Clock, Flight],
    reviewer: Reviewer | None,
) -> Loops:
    """The port and its certificate. `reviewer`: the API server's client, None without one."""
    config = settings.config
    if not config.enableServer:
        return []
    clock, flight = tools
    choice = serving_choice(settings)
    files = serving_files(choice)
    rules = TlsRules(config.tlsMinVersion, config.tlsCipherSuites)
    gate = Gate(gate_rules(node.name, config.authentication, config.authorization), reviewer, clock)
    routes = api_routes(settings, pods, cri, gate, tools)
    tls = ServerTls(files, rules, clock)
    loops: Loops = [("server", serve_tls(routes.handle, config.address, config.port, tls.context))]
    if needs_self_signed(choice):
        loops.append(("serving-certificate", ensure_self_signed(files, node.name, node.ips, flight)))
    return loops
