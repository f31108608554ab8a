"""All reconcilers, in the order in which they are asked. A new one is a module of this package, and one entry here. Pure."""

from __future__ import annotations

from pykubelet.base.kit.values import Value
from pykubelet_local_api.reconcile.accounts import accounts
from pykubelet_local_api.reconcile.binding import BINDING
from pykubelet_local_api.reconcile.claims import VOLUME_CLAIMS
from pykubelet_local_api.reconcile.garbage import GARBAGE
from pykubelet_local_api.reconcile.namespaces import NAMESPACES
from pykubelet_local_api.reconcile.protection import PROTECTION
from pykubelet_local_api.reconcile.reconciler import Reconciler


class Setup(Value):
    """What reconcilers know beside the objects. `ca`: the certificates of the API's CA, PEM."""

    ca: str


def reconcilers(setup: Setup) -> tuple[Reconciler, ...]:
    """All reconcilers."""
    return (BINDING, VOLUME_CLAIMS, PROTECTION, NAMESPACES, accounts(setup.ca), GARBAGE)
