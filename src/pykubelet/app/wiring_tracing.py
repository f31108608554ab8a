"""The wiring of tracing: the tracer of the process and the exporter behind it, if `tracing` is configured."""

from __future__ import annotations

from contextlib import AsyncExitStack

from pykubelet.app.parts import Loops
from pykubelet.base.kit.tracing import Tracer, set_tracer
from pykubelet.config.settings import Settings
from pykubelet.config.trace_target import DEFAULT, read_target

SERVICE = "kubelet"


def wire_tracing(settings: Settings, node_name: str, closing: AsyncExitStack) -> Loops:
    """Record spans from now on, and return the loop that exports them. `closing`: gets what must be done at the end."""
    tracing = settings.config.tracing
    if tracing is None:
        return []
    from pykubelet.edges.otlp.exporter import SpanExporter  # most nodes do not need it

    target = read_target(tracing.endpoint or DEFAULT)
    exporter = SpanExporter(target, {"service.name": SERVICE, "host.name": node_name}, settings.version)
    set_tracer(Tracer(tracing.samplingRatePerMillion or 0, exporter))
    closing.push_async_callback(exporter.close)
    closing.callback(set_tracer, None)
    return [("tracing", exporter.run())]
