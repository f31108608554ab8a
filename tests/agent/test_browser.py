"""What the tests with a real browser rely on: to wait for a page is to wait over the pages that come before it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from support.browser import Browser, PageLeftError

pytestmark = pytest.mark.integration

FIRST = b"<title>first</title><script>setTimeout(() => { location.href = '/second'; }, 300)</script>"
#: True on the second page; on the first its value never comes.
ON_THE_SECOND = "document.title === 'second' || new Promise(() => {})"


class Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = FIRST if self.path == "/" else b"<title>second</title>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


def test_a_page_that_gives_way_during_a_wait_ends_only_this_look(browser: Browser, site: str) -> None:
    with browser.tab() as tab:
        assert tab.open(site).wait(ON_THE_SECOND) is True


def test_a_script_whose_page_gives_way_has_no_value(browser: Browser, site: str) -> None:
    with browser.tab() as tab, pytest.raises(PageLeftError):
        tab.open(site).run(ON_THE_SECOND)


def test_a_script_that_leaves_its_page_may_be_cut_short_by_that(browser: Browser, site: str) -> None:
    with browser.tab() as tab:
        tab.leave(f"{site}second", f"location.href = '{site}'; new Promise(() => {{}})", "document.title === 'first'")
