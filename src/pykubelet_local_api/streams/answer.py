"""The answers to requests for pods/log, exec, attach, portforward and the proxy subresources.

The client must be authenticated and authorized before. `needs_create` names the requests for which a second verb is checked.
Errors before the first byte of an answer are `StatusError`s; after it, the connection ends.
Source: the Kubernetes API reference, "Pod", "Node" and "Service", their proxy operations and Misc. operations.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pykubelet.base.kit.text import parse_decimal
from pykubelet.base.kit.values import Value
from pykubelet.net.http.exchange import HttpConnection
from pykubelet.net.http.proxy import pump_both
from pykubelet.net.http.server import Answer, Request, Response, ServedConnection, StreamedResponse, Takeover
from pykubelet_local_api.errors import StatusError, bad_request, internal, method_not_allowed, not_found, unavailable
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json
from pykubelet_local_api.streams import target
from pykubelet_local_api.streams.log_socket import TOKEN_PROTOCOL, log_protocol, serve_log
from pykubelet_local_api.streams.place import ServerPlace, agent_place, node_place, pod_place, service_place
from pykubelet_local_api.streams.rewrite import MAX_PAGE_BYTES, ProxyPaths, rewritten_page, rewritten_url
from pykubelet_local_api.streams.transport import ANSWER_S, UNREACHED, BodyChunks, Upstreams, failure_text, request_head
from pykubelet_local_api.view import View

#: A stream without data for this long is ended.
IDLE_S = 4 * 3600.0
#: The most bytes of an error of the agent that are read.
ERROR_BYTES = 50_000
#: An answer of the proxy that is not longer is sent whole, with its length.
WHOLE_BYTES = 64 * 1024
_STREAMS = frozenset({"attach", "exec", "portforward"})
_PROXY_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_HAS_NO_BODY = frozenset({204, 304})
#: Headers of the connection to this API, or for it alone.
_KEPT_BACK = frozenset({
    "authorization", "connection", "content-length", "expect", "host", "keep-alive", "proxy-authenticate", "proxy-authorization", "te",
    "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
#: Headers of an answer that are those of its connection, or that would open the API to pages of other origins.
_NOT_RETURNED = frozenset({
    "access-control-allow-credentials", "access-control-allow-headers", "access-control-allow-methods", "access-control-allow-origin",
    "connection", "content-length", "content-type", "keep-alive", "proxy-authenticate", "te", "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip


class StreamPath(Value):
    """What the path of a request names. `rest`: what follows `proxy`, as it was sent; "" or with a slash in front."""

    kind: ResourceKind
    namespace: str
    name: str
    subresource: str
    rest: str = ""


def rest_of(request: Request, path: StreamPath) -> str:
    """The part of the path after `/proxy`, not decoded."""
    segments = (6 if path.kind.is_namespaced else 4) + 1
    raw = request.target.partition("?")[0]
    raw = raw[raw.index("/api/") :] if "/api/" in raw else raw
    parts = raw.split("/", segments + 1)
    return f"/{parts[segments + 1]}" if len(parts) > segments + 1 else ""


def needs_create(path: StreamPath) -> bool:
    """Whether the client must also be allowed to `create` the subresource, whatever the method is."""
    return path.subresource in _STREAMS


async def answer_stream(
    request: Request, connection: ServedConnection, path: StreamPath, view: View, upstreams: Upstreams
) -> Answer:
    """The answer to an authorized request. Raises StatusError, and BadRequest for a wrong body or query."""
    if path.subresource == "proxy":
        return await _proxy(request, connection, path, view, upstreams)
    if request.method not in (("GET",) if path.subresource == "log" else ("GET", "POST")):
        raise method_not_allowed()
    pod = view.get(path.kind.storage, path.namespace, path.name)
    if pod is None:
        raise not_found(path.kind, path.name)
    if path.subresource == "log":
        return await _log(request, path.name, pod, view, upstreams)
    if path.subresource == "portforward":
        wanted = target.forward_target(pod, request.query)
    else:
        wanted = target.command_target(path.subresource, pod, request.query)
    place = agent_place(view, pod["spec"]["nodeName"])
    if not request.is_upgrade:
        raise bad_request("Upgrade request required")
    return await _upgrade(request, connection, place, wanted, upstreams)


async def _log(request: Request, name: str, pod: Json, view: View, upstreams: Upstreams) -> Answer:
    wanted = target.log_target(pod, request.query)
    if not pod["spec"].get("nodeName"):
        return Response(204, b"")
    place = agent_place(view, pod["spec"]["nodeName"])
    protocol = log_protocol(request) if request.headers.get("upgrade", "").lower() == "websocket" else ""
    if isinstance(protocol, Response):
        return protocol
    head = request_head("GET", wanted, {"Host": place.netloc, "Connection": "close"})
    try:
        verify = not target.skips_verification(request.query)
        agent = await upstreams.exchange(place, head, verify=verify)
    except UNREACHED as error:
        raise StatusError(500, "", f'Get "{place.url}{wanted}": {failure_text(place, error)}') from error
    if not 200 <= agent.response.status <= 206:
        raise _log_error(agent.response.status, name, await _beginning(agent))
    chunks = BodyChunks(agent)
    if request.is_upgrade:
        return serve_log(request, protocol, chunks)
    return StreamedResponse(200, chunks, "text/plain")


async def _beginning(agent: HttpConnection) -> str:
    """The beginning of an error's text."""
    body = bytearray()
    try:
        async with asyncio.timeout(ANSWER_S):
            while len(body) < ERROR_BYTES and (part := await agent.part()) is not None:
                body += part
    except UNREACHED as error:
        return body.decode("utf-8", "replace") or str(error)
    finally:
        agent.abort()
    return body[:ERROR_BYTES].decode("utf-8", "replace")


