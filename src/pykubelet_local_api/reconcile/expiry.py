"""What goes by its age: Events and certificate signing requests. Pure.

Rules:
- Events go an hour after they were last seen.
- A date that lies further ahead than that is none: the clock was set back since, or a client made it up.
- Certificate signing requests go an hour after they were approved, denied or failed; pending ones after 24 hours.
Source: the default of `--event-ttl`; the Kubernetes documentation "Certificate Signing Requests".
"""

from __future__ import annotations

from pykubelet_local_api.objects import Json, timestamp
from pykubelet_local_api.reconcile.changes import deleted, status_of
from pykubelet_local_api.reconcile.reconciler import Reconciler
from pykubelet_local_api.view import ObjectChange, View

EVENT_TTL_S = 3600.0
DECIDED_TTL_S = 3600.0
PENDING_TTL_S = 24 * 3600.0
#: Seconds between two looks at all ages. Writes wake no look: a new object is never too old.
PERIOD_S = 60.0
EVENTS, REQUESTS = "events", "certificatesigningrequests.certificates.k8s.io"


def reconcile_events(view: View) -> list[ObjectChange]:
    """Delete the Events that are too old. Dates in UTC are compared as text."""
    oldest, newest = (timestamp(view.now + seconds) for seconds in (-EVENT_TTL_S, EVENT_TTL_S))
    return [deleted(EVENTS, event) for event in view.list(EVENTS) if _last_seen(event, newest) < oldest]


def _last_seen(event: Json, newest: str) -> str:
    series = event.get("series") or {}
    dates = (
        event["metadata"].get("creationTimestamp"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        series.get("lastObservedTime"),
    )
    return max((date for date in dates if date and date <= newest), default="")


def reconcile_requests(view: View) -> list[ObjectChange]:
    """Delete the requests that are too old."""
    decided, pending, newest = (
        timestamp(view.now + seconds) for seconds in (-DECIDED_TTL_S, -PENDING_TTL_S, DECIDED_TTL_S)
    )
    changes = []
    for request in view.list(REQUESTS):
        conditions = status_of(request).get("conditions") or ()
        dates = [item["lastUpdateTime"] for item in conditions if item.get("lastUpdateTime")]
        created = request["metadata"].get("creationTimestamp") or ""
        last, oldest = (max(dates, default=created), decided) if conditions else (created, pending)
        if last < oldest or last > newest:
            changes.append(deleted(REQUESTS, request))
    return changes


def wakes_at(view: View) -> float:
    """The next look."""
    return view.now + PERIOD_S


OLD_EVENTS = Reconciler("old-events", frozenset(), reconcile_events, wakes_at=wakes_at)
OLD_REQUESTS = Reconciler("old-requests", frozenset(), reconcile_requests, wakes_at=wakes_at)
