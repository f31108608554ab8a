"""VolumeAttachments for CSI drivers that attach, and the volumes that a node's status lists as attached. Pure.

Rules:
- A volume of a pod with a node has a VolumeAttachment if its driver attaches: unless a CSIDriver has `attachRequired: false`. The driver's
  external attacher serves it.
- A volume that no pod needs any longer is detached when the agent no longer reports it as in use. It leaves the Node's status first.
- Of other kinds (iSCSI, Fibre Channel, FlexVolume) nothing is attached: what the agent reports as in use counts as attached.
Source: KEP-178; the Kubernetes documentation "Node Status" (volumes in use, volumes attached).
"""

from __future__ import annotations

from pykubelet.base.kit.values import Value
from pykubelet.base.model.attachments import attachment_name, unique_csi_name
from pykubelet_local_api.objects import Json, is_deleting, name_of, namespace_of
from pykubelet_local_api.reconcile.changes import (
    created,
    deleted,
    event_about,
    reference_to,
    spec_of,
    status_of,
    status_updated,
    with_status,
)
from pykubelet_local_api.reconcile.fit_volumes import CLAIMS, VOLUMES, is_bound
from pykubelet_local_api.reconcile.pods import claims_of, has_ended, node_of
from pykubelet_local_api.reconcile.reconciler import Reconciler
from pykubelet_local_api.view import ObjectChange, View

ATTACHMENTS, DRIVERS = "volumeattachments.storage.k8s.io", "csidrivers.storage.k8s.io"
READS = frozenset({ATTACHMENTS, CLAIMS, DRIVERS, VOLUMES, "nodes", "pods"})
COMPONENT = "attachdetach-controller"
_CSI = "kubernetes.io/csi/"


class _Needed(Value):
    """A volume that a pod of a node needs attached."""

    volume: str
    driver: str
    handle: str
    node: str
    pod: Json


def reconcile(view: View) -> list[ObjectChange]:
    """Attachments that are missing or not needed, and the lists of the nodes."""
    needed = _needed(view)
    nodes = {name_of(node): node for node in view.list("nodes")}
    changes: list[ObjectChange] = []
    attached: dict[str, set[str]] = {name: set() for name in nodes}
    for name, item in needed.items():
        found = view.get(ATTACHMENTS, "", name)
        if found is None and item.node in nodes:
            changes.append(created(ATTACHMENTS, _attachment(name, item)))
        elif found is not None:
            changes += _events(view, found, item)
    for found in view.list(ATTACHMENTS):
        spec = spec_of(found)
        node = nodes.get(spec.get("nodeName") or "")
        unique = _unique_name(view, found)
        if name_of(found) in needed or (node is not None and unique in (status_of(node).get("volumesInUse") or ())):
            if node is not None and unique and status_of(found).get("attached") and not is_deleting(found):
                attached[name_of(node)].add(unique)
        elif not is_deleting(found) and not (node is not None and unique in _listed(node)):
            changes.append(deleted(ATTACHMENTS, found))
    for name, node in nodes.items():
        names = attached[name]
        names |= {item for item in status_of(node).get("volumesInUse") or () if not item.startswith(_CSI)}
        if names != set(_listed(node)):
            listed = [{"name": item, "devicePath": ""} for item in sorted(names)]
            changes.append(status_updated("nodes", with_status(node, volumesAttached=listed or None)))
    return changes


def _listed(node: Json) -> list[str]:
    return [item.get("name", "") for item in status_of(node).get("volumesAttached") or ()]


def _needed(view: View) -> dict[str, _Needed]:
    """By the name of the VolumeAttachment."""
    found: dict[str, _Needed] = {}
    for pod in view.list("pods"):
        if not node_of(pod) or has_ended(pod):
            continue
        for claim_name, _ in claims_of(pod):
            claim = view.get(CLAIMS, namespace_of(pod), claim_name)
            if claim is None or not is_bound(claim):
                continue
            volume = view.get(VOLUMES, "", spec_of(claim)["volumeName"])
            source = spec_of(volume).get("csi") if volume is not None else None
            if volume is None or not source or not _attaches(view, source.get("driver", "")):
                continue
            driver, handle = source.get("driver", ""), source.get("volumeHandle", "")
            name = attachment_name(handle, driver, node_of(pod))
            found.setdefault(name, _Needed(name_of(volume), driver, handle, node_of(pod), pod))
    return found


def _attaches(view: View, driver: str) -> bool:
    found = view.get(DRIVERS, "", driver)
    return found is None or spec_of(found).get("attachRequired") is not False


def _attachment(name: str, item: _Needed) -> Json:
    spec = {"attacher": item.driver, "nodeName": item.node, "source": {"persistentVolumeName": item.volume}}
    return {"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": name}, "spec": spec}


def _unique_name(view: View, found: Json) -> str:
    """The unique name of the attached volume; "" if its volume is gone: then the name of the object decides alone."""
    volume = view.get(VOLUMES, "", (spec_of(found).get("source") or {}).get("persistentVolumeName") or "")
    source = spec_of(volume).get("csi") if volume is not None else None
    return unique_csi_name(source.get("driver", ""), source.get("volumeHandle", "")) if source else ""


def _events(view: View, found: Json, item: _Needed) -> list[ObjectChange]:
    about, status = reference_to(item.pod, "Pod"), status_of(found)
    if status.get("attached"):
        text = f'AttachVolume.Attach succeeded for volume "{item.volume}" '
        return (
            event_about(view, about, "Normal", "SuccessfulAttachVolume", text, COMPONENT)
            if _is_recent(item.pod)
            else []
        )
    if message := (status.get("attachError") or {}).get("message"):
        text = f'AttachVolume.Attach failed for volume "{item.volume}" : {message}'
        return event_about(view, about, "Warning", "FailedAttachVolume", text, COMPONENT)
    return []


def _is_recent(pod: Json) -> bool:
    """Whether the pod has not started, so that its attached volume is news."""
    return status_of(pod).get("phase") in (None, "", "Pending")


def concerns(view: View, resource: str, namespace: str, name: str) -> bool:
    """Of pods: those that are gone, and those with claims."""
    if resource != "pods":
        return True
    pod = view.get("pods", namespace, name)
    return pod is None or any(True for _ in claims_of(pod))


VOLUME_ATTACHMENTS = Reconciler("attachments", READS, reconcile, concerns)
