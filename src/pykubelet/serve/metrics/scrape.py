"""What all pages of metrics have in common as answers: compression, and the header with the start of the process.

A page is in Prometheus' text format, also for clients that would take OpenMetrics, or in protobuf for those that prefer it, if the gate
NativeHistograms is on.
Source: RFC 9110 "Accept-Encoding"; the Prometheus documentation "Exposition formats".
"""

from __future__ import annotations

import zlib
from itertools import count

from pykubelet.base.kit.flight import Done, SingleFlight
from pykubelet.base.kit.values import replace
from pykubelet.net.http.server import Answer, Request, Response
from pykubelet.serve.endpoints.endpoint import EndpointHandler

STARTED = "Process-Start-Time-Unix"
#: Shorter pages are not worth a thread.
SMALLEST = 1024
FASTEST, GZIP_FORMAT = 1, zlib.MAX_WBITS | 16
DEADLINE_S = 5.0
_numbers = count()


def scrape(
    handler: EndpointHandler, flight: SingleFlight, started_at: float, *, only_text: bool = False
) -> EndpointHandler:
    """Wrap the handler of a page. `started_at`: the wall second at which the agent started. `only_text`: whatever clients accept."""
    headers = {STARTED: str(int(started_at))}

    async def handle(request: Request) -> Answer:
        if only_text:
            request = replace(request, headers={k: value for k, value in request.headers.items() if k != "accept"})
        answer = await handler(request)
        if not isinstance(answer, Response):
            return answer
        answer = replace(answer, headers={**answer.headers, **headers})
        if len(answer.body) < SMALLEST or not takes_gzip(request.headers.get("accept-encoding", "")):
            return answer
        page = answer.body
        outcome = await flight.run(f"scrape-zip:{next(_numbers)}", lambda: compressed(page), DEADLINE_S)
        if not isinstance(outcome, Done):
            return answer  # the machine is too busy: the plain page does as well
        return replace(answer, body=outcome.value, headers={**answer.headers, "Content-Encoding": "gzip"})

    return handle


def compressed(page: bytes) -> bytes:
    """The page as gzip. Pages are repetitive: the fastest level makes less than a tenth of them. Pure."""
    return zlib.compress(page, FASTEST, GZIP_FORMAT)


def takes_gzip(accepted: str) -> bool:
    """Whether `Accept-Encoding` names gzip, with a weight that is not 0. Pure."""
    for part in accepted.lower().split(","):
        name, *parameters = (word.strip() for word in part.split(";"))
        if name == "gzip":
            return all(not word.startswith("q=") or word[2:].strip("0.") != "" for word in parameters)
    return False
