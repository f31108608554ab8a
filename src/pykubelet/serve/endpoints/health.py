"""The health endpoints `/healthz` and `/healthz/<check>`. Pure except for the given checks and the metrics about them.

The answers are the reference's: `ok`, a line for each check with `?verbose`, `?exclude=<check>`, 500 with all checks on
failure. `ping` always exists. `log` is answered by the agent's only event loop, so an answer proves that the loop runs. For
`syncloop` see `syncloop.py`. Source: the Kubernetes documentation "Kubernetes API health endpoints".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pykubelet.base.kit.metrics import Counter, Registry
from pykubelet.net.http.server import Answer, Request, Response, text
from pykubelet.serve.endpoints.endpoint import NOT_FOUND, EndpointHandler

Check = Callable[[], str]
PATH = "/healthz"
HEALTH_CHECKS = Counter(
    "kubernetes_healthchecks_total",
    "This metric records the results of all healthcheck.",
    ("name", "status", "type"),
    registry=Registry(),
)


def always_ok() -> str:
    """A check that always passes."""
    return ""


def ping_check() -> dict[str, Check]:
    """The checks of the health port, as in the reference."""
    return {"ping": always_ok}


def default_checks() -> dict[str, Check]:
    """The checks that every health endpoint has. A check returns an empty string if it passes, else the problem.

    `device-plugin` is about the socket at which device plugins register, which is opened again if it is lost.
    """
    return {"ping": always_ok, "log": always_ok, "syncloop": always_ok, "device-plugin": always_ok}


def health_handler(checks: Mapping[str, Check]) -> EndpointHandler:
    """`/healthz`: all checks. `/healthz/<check>`: one."""

    async def handle(request: Request) -> Answer:
        if request.path in (PATH, PATH + "/"):
            return _all(request, checks)
        check = checks.get(request.path.removeprefix(PATH + "/"))
        if check is None:
            return NOT_FOUND
        problem = check()
        return text(500, f"internal server error: {problem}\n") if problem else text(200, "ok")

    return handle


def _all(request: Request, checks: Mapping[str, Check]) -> Response:
    excluded = set(request.query.get("exclude", ()))
    lines: list[str] = []
    failed = False
    for name, check in checks.items():
        if name in excluded:
            excluded.discard(name)
            lines.append(f"[+]{name} excluded: ok\n")
            continue
        problem = check()
        HEALTH_CHECKS.inc(name, "error" if problem else "success", "healthz")
        failed = failed or bool(problem)
        lines.append(f"[-]{name} failed: reason withheld\n" if problem else f"[+]{name} ok\n")
    if excluded:
        named = ",".join(f'"{name}"' for name in sorted(excluded))
        lines.append(f"warn: some health checks cannot be excluded: no matches for {named}\n")
    if failed:
        return text(500, "".join(lines) + "healthz check failed\n")
    if "verbose" not in request.query:
        return text(200, "ok")
    return text(200, "".join(lines) + "healthz check passed\n")
