"""What the kinds have in common in the way of a write: a strategy prepares an object and validates it. Pure.

The registry asks in this order: `prepare_create`, then `validate_create`; or `prepare_update`, then `validate_update`. The
registry itself sets name, namespace, UID, times, generation and resource version, and checks conflicts.
"""

from __future__ import annotations

from pykubelet.base.kit.values import Value
from pykubelet.base.manifests.validation.errors import Errors
from pykubelet_local_api.objects import Json
from pykubelet_local_api.view import RequestUser, View


class Context(Value):
    """What a strategy may look at: the other objects, and the client. `subresource`: "" for the object itself."""

    view: View
    user: RequestUser
    subresource: str = ""


class KindStrategy:
    """The strategy of a kind without special rules. `prepare_*` change `new` in place, which is a private copy."""

    def prepare_create(self, new: Json, context: Context) -> None:
        """Set defaults and drop what clients may not set. Raises `StatusError` (403) if admission refuses the object."""

    def prepare_update(self, new: Json, old: Json, context: Context) -> None:
        """The same for a change. For a subresource, `new` gets all of `old` that the subresource may not change."""

    def validate_create(self, new: Json, context: Context) -> Errors:
        """The wrong fields of a new object."""
        return []

    def validate_update(self, new: Json, old: Json, context: Context) -> Errors:
        """The wrong fields of a changed object, and changes that are not allowed."""
        return []
