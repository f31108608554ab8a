"""Links in what a proxied server answers."""

from __future__ import annotations

from functools import partial

import pytest
from support.cost import is_quick

from pykubelet_local_api.streams.rewrite import MAX_PAGE_BYTES, ProxyPaths, rewritten_page, rewritten_url

PREFIX = "/api/v1/namespaces/default/pods/x/proxy"
PATHS = ProxyPaths(PREFIX, "127.0.0.1:6443", "10.1.0.7:80")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("/a", f"{PREFIX}/a"),
        ("/a/?b=c#d", f"{PREFIX}/a/?b=c#d"),
        ("http://10.1.0.7:80/a", f"{PREFIX}/a"),
        ("https://127.0.0.1:6443/a", f"https://127.0.0.1:6443{PREFIX}/a"),
        (f"{PREFIX}/a", f"{PREFIX}/a"),
        ("a/b", "a/b"),
        ("https://example.com/a", "https://example.com/a"),
        ("http://[broken", "http://[broken"),
        ("#top", "#top"),
    ],
)
def test_a_url_leads_through_the_proxy(url: str, expected: str) -> None:
    assert rewritten_url(url, PATHS) == expected


def test_the_links_of_a_page_are_rewritten_and_nothing_else() -> None:
    page = b"""<html><a class=x href="/a">/b</a><IMG SRC='/c'><form action=/d><a title="/e" data-href="/f"></html>"""
    assert rewritten_page(page, PATHS) == (
        b"""<html><a class=x href="%(p)s/a">/b</a><IMG SRC='%(p)s/c'><form action=%(p)s/d><a title="/e" data-href="/f"></html>"""
        % {b"p": PREFIX.encode()}
    )


@pytest.mark.parametrize(
    "part", [b"<a ", b"<a href=", b'<a href="/', b'<a href="', b" href=/", b"<a " + b" " * 500, b"<", b'"']
)
def test_no_page_costs_more_than_its_size(part: bytes) -> None:
    for page in (
        part * (MAX_PAGE_BYTES // len(part)),
        b"<a " + part.strip(b"<") * (MAX_PAGE_BYTES // len(part)) + b">",
    ):
        assert is_quick(partial(rewritten_page, page, PATHS), 2.0)
