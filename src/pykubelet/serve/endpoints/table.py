"""The endpoints of the authenticated port, the read-only port and the health port. To add one, add an entry to `ENDPOINTS`.

Routing, authorization, metric labels, `/statusz`, the groups that the configuration enables, and the tests of requests
without credentials are derived from the entries (`endpoint.py`, `routes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.kit.values import Value
from pykubelet.base.model.version import KUBERNETES
from pykubelet.config.settings import Settings
from pykubelet.config.shown import shown_safely
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.log_reader import LogReader
from pykubelet.serve.auth.access import Subresource
from pykubelet.serve.endpoints.api_routes import AllocatedPods, configz_answer, pods_answer, running_pods_answer
from pykubelet.serve.endpoints.container_logs import ContainerLogs
from pykubelet.serve.endpoints.contention import Contention
from pykubelet.serve.endpoints.debug import Checkpoints, Profiles, explain_handler, set_verbosity
from pykubelet.serve.endpoints.endpoint import (
    ANY,
    CORE,
    DEBUG_FLAGS,
    DEBUGGING,
    GET,
    GET_OR_POST,
    HIDDEN,
    OTHER,
    POST,
    PROFILING,
    PUT,
    SYSTEM_LOGS,
    Endpoint,
    EndpointHandler,
    listed_paths,
)
from pykubelet.serve.endpoints.health import PATH as HEALTH_PATH
from pykubelet.serve.endpoints.health import Check, health_handler
from pykubelet.serve.endpoints.known_pods import KnownPods
from pykubelet.serve.endpoints.node_logs import NodeLogs
from pykubelet.serve.endpoints.routes import constant_handler
from pykubelet.serve.endpoints.zpages import KubeletInfo, ZPages
from pykubelet.serve.explain.documents import ExplainRoute
from pykubelet.serve.metrics.kubelet import MetricsInputs
from pykubelet.serve.metrics.routes import StatsRoutes, agent_metrics, health_metrics, probe_metrics
from pykubelet.serve.metrics.scrape import scrape
from pykubelet.serve.page.serve import NodePage
from pykubelet.serve.streaming.streams import Streams

CHECKPOINT, CONFIGZ, HEALTHZ, LOG = Subresource.CHECKPOINT, Subresource.CONFIGZ, Subresource.HEALTHZ, Subresource.LOG
METRICS, PODS, PROXY = Subresource.METRICS, Subresource.PODS, Subresource.PROXY
STATS, STATUSZ = Subresource.STATS, Subresource.STATUSZ


class EndpointInputs(Value):
    """The inputs of the handlers. `metrics`: reads the cells at the time of a scrape. `explain`: the answers of the agent's own
    socket. `started_at`: the wall second at which the agent started. `contention`: the profile of what holds up the event
    loop, if it is on."""

    settings: Settings
    clock: Clock
    flight: SingleFlight
    runtime: CriClient
    pods: KnownPods
    checks: Mapping[str, Check]
    usage: StatsRoutes
    metrics: Callable[[], MetricsInputs]
    explain: ExplainRoute
    page: NodePage
    started_at: float
    contention: Contention | None = None


def _gate(name: str) -> Callable[[Settings], bool]:
    return lambda settings: settings.enabled(name)


def _has_page(settings: Settings) -> bool:
    return bool(settings.flags.cadvisor_port)


def _pods(inputs: EndpointInputs) -> EndpointHandler:
    return constant_handler(lambda: pods_answer(inputs.pods))


def _summary(inputs: EndpointInputs) -> EndpointHandler:
    return inputs.usage.summary


def _streams(inputs: EndpointInputs) -> Streams:
    idle_s = inputs.settings.config.streamingConnectionIdleTimeout.s
    websockets = inputs.settings.enabled("ExtendWebSocketsToKubelet")
    return Streams(inputs.pods, inputs.runtime, idle_s, websockets=websockets)


def _container_logs(inputs: EndpointInputs) -> EndpointHandler:
    split = inputs.settings.enabled("PodLogsQuerySplitStreams")
    return ContainerLogs(inputs.pods, LogReader(inputs.flight), inputs.clock, split_streams=split).answer


def _node_logs(inputs: EndpointInputs) -> EndpointHandler:
    queries = bool(inputs.settings.config.enableSystemLogQuery) and inputs.settings.enabled("NodeLogQuery")
    return NodeLogs(inputs.flight, queries=queries).answer


def _configz(inputs: EndpointInputs) -> EndpointHandler:
    answer = configz_answer(shown_safely(inputs.settings.config))
    return constant_handler(lambda: answer)


def _checkpoints(inputs: EndpointInputs) -> EndpointHandler:
    root = inputs.settings.flags.root_dir
    return Checkpoints(inputs.pods, inputs.runtime, root, inputs.flight, inputs.clock).answer


def _explain(inputs: EndpointInputs) -> EndpointHandler:
    return explain_handler(inputs.explain, inputs.pods)


def _zpages(inputs: EndpointInputs) -> ZPages:
    flags = inputs.settings.flags
    info = KubeletInfo(
        flags={name.replace("_", "-"): str(getattr(flags, name)) for name in flags.__struct_fields__},
        version=KUBERNETES,
        release=inputs.settings.release,
        started_at=inputs.started_at,
        paths=listed_paths(ENDPOINTS, inputs.settings),
    )
    return ZPages(info, inputs.clock)


def _metrics_page(
    path: str, handler: Callable[[EndpointInputs], EndpointHandler], label: str = ""
) -> Endpoint[EndpointInputs]:
    def scraped(inputs: EndpointInputs) -> EndpointHandler:
        only_text = not inputs.settings.enabled("NativeHistograms")
        return scrape(handler(inputs), inputs.flight, inputs.started_at, only_text=only_text)

    return Endpoint(path, GET, scraped, (METRICS,), CORE, read_only=True, label=label)


def _stream(path: str, handler: Callable[[EndpointInputs], EndpointHandler]) -> Endpoint[EndpointInputs]:
    return Endpoint(path, GET_OR_POST, handler, (PROXY,), DEBUGGING, below=True, long_running=True, has_effect=True)


ENDPOINTS: tuple[Endpoint[EndpointInputs], ...] = (
    Endpoint(HEALTH_PATH, ANY, lambda i: health_handler(i.checks), (HEALTHZ, PROXY), CORE, below=True, read_only=True),
    Endpoint("/pods", GET, _pods, (PODS, PROXY), CORE, read_only=True),
    Endpoint("/pods/", GET, _pods, (PODS, PROXY), CORE, read_only=True),
    Endpoint(
        "/allocatedPods/",
        GET,
        lambda i: AllocatedPods(i.pods).answer,
        (PODS, PROXY),
        CORE,
        below=True,
        when=_gate("KubeletAllocatedPodsEndpoint"),
    ),
    Endpoint("/stats/summary", GET | POST, _summary, (STATS,), CORE, read_only=True),
    Endpoint("/stats/summary/", GET | POST, _summary, (STATS,), CORE, read_only=True),
    _metrics_page("/metrics", lambda i: agent_metrics(i.metrics, i.usage)),
    _metrics_page("/metrics/cadvisor", lambda i: i.usage.cadvisor_metrics),
    _metrics_page("/metrics/resource", lambda i: i.usage.resource_metrics),
    _metrics_page("/metrics/probes", lambda _: probe_metrics),
    _metrics_page("/metrics/slis", lambda i: health_metrics(i.checks), label=OTHER),
    _stream("/exec/", lambda i: _streams(i).exec),
    _stream("/attach/", lambda i: _streams(i).attach),
    _stream("/portForward/", lambda i: _streams(i).port_forward),
    Endpoint("/run/", POST, lambda i: _streams(i).run, (PROXY,), DEBUGGING, below=True),
    Endpoint("/containerLogs/", GET, _container_logs, (PROXY,), DEBUGGING, below=True),
    Endpoint(
        "/runningpods/",
        GET,
        lambda i: constant_handler(lambda: running_pods_answer(i.pods.observed)),
        (PODS, PROXY),
        DEBUGGING,
        below=True,
    ),
    Endpoint("/logs/", ANY, _node_logs, (LOG,), SYSTEM_LOGS, below=True),
    Endpoint("/configz", GET, _configz, (CONFIGZ, PROXY), HIDDEN),
    Endpoint("/checkpoint/", POST, _checkpoints, (CHECKPOINT,), HIDDEN, below=True, when=_gate("ContainerCheckpoint")),
    Endpoint(
        "/debug/pprof/",
        GET,
        lambda i: Profiles(i.contention).answer,
        (PROXY,),
        PROFILING,
        below=True,
        long_running=True,
        has_effect=True,
    ),
    Endpoint("/debug/flags/v", PUT, lambda _: set_verbosity, (PROXY,), DEBUG_FLAGS, long_running=True),
    Endpoint("/debug/pods/", GET, _explain, (PROXY,), HIDDEN, below=True, long_running=True),
    Endpoint("/debug/node", GET, _explain, (PROXY,), HIDDEN, long_running=True),
    Endpoint("/flagz", GET, lambda i: _zpages(i).flagz, (CONFIGZ,), HIDDEN, when=_gate("ComponentFlagz")),
    Endpoint("/statusz", GET, lambda i: _zpages(i).statusz, (STATUSZ,), HIDDEN, when=_gate("ComponentStatusz")),
    Endpoint("/page/", GET, lambda i: i.page.ask, (PROXY,), HIDDEN, below=True, when=_has_page, label=OTHER),
)
