"""The control plane's own reads and writes: gives the store's changes to the reconcilers, and makes the changes that they return."""

from __future__ import annotations

import asyncio

from pykubelet.base.kit.cells import Cell
from pykubelet_local_api.access.aggregation import aggregated_roles
from pykubelet_local_api.access.bootstrap import bootstrap_changes
from pykubelet_local_api.access.place import AuthorityPem
from pykubelet_local_api.access.rbac import CLUSTER_ROLES
from pykubelet_local_api.access.signing import REQUESTS, signed_requests
from pykubelet_local_api.access.token_requests import filled_secrets
from pykubelet_local_api.access.tokens import AccountTokens
from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.kinds.table import STORED
from pykubelet_local_api.objects import Json, copied, is_longer, namespace_of
from pykubelet_local_api.reconcile.loop import ReconcileLoop
from pykubelet_local_api.reconcile.namespaces import NAMESPACES
from pykubelet_local_api.reconcile.reconciler import Reconciler
from pykubelet_local_api.registry import ObjectRegistry
from pykubelet_local_api.store.sizes import LARGE_BYTES
from pykubelet_local_api.store.store import ObjectStore
from pykubelet_local_api.strategies.classes import system_class_changes
from pykubelet_local_api.strategies.pod_binding import bound
from pykubelet_local_api.strategies.strategy import Context
from pykubelet_local_api.view import CONTROL, ObjectChange, Verb, View
from pykubelet_local_api.write_options import DeletionOptions, WriteOptions

MANAGER = "pykubelet-local-api"
_OPTIONS = WriteOptions(CONTROL, MANAGER)
_LARGE = WriteOptions(CONTROL, MANAGER, is_large=True)


class RegistryWriter:
    """Makes changes through the registry, as any client's are made. `view`: the objects now. Raises StatusError."""

    def __init__(self, registry: ObjectRegistry, view: View) -> None:
        self._registry = registry
        self._view = view

    async def apply(self, change: ObjectChange) -> None:
        """Make one change. Strategies change what they get in place, so they get a copy: a change shares parts with stored objects."""
        resource, _, subresource = change.resource.partition("/")
        kind, wanted = STORED[resource], change.object
        namespace, name = namespace_of(wanted), str(wanted["metadata"].get("name") or "")

        def edit(old: Json | None) -> Json:
            if (resource, subresource) == ("pods", "binding"):
                return bound(old, wanted, name, Context(self._view, CONTROL, subresource))
            return copied(wanted)

        is_large = change.verb is not Verb.DELETE and is_longer(wanted, LARGE_BYTES)
        options = _LARGE if is_large else _OPTIONS
        match change.verb:
            case Verb.CREATE if not subresource:
                # the registry copies large objects itself, in a thread
                await self._registry.create(kind, namespace, wanted if is_large else copied(wanted), options)
            case Verb.CREATE | Verb.UPDATE:
                await self._registry.update(kind, namespace, name, edit, options, subresource)
            case Verb.STATUS:
                await self._registry.update(kind, namespace, name, edit, options, "status")
            case Verb.DELETE:
                uid, version = (str(wanted["metadata"].get(key) or "") for key in ("uid", "resourceVersion"))
                seen = DeletionOptions(CONTROL, change.grace_s, uid=uid, resource_version=version)
                await self._registry.delete(kind, namespace, name, seen)


def access_reconcilers(authority: Cell[AuthorityPem], tokens: AccountTokens) -> tuple[Reconciler, ...]:
    """What keeps credentials and roles up to date."""

    def requests(view: View) -> list[ObjectChange]:
        return signed_requests(authority.get(), view)

    def secrets(view: View) -> list[ObjectChange]:
        return filled_secrets(tokens, authority.get().pem, view.list("secrets"), view)

    return (
        Reconciler("aggregated-roles", frozenset({CLUSTER_ROLES}), aggregated_roles),
        Reconciler("certificates", frozenset({REQUESTS, "nodes"}), requests),
        Reconciler("token-secrets", frozenset({"secrets", "serviceaccounts"}), secrets),
    )


async def prepare_objects(store: ObjectStore, writer: RegistryWriter) -> None:
    """Make what every cluster has before the first client is served. Raises StatusError."""
    for decide in (NAMESPACES.reconcile, bootstrap_changes, system_class_changes):
        for change in decide(store):
            try:
                await writer.apply(change)
            except StatusError as error:
                if error.code != 409:  # the reconcilers were faster
                    raise


async def note_changes(store: ObjectStore, loop: ReconcileLoop) -> None:
    """Name each changed object to the reconcilers, until cancelled."""
    wakeup = asyncio.Event()
    store.watch("", wakeup)
    seen = store.version
    while True:
        wakeup.clear()
        if seen < store.history.oldest:  # large objects that were written together may push out others
            loop.note_all()
        for change in store.history.all_after(seen):
            loop.note(change.key.resource, change.key.namespace, change.key.name)
        seen = store.version
        await wakeup.wait()


async def note_authority(authority: Cell[AuthorityPem], loop: ReconcileLoop) -> None:
    """Have the reconcilers look at everything when the certificate of the authority was renewed, until cancelled."""
    async for _ in authority.changes():
        loop.note_all()
