"""Leases. Pure. Source: the API reference of Lease; KEP-589 (leases of nodes)."""

from __future__ import annotations

from pykubelet.base.manifests.validation.errors import Errors, invalid, nonnegative
from pykubelet_local_api.objects import Json
from pykubelet_local_api.strategies.common import ObjectStrategy
from pykubelet_local_api.strategies.node_restriction import restrict_lease
from pykubelet_local_api.strategies.strategy import Context


class LeaseStrategy(ObjectStrategy):
    """The strategy of Leases."""

    allows_create_on_update = True
    allows_unconditional_update = False

    def default(self, new: Json, old: Json | None, context: Context) -> None:
        new["spec"] = new.get("spec") or {}

    def admit(self, new: Json, old: Json | None, context: Context) -> None:
        restrict_lease(self.kind, new, context)

    def prepare_delete(self, new: Json, context: Context) -> None:
        restrict_lease(self.kind, new, context)

    def validate(self, new: Json, context: Context) -> Errors:
        spec = new["spec"]
        errors: Errors = []
        seconds = spec.get("leaseDurationSeconds")
        if seconds is not None and seconds <= 0:
            errors.append(invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0"))
        return errors + nonnegative("spec.leaseTransitions", spec.get("leaseTransitions"))
