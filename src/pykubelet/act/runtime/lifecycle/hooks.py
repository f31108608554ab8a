"""Runs lifecycle hooks: postStart right after the start of a container, preStop before its end.

Owns: running one handler, and its error texts. `stop.py` limits preStop hooks by the grace period; `start.py` handles
failures of postStart hooks. A handler with `tcpSocket` always fails: the field is deprecated and not supported.
Source: the Kubernetes documentation "Container Lifecycle Hooks" and KEP-3960 (sleep).
"""

from __future__ import annotations

import asyncio

from pykubelet.act.runtime.lifecycle.metrics import HTTP_FALLBACKS, SLEEPS_CUT_SHORT
from pykubelet.act.runtime.render.context import AnyContainer
from pykubelet.base.api.core import ExecAction, HTTPGetAction, LifecycleHandler
from pykubelet.base.api.intorstring import go_quotable, port_problem, resolve_port
from pykubelet.base.kit.cells import Post
from pykubelet.base.kit.text import shorten
from pykubelet.base.kit.values import Value
from pykubelet.base.model.ids import ContainerID, PodRef
from pykubelet.base.model.kube_events import KubeEvent, warning
from pykubelet.base.model.reasons import EVENT_LIFECYCLE_HTTP_FALLBACK
from pykubelet.base.model.version import CURRENT, Release
from pykubelet.edges.cri.client import CriClient
from pykubelet.edges.cri.errors import CriError
from pykubelet.edges.probing.dial import join_host_port
from pykubelet.edges.probing.http import PLAIN_ANSWER_TO_TLS, HttpProber
from pykubelet.edges.probing.http_target import HttpTarget

OUTPUT_LIMIT = 10 << 10
#: Bytes of an error text. The output of a command is in it twice, once escaped.
PROBLEM_LIMIT = 32 << 10
WORDS = 200


_EXITED = " exited with "


def words_for_log(problem: str) -> str:
    """The error of a handler without what its command has printed: that may be a secret, and the log is read by others."""
    head, _, rest = problem.partition(" - error: ")
    code = rest.partition(_EXITED)[2].partition(":")[0]
    return f"{head}: the command{_EXITED}{code}" if code else problem


class HookTarget(Value):
    """The container of a hook. `pod_ip`: for HTTP hooks, empty when it is not known."""

    ref: PodRef
    container: AnyContainer
    id: ContainerID
    pod_ip: str = ""

    def __str__(self) -> str:
        return f'for Container "{self.container.name}" in Pod "{self.ref}"'


class HookRunner:
    """Runs handlers. HTTP hooks are sent to the pod's address, and succeed with any status code."""

    def __init__(self, cri: CriClient, recorder: Post[KubeEvent], release: Release = CURRENT) -> None:
        self._cri = cri
        self._recorder = recorder
        self._http = HttpProber(f"kube-lifecycle/{release}")

    async def run(self, handler: LifecycleHandler, target: HookTarget) -> str:
        """Run a handler to its end. Returns the error, at most 32 KiB, or an empty string. To limit the time, cancel the call."""
        return shorten(await self._run(handler, target), PROBLEM_LIMIT)

    async def _run(self, handler: LifecycleHandler, target: HookTarget) -> str:
        if handler.exec is not None:
            return await self._exec(handler.exec, target)
        if handler.httpGet is not None:
            problem = await self._http_get(handler.httpGet, target)
            return f"HTTP lifecycle hook ({handler.httpGet.path}) {target} failed - error: {problem}" if problem else ""
        if handler.sleep is not None:
            try:
                await asyncio.sleep(handler.sleep.seconds)
            except asyncio.CancelledError:
                SLEEPS_CUT_SHORT.inc()
                raise
            return ""
        return f"Cannot run handler: invalid handler: {_in_go(handler)}"

    async def _exec(self, action: ExecAction, target: HookTarget) -> str:
        command = list(action.command)
        output = ""
        try:
            answer = await self._cri.exec_sync(target.id, command)
        except CriError as error:
            problem = str(error)
        else:
            if answer.exit_code == 0:
                return ""
            stderr = answer.stderr[:OUTPUT_LIMIT].decode("utf-8", "replace")
            both = answer.stdout[:OUTPUT_LIMIT] + answer.stderr[:OUTPUT_LIMIT]
            output = both[:OUTPUT_LIMIT].decode("utf-8", "replace")
            problem = f"command '{' '.join(command)}'{_EXITED}{answer.exit_code}: {stderr}"
        text = f"Exec lifecycle hook ([{' '.join(command)}]) {target} failed"
        return f'{text} - error: {problem}, message: "{go_quotable(output)}"'

    async def _http_get(self, action: HTTPGetAction, target: HookTarget) -> str:
        """Run an HTTP hook. If a server answers HTTPS in plain HTTP, the request is sent again without TLS."""
        host = action.host or target.pod_ip
        if not host:
            return "failed to find networking container"
        port = resolve_port(action.port, target.container.ports)
        if port is None:
            return port_problem(action.port)
        headers = tuple((header.name, header.value) for header in action.httpHeaders)
        scheme = (action.scheme or "HTTP").lower()
        wanted = HttpTarget(scheme, host.strip("[]"), port, action.path, headers)
        problem = await self._http.fetch(wanted)
        if PLAIN_ANSWER_TO_TLS not in problem:
            return problem
        open_headers = tuple((name, value) for name, value in headers if name.lower() != "authorization")
        if await self._http.fetch(HttpTarget("http", wanted.host, port, action.path, open_headers)):
            return problem
        where = join_host_port(wanted.host, port)
        message = f"request to HTTPS lifecycle hook {where} got HTTP response, retry with HTTP succeeded"
        HTTP_FALLBACKS.inc()
        self._recorder.post(warning(EVENT_LIFECYCLE_HTTP_FALLBACK, message, target.ref))
        return ""


def _in_go(handler: LifecycleHandler) -> str:
    """A handler without a supported action, as the reference kubelet prints it."""
    tcp = "nil"
    if handler.tcpSocket is not None:
        port = handler.tcpSocket.port
        shown = f"{{1 0 {port}}}" if isinstance(port, str) else f"{{0 {port} }}"
        tcp = f"&TCPSocketAction{{Port:{shown},Host:{handler.tcpSocket.host},}}"
    return f"&LifecycleHandler{{Exec:nil,HTTPGet:nil,TCPSocket:{tcp},Sleep:nil,}}"


def hook_words(handler: LifecycleHandler) -> str:
    """A short text for `explain` that states what the hook does."""
    if handler.exec is not None:
        return f"command: {' '.join(handler.exec.command)}"[:WORDS]
    if handler.httpGet is not None:
        ask = handler.httpGet
        return f"GET {(ask.scheme or 'HTTP').lower()}://{ask.host or '<pod IP>'}:{ask.port}{ask.path}"[:WORDS]
    return f"sleep {handler.sleep.seconds} s" if handler.sleep is not None else ""
