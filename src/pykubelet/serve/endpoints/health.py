"""The health endpoints `/healthz` and `/healthz/<check>`. Pure except for the given checks and the metrics about them.

The answers are the reference's: `ok`, a line for each check with `?verbose`, `?exclude=<check>`, 500 with all checks on
failure. `ping` always exists. `log` is answered by the agent's only event loop, so an answer proves that the loop runs.

`syncloop`: whether the loops that run pods still make progress. The reference's sync loop is three loops here: the roster, the pods and
the PLEG. Roster and pods fail the check if their last heartbeat is older than twice `syncFrequency`, at least 5 minutes. The reference's
loop also pauses while its PLEG is unhealthy, that is after 3 minutes without a relist. So the limit for the PLEG is the sum of both.
Source: the Kubernetes documentation "Kubernetes API health endpoints", "Configure systemd watchdog for kubelet".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pykubelet.base.kit.cells import Cell
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.heartbeat import Heartbeat
from pykubelet.base.kit.metrics import Counter, Registry
from pykubelet.base.kit.values import Value
from pykubelet.base.model.observed import Observed
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


# The check `syncloop`

MIN_LIMIT_S = 300.0
RELIST_LATE_S = 180.0
TOO_LONG = "sync Loop took longer than expected"


class SyncLoopInputs(Value):
    """The inputs of the check. `heartbeats`: those of the roster and the pods. Times are monotonic seconds."""

    heartbeats: tuple[Cell[Heartbeat], ...]
    observed: Cell[Observed]
    sync_frequency_s: float


def syncloop_check(inputs: SyncLoopInputs, clock: Clock) -> Check:
    """The check `syncloop`. A loop without a first heartbeat does not fail it."""
    limit_s = max(2 * inputs.sync_frequency_s, MIN_LIMIT_S)

    def check() -> str:
        now, listed_at = clock.monotonic(), inputs.observed.get().listed_at
        is_late = any(
            at is not None and now - at > limit_s for at in (heartbeat.get().at for heartbeat in inputs.heartbeats)
        )
        is_unlisted = listed_at is not None and now - listed_at > limit_s + RELIST_LATE_S
        return TOO_LONG if is_late or is_unlisted else ""

    return check
