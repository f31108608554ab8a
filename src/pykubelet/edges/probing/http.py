"""The HTTP probe: a GET that follows redirects on the same host; the status decides. HTTP hooks use it too.

Owns: the exchange and its error messages. Uses bare sockets, with TLS in memory for `https` (the certificate is not verified).
It costs a fraction of a general client, because a full node makes fifty probes a second.

Source: the Kubernetes documentation "Configure Liveness, Readiness and Startup Probes" (HTTP probes).
"""

from __future__ import annotations

import asyncio
import ssl
from math import inf

from msgspec import Struct

from pykubelet.base.kit.readiness import Overdue
from pykubelet.base.kit.text import shorten
from pykubelet.base.model.version import CURRENT
from pykubelet.edges.host.fs.errors import reason_of
from pykubelet.edges.probing.connection import Connection, Connector
from pykubelet.edges.probing.dial import DialError
from pykubelet.edges.probing.http2 import Http2Exchange
from pykubelet.edges.probing.http_target import HttpTarget, first_hop, size_problem, target_url
from pykubelet.edges.probing.outcome import OUTPUT_LIMIT, Outcome, ProbeVerdict, errored, failed, passed, warned
from pykubelet.net.http.hops import MAX_REDIRECTS, REDIRECTS, Hop, UnsendableRequest, redirect_hop
from pykubelet.net.http.tolerant import AnswerReader, BadAnswer

Answer = AnswerReader | Http2Exchange
USER_AGENT = f"kube-probe/{CURRENT}"
BODY_LIMIT = 10 << 10
PLAIN_ANSWER_TO_TLS = "server gave HTTP response to HTTPS client"
_PLAIN_ANSWER = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"})


class _Broken(Exception):
    """The exchange failed. `in_body`: after the head of the answer."""

    def __init__(self, message: str, in_body: bool = False) -> None:
        super().__init__(message)
        self.in_body = in_body


class HttpProber:
    """Sends HTTP probes."""

    def __init__(self, user_agent: str = USER_AGENT, connector: Connector | None = None) -> None:
        self._agent = user_agent
        self._connector = connector or Connector()

    async def probe(self, target: HttpTarget, timeout_s: float) -> Outcome:
        """Send a GET within `timeout_s`, including redirects and body. A status of 200-399 passes."""
        if problem := size_problem(target):
            return failed(problem)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        progress = _Progress(target_url(target), deadline)
        try:
            answer = await self._follow(target, progress)
        except Overdue:
            late = loop.time() - deadline
            if progress.in_body:
                message = "context deadline exceeded (Client.Timeout or context cancellation while reading body)"
                return errored(message, ProbeVerdict.FAILURE, late_s=late)
            reason = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
            return failed(f'Get "{progress.url}": {reason}', late_s=late)
        except (DialError, UnsendableRequest) as error:
            return failed(f'Get "{progress.url}": {error}')
        except _Broken as error:
            if error.in_body:
                return errored(str(error), ProbeVerdict.FAILURE)
            return failed(f'Get "{progress.url}": {error}')
        return _judge(answer)

    async def fetch(self, target: HttpTarget) -> str:
        """Send a GET without a time limit and follow redirects to any host. Returns why there was no answer, or ""."""
        if problem := size_problem(target):
            return problem
        progress = _Progress(target_url(target))
        try:
            await self._follow(target, progress, anywhere=True)
        except (DialError, UnsendableRequest, _Broken) as error:
            return "" if progress.in_body else shorten(f'Get "{progress.url}": {error}', OUTPUT_LIMIT)
        return ""

    async def _follow(self, target: HttpTarget, progress: _Progress, *, anywhere: bool = False) -> Answer:
        first = hop = first_hop(target, self._agent)
        headers = target.headers
        for _ in range(MAX_REDIRECTS):
            answer = await self._exchange(hop, progress, is_http2=target.is_http2)
            if answer.status not in REDIRECTS or not answer.location:
                return answer
            after = redirect_hop(first, hop, answer.location, headers, self._agent)
            if after is None:
                raise _Broken(f'failed to parse Location header "{answer.location}"')
            if after[0].host != first.host and not anywhere:
                return answer
            hop, headers = after
            progress.url = hop.url
        raise _Broken(f"stopped after {MAX_REDIRECTS} redirects")

    async def _exchange(self, hop: Hop, progress: _Progress, *, is_http2: bool) -> Answer:
        progress.in_body = False
        if is_http2 and hop.scheme != "http":
            raise _Broken(f'HTTP/2 without TLS: unsupported protocol scheme "{hop.scheme}"')
        talk = Http2Exchange(hop, BODY_LIMIT) if is_http2 else None
        answer = talk or AnswerReader(BODY_LIMIT)
        healthy = False
        connection = await self._connect(hop, progress.deadline)
        try:
            await connection.send(talk.take_output() if talk is not None else hop.request)
            while True:
                data = await connection.receive()
                if not data:
                    answer.end()
                    break
                if answer.feed(data):
                    break
                progress.in_body = answer.has_begun
                if talk is not None and (reply := talk.take_output()):
                    await connection.send(reply)
            healthy = True
        except BadAnswer as error:
            raise _Broken(str(error), answer.has_begun) from error
        except ssl.SSLError as error:
            raise _Broken(_tls_reason(error), answer.has_begun) from error
        except OSError as error:
            raise _Broken(f"read tcp: read: {_os_reason(error)}", answer.has_begun) from error
        finally:
            connection.close(healthy)
        return answer

    async def _connect(self, hop: Hop, deadline: float) -> Connection:
        if hop.scheme != "https":
            return await self._connector.connect(hop.host, hop.port, deadline)
        try:
            return await self._connector.connect_tls(hop.host, hop.port, deadline)
        except ssl.SSLEOFError as error:
            raise _Broken("EOF") from error
        except ssl.SSLError as error:
            raise _Broken(_tls_reason(error)) from error
        except OSError as error:
            raise _Broken(_os_reason(error)) from error


class _Progress(Struct):
    """The progress of a probe, for the message on a time-out. `deadline`: event loop time."""

    url: str
    deadline: float = inf
    in_body: bool = False


def _judge(answer: Answer) -> Outcome:
    if 200 <= answer.status < 300:
        return passed(bytes(answer.body).decode("utf-8", "replace"))
    if 300 <= answer.status < 400:
        body = bytes(answer.body).decode("utf-8", "replace")
        return warned(f"Probe terminated redirects, Response body: {body}")
    return failed(f"HTTP probe failed with statuscode: {answer.status}")


def _os_reason(error: OSError) -> str:
    return reason_of(error.errno) if error.errno else str(error) or type(error).__name__


def _tls_reason(error: ssl.SSLError) -> str:
    if error.reason in _PLAIN_ANSWER:
        return f"http: {PLAIN_ANSWER_TO_TLS}"
    return f"tls: {(error.reason or str(error)).lower().replace('_', ' ')}"
