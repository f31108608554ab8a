"""Which strategy a kind has. Pure."""

from __future__ import annotations

from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.table import KINDS
from pykubelet_local_api.strategies.certificates import SigningRequestStrategy
from pykubelet_local_api.strategies.classes import PriorityClassStrategy, RuntimeClassStrategy
from pykubelet_local_api.strategies.common import ObjectStrategy
from pykubelet_local_api.strategies.config_data import ConfigMapStrategy, SecretStrategy
from pykubelet_local_api.strategies.endpoints import EndpointSliceStrategy, EndpointsStrategy
from pykubelet_local_api.strategies.events import EventStrategy
from pykubelet_local_api.strategies.leases import LeaseStrategy
from pykubelet_local_api.strategies.namespaces import NamespaceStrategy
from pykubelet_local_api.strategies.nodes import NodeStrategy
from pykubelet_local_api.strategies.pods import PodStrategy
from pykubelet_local_api.strategies.rbac import RoleBindingStrategy, RoleStrategy
from pykubelet_local_api.strategies.resource_claims import (
    ClaimTemplateStrategy,
    DeviceClassStrategy,
    ResourceClaimStrategy,
    ResourceSliceStrategy,
)
from pykubelet_local_api.strategies.services import ServiceStrategy
from pykubelet_local_api.strategies.storage_classes import (
    AttachmentStrategy,
    CapacityStrategy,
    CsiDriverStrategy,
    CsiNodeStrategy,
    StorageClassStrategy,
)
from pykubelet_local_api.strategies.strategy import KindStrategy
from pykubelet_local_api.strategies.volumes import ClaimStrategy, VolumeStrategy

#: By the resource; kinds that are not here have the common rules only.
_STRATEGIES: dict[str, type[ObjectStrategy]] = {
    "namespaces": NamespaceStrategy,
    "nodes": NodeStrategy,
    "pods": PodStrategy,
    "configmaps": ConfigMapStrategy,
    "secrets": SecretStrategy,
    "events": EventStrategy,
    "events.events.k8s.io": EventStrategy,
    "persistentvolumes": VolumeStrategy,
    "persistentvolumeclaims": ClaimStrategy,
    "services": ServiceStrategy,
    "endpoints": EndpointsStrategy,
    "leases.coordination.k8s.io": LeaseStrategy,
    "endpointslices.discovery.k8s.io": EndpointSliceStrategy,
    "storageclasses.storage.k8s.io": StorageClassStrategy,
    "csidrivers.storage.k8s.io": CsiDriverStrategy,
    "csinodes.storage.k8s.io": CsiNodeStrategy,
    "volumeattachments.storage.k8s.io": AttachmentStrategy,
    "csistoragecapacities.storage.k8s.io": CapacityStrategy,
    "runtimeclasses.node.k8s.io": RuntimeClassStrategy,
    "priorityclasses.scheduling.k8s.io": PriorityClassStrategy,
    "resourceclaims.resource.k8s.io": ResourceClaimStrategy,
    "resourceclaimtemplates.resource.k8s.io": ClaimTemplateStrategy,
    "resourceslices.resource.k8s.io": ResourceSliceStrategy,
    "deviceclasses.resource.k8s.io": DeviceClassStrategy,
    "roles.rbac.authorization.k8s.io": RoleStrategy,
    "rolebindings.rbac.authorization.k8s.io": RoleBindingStrategy,
    "clusterroles.rbac.authorization.k8s.io": RoleStrategy,
    "clusterrolebindings.rbac.authorization.k8s.io": RoleBindingStrategy,
    "certificatesigningrequests.certificates.k8s.io": SigningRequestStrategy,
}

_BY_KIND: dict[tuple[str, str], KindStrategy] = {
    (kind.group, kind.plural): _STRATEGIES.get(kind.resource, ObjectStrategy)(kind) for kind in KINDS
}


def strategy_of(kind: ResourceKind) -> KindStrategy:
    """The strategy of a kind; the subresource of a write is in the `Context`."""
    return _BY_KIND[kind.group, kind.plural]
