"""The health endpoints: `/healthz`, `/healthz/<check>`. Pure but for the checks that are handed in.

Answers as the reference: `ok`, a line for each check with `?verbose`, `?exclude=<check>`, 500 with all checks on failure.
`ping` is always there; `log` and `syncloop` are answered from the agent's one event loop, so that an answer is itself
the proof that it turns. Source: the Kubernetes documentation "Kubernetes API health endpoints".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pykubelet.report.server.http.server import Request, Response, text

Check = Callable[[], str]
PATH = "/healthz"


def always_ok() -> str:
    return ""


def default_checks() -> dict[str, Check]:
    """A check gives an empty string when all is well, else what is wrong."""
    return {"ping": always_ok, "log": always_ok, "syncloop": always_ok}


def answer_health(request: Request, checks: Mapping[str, Check]) -> Response | None:
    """None when the path is no health endpoint."""
    if request.path in (PATH, PATH + "/"):
        return _all(request, checks)
    name = request.path.removeprefix(PATH + "/")
    if name == request.path or name not in checks:
        return None
    problem = checks[name]()
    return text(500, f"internal server error: {problem}\n") if problem else text(200, "ok")


def _all(request: Request, checks: Mapping[str, Check]) -> Response:
    excluded = set(request.query.get("exclude", ()))
    lines: list[str] = []
    failed = False
    for name, check in checks.items():
        if name in excluded:
            excluded.discard(name)
            lines.append(f"[+]{name} excluded: ok\n")
        elif check():
            failed = True
            lines.append(f"[-]{name} failed: reason withheld\n")
        else:
            lines.append(f"[+]{name} ok\n")
    if excluded:
        named = ",".join(f'"{name}"' for name in sorted(excluded))
        lines.append(f"warn: some health checks cannot be excluded: no matches for {named}\n")
    if failed:
        return text(500, "".join(lines) + "healthz check failed\n")
    if "verbose" not in request.query:
        return text(200, "ok")
    return text(200, "".join(lines) + "healthz check passed\n")
