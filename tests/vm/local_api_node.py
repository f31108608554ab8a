"""The node of the Debian package's services with the local API: what the tests before a reboot, after it and after a power cut share.

The services are `pykubelet-local-api`, `pykubelet`, which joins it, and `pykubelet csi-local` as docs/csi-local.md has it.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.agent import Json
from support.guides import blocks
from support.typed import journal, run
from support.unit import LONG_S, systemctl
from testbed import images

FOLDER = Path("/var/lib/testvm/local-api")
NOTES = FOLDER / "notes.json"
DATA = Path("/var/lib/pykubelet-local-api")
API_UNIT = "pykubelet-local-api.service"
CSI_UNIT = "pykubelet-csi-local.service"
NODE = "testvm"
PORT = 6443
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NODES = f"/api/v1/nodes/{NODE}"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE}"
DEFAULT = "/api/v1/namespaces/default"
POD = f"{DEFAULT}/pods/web"
#: As of a registry, which the machine does not reach.
IMAGE = "registry.example.com/shop/web:1"
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"
#: Each start of the container writes a line into its volume, and waits until it is on the disk.
SCRIPT = f'echo "$COLOR $(wc -c < {TOKEN})" >> /data/starts; sync; trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'


def objects() -> list[tuple[str, Json]]:
    """What is created, each with the path of its collection: a claim that csi-local provisions, and a pod that uses it."""
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "local",
        "resources": {"requests": {"storage": "16Mi"}},
    }
    container = {
        "name": "main",
        "image": IMAGE,
        "command": ["/bin/sh", "-c", SCRIPT],
        "env": [{"name": "COLOR", "valueFrom": {"configMapKeyRef": {"name": "colors", "key": "color"}}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    storage = "/apis/storage.k8s.io/v1"
    driver = {"attachRequired": False, "podInfoOnMount": True, "fsGroupPolicy": "File"}
    return [
        (f"{storage}/csidrivers", {"metadata": {"name": "local.csi.pykubelet"}, "spec": driver}),
        (
            f"{storage}/storageclasses",
            {
                "metadata": {"name": "local"},
                "provisioner": "local.csi.pykubelet",
                "volumeBindingMode": "WaitForFirstConsumer",
            },
        ),
        (f"{DEFAULT}/configmaps", {"metadata": {"name": "colors"}, "data": {"color": "green"}}),
        (f"{DEFAULT}/persistentvolumeclaims", {"metadata": {"name": "data"}, "spec": claim}),
        (
            f"{DEFAULT}/pods",
            {
                "metadata": {"name": "web"},
                "spec": {"terminationGracePeriodSeconds": 2, "containers": [container], "volumes": [volume]},
            },
        ),
    ]


def name_image() -> None:
    """Give the image of the tests the name of one from a registry."""
    run("ctr", "-n", "k8s.io", "images", "tag", "--force", images.BUSYBOX, IMAGE)


def start_driver() -> None:
    """The driver's unit as the guide has it."""
    [unit] = blocks("csi-local.md", "ini", "As a service")
    Path("/etc/systemd/system", CSI_UNIT).write_text(unit)
    systemctl("daemon-reload")
    systemctl("enable", "--now", CSI_UNIT)


def remove() -> None:
    """No service of these, no package, and none of their files, except those of the agent."""
    systemctl("disable", "--now", CSI_UNIT, API_UNIT, check=False)
    Path("/etc/systemd/system", CSI_UNIT).unlink(missing_ok=True)
    run("dpkg", "--purge", "pykubelet", check=False)
    for folder in (DATA, FOLDER, Path("/var/lib/pykubelet-csi-local")):
        shutil.rmtree(folder, ignore_errors=True)
    systemctl("daemon-reload")


def ask(method: str, path: str, body: Json | None = None, token: str = "") -> tuple[int, Json]:
    """The status and the body of an answer; (0, {}) without one. `token`: in the place of the administrator's certificate."""
    try:
        context = ssl.create_default_context(cafile=str(DATA / "ca.crt"))
        if not token:
            context.load_cert_chain(DATA / "local-api-client.crt", DATA / "local-api-client.key")
    except OSError:  # they are not made yet
        return 0, {}
    connection = http.client.HTTPSConnection("127.0.0.1", PORT, context=context, timeout=60)
    try:
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        found: Json = json.loads(answer.read())
        return answer.status, found
    except (OSError, ValueError):
        return 0, {}
    finally:
        connection.close()


async def wait_for(path: str, holds: Callable[[Json], bool] = bool, within: float = LONG_S) -> Json:
    """Wait until an object is there, and as wanted. The AssertionError has the end of the journal."""
    found: Json = {}
    try:
        async with asyncio.timeout(within):
            while True:
                status, found = await asyncio.to_thread(ask, "GET", path)
                if status == 200 and holds(found):
                    return found
                await asyncio.sleep(0.5)
    except TimeoutError:
        raise AssertionError(f"{path}: {found}\n{await asyncio.to_thread(journal)}") from None


async def wait_renewed() -> None:
    """The agent has renewed the lease of its node since now, so it has found the API."""
    _, before = await asyncio.to_thread(ask, "GET", LEASE)
    await wait_for(LEASE, lambda found: found["spec"]["renewTime"] != before.get("spec", {}).get("renewTime"))


def is_ready(found: Json) -> bool:
    """Whether the condition Ready of a node or pod is true."""
    conditions = found.get("status", {}).get("conditions", ())
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)


def has_restarted(pod: Json, times: int) -> bool:
    """Whether the container runs, so many times anew."""
    states: list[Any] = pod.get("status", {}).get("containerStatuses") or []
    return [state["restartCount"] for state in states if "running" in state["state"]] == [times]


def pod_folder(pod: Json) -> Path:
    """The agent's folder of the pod."""
    return Path("/var/lib/kubelet/pods", pod["metadata"]["uid"])


def starts(pod: Json) -> list[str]:
    """The lines in the pod's volume."""
    volume = pod["spec"]["volumes"][0]["name"]
    assert volume == "data"
    [mount] = (pod_folder(pod) / "volumes/kubernetes.io~csi").glob("*/mount")
    return (mount / "starts").read_text().splitlines()


def token_user(pod: Json) -> str:
    """The user that the API sees in the token of the pod; "" if it refuses the token."""
    [token] = (pod_folder(pod) / "volumes/kubernetes.io~projected").glob("*/token")
    kind = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    status, found = ask("POST", path, kind, token.read_text())
    return str(found["status"]["userInfo"]["username"]) if status == 201 else ""
