"""What browsers may not do on the ports: act on behalf of another site's page, and read under a name of another site. Pure.

A browser sends its client certificate, and reaches the addresses of its network, also when a page of another site makes the
request. It states that in `Sec-Fetch-Site`, or in `Origin`: older browsers, WebSockets, and requests without TLS have only that.
A request with a bearer token or with `X-Forwarded-For` is not such a request: a page cannot add these headers for another site
unless the server allows it (CORS), which no port of the agent does. The API server adds `X-Forwarded-For` when it passes on a
request of a client, whose `Origin` may be anything: the API server has authenticated that client.

Source: the Fetch standard; W3C "Fetch Metadata Request Headers"; RFC 6454; https://developer.mozilla.org/docs/Web/HTTP/Guides/CORS.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable

from pykubelet.base.kit.text import shorten
from pykubelet.base.model.node import NodeView
from pykubelet.net.http.server import Answer, Handler, Request, Response, ServedConnection, text
from pykubelet.serve.auth.access import bearer_token

READING = frozenset({"GET", "HEAD"})
_OWN_SITE = frozenset({"same-origin", "none"})
_SHOWN = 256


def other_site(request: Request, scheme: str) -> str:
    """The site that a browser makes the request for, as the browser names it; "" if it is not another site.

    `scheme`: that of the port.
    """
    headers = request.headers
    if bearer_token(headers.get("authorization", "")) or "x-forwarded-for" in headers:
        return ""
    origin = headers.get("origin")
    if origin is not None and origin.lower() != f"{scheme}://{headers.get('host', '')}".lower():
        return origin or "null"
    site = headers.get("sec-fetch-site", "none")
    return "" if site in _OWN_SITE else site


def refuse_other_site(request: Request, scheme: str, *, has_effect: bool) -> Response | None:
    """The answer to a request that another site's page makes and that would do more than read; None for other requests.

    `has_effect`: also a GET of this path does something.
    """
    if request.method in READING and not request.is_upgrade and not has_effect:
        return None
    site = other_site(request, scheme)
    if not site:
        return None
    return text(403, f"Forbidden: a browser makes this request for another site ({shorten(site, _SHOWN)})\n")


def for_own_hosts(handler: Handler, names: Callable[[], Iterable[str]]) -> Handler:
    """Wrap the handler of a port without credentials: a request to a host of another name is refused with 403.

    A page could otherwise read the port by a name of its own that resolves to the node (DNS rebinding). Addresses, `localhost`
    and `names` are served, and requests without a host, which no browser sends.
    """

    async def handle(request: Request, connection: ServedConnection) -> Answer:
        if not is_own_host(host_of(request), names()):
            return text(403, "Forbidden: ask for this node by its address or by its name\n")
        return await handler(request, connection)

    return handle


def host_of(request: Request) -> str:
    """The host and port to which the request is addressed: of an absolute target, else of `Host`."""
    scheme, separator, rest = request.target.partition("://")
    if separator and "/" not in scheme:
        return rest.partition("/")[0].partition("?")[0]
    return request.headers.get("host", "")


def is_own_host(host: str, names: Iterable[str]) -> bool:
    """Whether `host`, with or without a port, is an IP address, `localhost`, one of `names` or empty."""
    name = host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]
    name = name.strip("[]").removesuffix(".").lower()
    if not host or name == "localhost" or name in {known.lower() for known in names}:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def node_names(node: NodeView) -> tuple[str, ...]:
    """The names of the node: its own, the machine's, and those of its addresses."""
    return node.name, node.hostname, *(address.address for address in node.addresses or ())
