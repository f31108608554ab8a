"""What describes one kind of objects, and the names made from it. Pure."""

from __future__ import annotations

from pykubelet.base.kit.values import Value

#: The verbs of a kind that clients may do all with.
ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


class ResourceKind(Value):
    """One kind. `group` is "" for the core group. `subresources`: without a slash.

    `is_review`: objects of this kind are answered and not stored, such as TokenReviews. `stored_as`: the resource under which
    its objects are stored, if that is another kind's (Events of two groups are the same objects). `returns_deleted`: whether a
    deletion is answered with the object also when it is gone. `selected_fields`: those of field selectors beside name and namespace.
    """

    group: str
    version: str
    name: str
    plural: str
    is_namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    is_review: bool = False
    stored_as: str = ""
    returns_deleted: bool = False
    selected_fields: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        """`apiVersion` of its objects: `v1`, or `group/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def definition(self) -> str:
        """The name of its schema: `io.k8s.api.core.v1.Pod`."""
        return f"io.k8s.api.{self.group.partition('.')[0] or 'core'}.{self.version}.{self.name}"

    @property
    def resource(self) -> str:
        """The resource as RBAC and messages name it: `pods`, or `leases.coordination.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def storage(self) -> str:
        """The resource under which its objects are stored."""
        return self.stored_as or self.resource

    @property
    def singular(self) -> str:
        """The name in lower case, which `kubectl` takes for one object."""
        return self.name.lower()

    @property
    def list_name(self) -> str:
        """The kind of its lists."""
        return f"{self.name}List"

    @property
    def has_status(self) -> bool:
        """Whether its status is written through a subresource of its own."""
        return "status" in self.subresources
