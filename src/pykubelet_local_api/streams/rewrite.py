"""Rewrites what a proxied server answers, so that its links lead through the proxy again. Pure.

Owns: the header `Location`, and the attributes of HTML that contain URLs. A page is changed only within `MAX_PAGE_BYTES`.
Source: the HTML standard's index of attributes with URLs.
"""

from __future__ import annotations

import posixpath
import re
from urllib.parse import urlsplit

from pykubelet.base.kit.values import Value

#: A longer page is passed on as it is.
MAX_PAGE_BYTES = 512 * 1024
_URLS = (
    "action", "background", "cite", "classid", "codebase", "data", "formaction", "href", "icon", "longdesc", "manifest", "poster",
    "profile", "src", "usemap",
)  # fmt: skip
#: A tag does not contain `<` or `>` here, so that the time is linear: a tag with one in an attribute stays as it is.
_TAG = re.compile(rb"<[a-zA-Z][a-zA-Z0-9]*\s[^<>]*>")
_ATTRIBUTE = re.compile(
    rb"""(?P<before>\s(?:%s)\s{0,8}=\s{0,8}["']?)(?P<url>[^\s"'<>]{1,8192})""" % "|".join(_URLS).encode(),
    re.IGNORECASE,
)


class ProxyPaths(Value):
    """The two ends of a proxy. `prefix`: the path below which it is served. `host`: `Host` of the request.

    `backend`: host and port of the server behind.
    """

    prefix: str
    host: str
    backend: str


def rewritten_url(url: str, paths: ProxyPaths) -> str:
    """The URL through the proxy, if it leads to the server behind it by an absolute path. Others stay as they are."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    if (parts.netloc and parts.netloc not in (paths.backend, paths.host)) or not parts.path.startswith("/"):
        return url
    path = parts.path
    if not path.startswith(paths.prefix):
        joined = posixpath.normpath(f"{paths.prefix}/{path}".replace("//", "/"))
        path = joined + ("/" if path.endswith("/") and not joined.endswith("/") else "")
    if parts.netloc == paths.backend:
        parts = parts._replace(scheme="", netloc="")
    return parts._replace(path=path).geturl()


def rewritten_page(page: bytes, paths: ProxyPaths) -> bytes:
    """The HTML page with its links rewritten."""

    def attribute(found: re.Match[bytes]) -> bytes:
        url = rewritten_url(found["url"].decode("latin-1"), paths).encode("latin-1")
        return found["before"] + url

    return _TAG.sub(lambda tag: _ATTRIBUTE.sub(attribute, tag[0]), page)
