"""What the kinds have in common in the way of a write: a strategy prepares an object and validates it. Pure.

The registry asks in this order: `default`, on a copy, whose fields then have the client as their manager; `prepare_create`, then
`validate_create`; or `prepare_update`, then `validate_update`. The registry itself sets name, namespace, UID, times, generation and
resource version, and checks conflicts.
"""

from __future__ import annotations

from typing import Any

from pykubelet.base.api import labels as names
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
    """The strategy of a kind without special rules. `prepare_*` change `new` in place, which is a private copy.

    `has_generation`: whether `metadata.generation` counts the changes of the wanted state. `allows_create_on_update`: a PUT of
    an object that is not there creates it. `allows_unconditional_update`: a PUT needs no resource version. `is_graceful`: deletions
    have a grace period.
    """

    has_generation: bool = False
    allows_create_on_update: bool = False
    allows_unconditional_update: bool = True
    is_graceful: bool = False

    def name_errors(self, name: str) -> list[str]:
        """Why the name is not legal."""
        return names.dns_subdomain_errors(name)

    def default(self, new: Json, old: Json | None, context: Context) -> None:
        """Set defaults of a created or changed object."""

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

    def warnings(self, new: Json, old: Json | None, context: Context) -> list[str]:
        """Texts for the client's `Warning` headers, for an object without errors. `old`: None for a new object."""
        return []

    def is_new_generation(self, new: Json, old: Json) -> bool:
        """Whether a change counts as one of the wanted state."""
        return bool(_spec(new) != _spec(old))

    def prepare_delete(self, new: Json, context: Context) -> None:
        """Change an object whose deletion begins or goes on. Raises `StatusError` (403) if it may not be deleted.

        `new` and its metadata are copies, and the values in them are not: they are replaced, not changed.
        """

    def grace_s(self, old: Json, asked: int | None) -> int:
        """The grace period of a deletion, in seconds. `asked`: that of the request; None: not stated."""
        return 0

    def default_propagation(self, old: Json) -> str:
        """What happens to owned objects if the request does not state it: "" is Background, with the finalizers as they are."""
        return ""


def _spec(found: Json) -> Any:
    return found.get("spec")
