"""Pods and claims for the tests of the claim manager."""

from __future__ import annotations

from typing import Any

from pykubelet.base.api.codec import from_object
from pykubelet.base.api.core import Pod
from pykubelet.base.api.resource_claims import ApiClaim

GPU = "gpu.example.com"
NAMESPACE = "default"


def claiming_pod(
    name: str = "web", *claims: dict[str, Any], uses: list[dict[str, str]] | None = None, **status: Any
) -> Pod:
    """A pod with these `resourceClaims`, all of which its container `main` uses unless `uses` names others."""
    entries = list(claims) or [{"name": "gpu", "resourceClaimName": "one"}]
    used = [{"name": claim["name"]} for claim in entries] if uses is None else uses
    container = {"name": "main", "image": "busybox:1", "resources": {"claims": used}}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}"},
        "spec": {"containers": [container, {"name": "side", "image": "busybox:1"}], "resourceClaims": entries},
        "status": status,
    }
    return from_object(Pod, body)


def claim_body(
    name: str = "one",
    *pods: str,
    drivers: tuple[str, ...] = (GPU,),
    owner: str = "",
    allocated: bool = True,
    skips: tuple[str, ...] = (),
) -> dict[str, Any]:
    """A ResourceClaim that is reserved for these pods, with a device of each driver. `skips`: of all devices."""
    owners = (
        [{"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": f"uid-{owner}", "controller": True}] if owner else []
    )
    device = {"pool": "pool", "device": "dev-0", "request": "gpu", "skipNodeOperations": list(skips)}
    results = [{"driver": driver, **device} for driver in drivers]
    status: dict[str, Any] = {
        "reservedFor": [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods or ("web",)]
    }
    if allocated:
        status["allocation"] = {"devices": {"results": results}}
    return {"metadata": {"name": name, "namespace": NAMESPACE, "ownerReferences": owners}, "spec": {}, "status": status}


def api_claim(name: str = "one", *pods: str, uid: str = "claim-1", **more: Any) -> ApiClaim:
    """The same, as the agent reads it."""
    body = claim_body(name, *pods, **more)
    body["metadata"]["uid"] = uid
    return from_object(ApiClaim, body)
