"""postStart and preStop: what a container asks for right after its start and before its end.

Owns: running one handler. Where it belongs in the grace period is `stop`'s, what its failure means `start`'s business.
Source: the Kubernetes documentation "Container Lifecycle Hooks" and KEP-3960 (sleep).
"""

from __future__ import annotations

import asyncio

from pykubelet.act.runtime.context import AnyContainer
from pykubelet.base.api.core import ExecAction, HTTPGetAction, LifecycleHandler
from pykubelet.base.api.intorstring import resolve_port
from pykubelet.base.model.ids import ContainerID
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.host.httpget import HttpError, http_get

USER_AGENT = "kube-lifecycle/1.36"
NO_LIMIT_S = 24 * 3600.0
OUTPUT_LIMIT = 10 << 10


class HookRunner:
    """Runs handlers; `http_get` reaches pods by their addresses."""

    def __init__(self, cri: CriClient) -> None:
        self._cri = cri

    async def run(
        self, handler: LifecycleHandler, container: AnyContainer, container_id: ContainerID, pod_ip: str
    ) -> str:
        """Run to its end; what failed, or an empty string. Cancel it to bound it in time."""
        if handler.exec is not None:
            return await self._exec(handler.exec, container_id)
        if handler.httpGet is not None:
            return await self._http(handler.httpGet, container, pod_ip)
        if handler.sleep is not None:
            await asyncio.sleep(handler.sleep.seconds)
            return ""
        return "invalid handler: one of exec, httpGet or sleep must be given"

    async def _exec(self, action: ExecAction, container_id: ContainerID) -> str:
        command = list(action.command)
        try:
            answer = await self._cri.exec_sync(container_id, command)
        except CriError as error:
            return f"command {command} failed: {error.message}"
        if answer.exit_code == 0:
            return ""
        output = (answer.stdout + answer.stderr)[:OUTPUT_LIMIT].decode("utf-8", "replace")
        return f"command '{' '.join(command)}' exited with {answer.exit_code}: {output}"

    async def _http(self, action: HTTPGetAction, container: AnyContainer, pod_ip: str) -> str:
        host = action.host or pod_ip
        if not host:
            return "failed to find networking container"
        port = resolve_port(action.port, container.ports)
        if port is None:
            return f"failed to find port {action.port}"
        scheme = (action.scheme or "HTTP").lower()
        if ":" in host:
            host = f"[{host}]"
        headers: dict[str, tuple[str, ...]] = {"User-Agent": (USER_AGENT,)}
        for header in action.httpHeaders:
            headers[header.name] = (*headers.get(header.name, ()), header.value)
        path = action.path if action.path.startswith("/") else f"/{action.path}"
        try:
            await http_get(f"{scheme}://{host}:{port}{path}", headers, NO_LIMIT_S, verify=False)
        except HttpError as error:
            return str(error)
        return ""
