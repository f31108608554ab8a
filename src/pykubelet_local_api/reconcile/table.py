"""All reconcilers, in the order in which they are asked. A new one is a module of this package, and one entry here."""

from __future__ import annotations

from collections.abc import Callable

from pykubelet.base.kit.clock import SystemClock
from pykubelet.base.kit.values import Value
from pykubelet_local_api.reconcile.accounts import accounts
from pykubelet_local_api.reconcile.attachments import VOLUME_ATTACHMENTS
from pykubelet_local_api.reconcile.binding import binding
from pykubelet_local_api.reconcile.claims import VOLUME_CLAIMS
from pykubelet_local_api.reconcile.ended import ended_pods
from pykubelet_local_api.reconcile.expiry import OLD_EVENTS, OLD_REQUESTS
from pykubelet_local_api.reconcile.garbage import garbage
from pykubelet_local_api.reconcile.namespaces import NAMESPACES
from pykubelet_local_api.reconcile.nodes import node_lifecycle
from pykubelet_local_api.reconcile.protection import PROTECTION
from pykubelet_local_api.reconcile.reconciler import Reconciler
from pykubelet_local_api.reconcile.resource_claims import RESOURCE_CLAIMS
from pykubelet_local_api.reconcile.services import ApiAddress, services
from pykubelet_local_api.reconcile.taints import taint_evictions


class Setup(Value):
    """What reconcilers know beside the objects. `ca`: gives the certificates of the API's CA, PEM. `api`: where the API is; None: it has no
    Service. `monotonic`: the seconds of the monotonic clock.
    """

    ca: Callable[[], str]
    api: ApiAddress | None = None
    monotonic: Callable[[], float] = SystemClock().monotonic


def reconcilers(setup: Setup) -> tuple[Reconciler, ...]:
    """All reconcilers."""
    return (
        node_lifecycle(setup.monotonic),
        binding(),
        VOLUME_CLAIMS,
        RESOURCE_CLAIMS,
        VOLUME_ATTACHMENTS,
        PROTECTION,
        NAMESPACES,
        accounts(setup.ca),
        services(setup.api),
        ended_pods(setup.monotonic),
        taint_evictions(setup.monotonic),
        garbage(),
        OLD_EVENTS,
        OLD_REQUESTS,
    )