def _log_error(status: int, name: str, text: str) -> StatusError:
    """The agent's refusal, as the API server shows it."""
    if status == 500:
        return internal(text)
    if status == 400:
        return bad_request(text)
    reason, message = {
        401: ("Unauthorized", "the server has asked for the client to provide credentials"),
        403: ("Forbidden", text),
        404: ("NotFound", "the server could not find the requested resource"),
        405: ("MethodNotAllowed", "the server does not allow this method on the requested resource"),
        422: ("Invalid", "the server rejected our request due to an error in our request"),
        429: ("TooManyRequests", "the server has received too many requests and has asked us to try again later"),
        503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    }.get(status, ("", f"the server responded with the status code {status} but did not return more information"))
    return StatusError(status, reason, f"{message} ( pods/log {name})", {"name": name, "kind": "pods/log"})


async def _upgrade(
    request: Request, connection: ServedConnection, place: ServerPlace, wanted: str, upstreams: Upstreams
) -> Answer:
    """Pass the upgrade on. What follows is not interpreted."""
    headers = {"Host": place.netloc} | _forwarded(request, connection)
    headers |= {"Connection": "Upgrade", "Upgrade": request.headers["upgrade"]}
    opened = await upstreams.upgrade(place, request_head(request.method, wanted, headers))
    if isinstance(opened, Response):
        if opened.status < 400:
            raise StatusError(500, "", f"invalid upgrade response: status code {opened.status}")
        return opened
    backend, head = opened

    async def talk(client: ServedConnection) -> None:
        client.writer.write(head)
        await pump_both(client, backend, IDLE_S)

    return Takeover(talk)


def _forwarded(request: Request, connection: ServedConnection) -> dict[str, str]:
    """The headers that are passed on: no credentials, and none of the connection."""
    hops = {word.strip().lower() for word in request.headers.get("connection", "").split(",")}
    headers = {
        name: value
        for name, value in request.headers.items()
        if name not in _KEPT_BACK and name not in hops and not name.startswith(("impersonate-", "x-remote-"))
    }
    if "sec-websocket-protocol" in headers:
        offered = [word.strip() for word in headers.pop("sec-websocket-protocol").split(",")]
        spoken = [word for word in offered if not word.startswith(TOKEN_PROTOCOL)]
        headers |= {"sec-websocket-protocol": ", ".join(spoken)} if spoken else {}
    before = headers.pop("x-forwarded-for", "")
    if connection.address:
        headers["X-Forwarded-For"] = f"{before}, {connection.address}" if before else connection.address
    return headers


