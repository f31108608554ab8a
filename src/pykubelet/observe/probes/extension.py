"""Probes that process extensions answer: commands of the form `["extension:NAME", ...]`, in place of the container's runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pykubelet.base.model.extension_process import Point
from pykubelet.edges.plugins.extension_messages import ProtocolError, parse_probed
from pykubelet.edges.plugins.extension_process import ExtensionCallError, ExtensionProcess
from pykubelet.edges.probing.outcome import Outcome, errored, failed, passed
from pykubelet.observe.probes.execute import EXTENSION, Prober, ProbeRequest, expanded_command, extension_of


class ExtensionProber:
    """Has extensions answer their probes, and `others` all other probes. `processes`: by their names."""

    def __init__(self, others: Prober, processes: Mapping[str, ExtensionProcess]) -> None:
        self._others = others
        self._processes = processes

    async def probe(self, request: ProbeRequest) -> Outcome:
        """Carry out one probe. A process that is away, or fails, gives no information about the container."""
        name = extension_of(request.probe)
        if name is None:
            return await self._others.probe(request)
        process = self._processes.get(name)
        if process is None:
            return errored(f"no process extension {name} is loaded: {EXTENSION}{name}", is_final=True)
        if process.state.get().known and not process.state.get().offered(Point.PROBE):
            return errored(f"extension {name} answers no probes", is_final=True)
        return await self._ask(process, request)

    async def _ask(self, process: ExtensionProcess, request: ProbeRequest) -> Outcome:
        assert request.probe.exec is not None
        try:
            _, *arguments = expanded_command(request.probe.exec.command, request.container)
            result = await process.call("probe", _fields(request, arguments), request.timeout_s)
            answer = parse_probed(result)
        except ExtensionCallError as error:
            if error.is_late:
                return failed(f"extension {process.name}: {error}", timed_out=True)
            return errored(f"extension {process.name}: {error}", is_final=True)
        except ProtocolError as error:
            return errored(f"extension {process.name}: {error}", is_final=True)
        return passed(answer.message) if answer.success else failed(answer.message)


def _fields(request: ProbeRequest, arguments: list[str]) -> Mapping[str, Any]:
    """The members of the request besides `id` and `call`."""
    ref = request.ref
    return {
        "pod": {
            "metadata": {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid},
            "status": {"podIP": request.pod_ip},
        },
        "container": {"name": request.container.name, "containerID": request.id},
        "args": arguments,
        "timeout_s": request.timeout_s,
    }