async def _proxy(
    request: Request, connection: ServedConnection, path: StreamPath, view: View, upstreams: Upstreams
) -> Answer:
    if request.method not in _PROXY_METHODS:
        raise method_not_allowed()
    place = _proxied_place(path, view)
    query = f"?{request.raw_query}" if request.raw_query else ""
    if request.is_upgrade:
        return await _upgrade(request, connection, place, (path.rest or "/") + query, upstreams)
    if not path.rest and request.method in ("GET", "HEAD"):
        return Response(301, b"", headers={"Location": f"{request.target.partition('?')[0]}/{query}"})
    body = await connection.read_body()
    paths = ProxyPaths(_prefix(request, path), request.headers.get("host", ""), place.netloc)
    headers = {"Host": paths.host or place.netloc} | _forwarded(request, connection)
    headers |= {"X-Forwarded-Uri": f"{paths.prefix}{path.rest}", "Connection": "close"}
    if body or request.method in ("PATCH", "POST", "PUT"):
        headers["Content-Length"] = str(len(body))
    head = request_head(request.method, (path.rest or "/") + query, headers)
    try:
        server = await upstreams.exchange(place, head + body)
    except UNREACHED as error:
        raise unavailable(f"error trying to reach service: {failure_text(place, error)}", 0) from error
    try:
        return await _proxied_answer(request, server, paths)
    except UNREACHED as error:
        server.abort()
        raise unavailable(f"error trying to reach service: {failure_text(place, error)}", 0) from error
    except BaseException:
        server.abort()
        raise


def _proxied_place(path: StreamPath, view: View) -> ServerPlace:
    if path.kind.plural == "nodes":
        return node_place(view, path.name)
    if path.kind.plural == "pods":
        return pod_place(view, path.namespace, path.name)
    return service_place(view, path.namespace, path.name)


def _prefix(request: Request, path: StreamPath) -> str:
    raw = request.target.partition("?")[0]
    raw = raw[raw.index("/api/") :] if "/api/" in raw else raw
    return raw.removesuffix(path.rest) if path.rest else raw


async def _proxied_answer(request: Request, server: HttpConnection, paths: ProxyPaths) -> Answer:
    """The server's answer, with its links rewritten. Closes the connection, or hands it to the streamed answer."""
    response = server.response
    given = response.headers
    kind = given.get("content-type", "text/plain; charset=utf-8")
    headers = {name.title(): value for name, value in given.items() if name not in _NOT_RETURNED}
    if "location" in given:
        headers["Location"] = rewritten_url(given["location"], paths)
    length = parse_decimal(given.get("content-length", ""))
    if request.method == "HEAD":
        headers |= {"Content-Length": str(length)} if length is not None else {}
        return StreamedResponse(response.status, BodyChunks(server), kind, headers)
    if response.status in _HAS_NO_BODY:
        server.abort()
        return Response(response.status, b"", kind, headers)
    is_page = kind.partition(";")[0].strip().lower() == "text/html" and "content-encoding" not in given
    if is_page and (length is None or length <= MAX_PAGE_BYTES):
        return await _page(server, response.status, kind, headers, paths)
    if length is not None and length <= WHOLE_BYTES:
        async with asyncio.timeout(ANSWER_S):
            body = await server.body()
        server.abort()
        return Response(response.status, body, kind, headers)
    return StreamedResponse(response.status, BodyChunks(server), kind, headers)


async def _page(
    server: HttpConnection, status: int, kind: str, headers: Mapping[str, str], paths: ProxyPaths
) -> Answer:
    """A page with its links rewritten; a longer one is streamed as it is."""
    body = bytearray()
    async with asyncio.timeout(ANSWER_S):
        while (part := await server.part()) is not None:
            body += part
            if len(body) > MAX_PAGE_BYTES:
                return StreamedResponse(status, BodyChunks(server, bytes(body)), kind, headers)
    server.abort()
    return Response(status, rewritten_page(bytes(body), paths), kind, headers)
