"""What the tests before and after a power cut agree on: a node of the local API, with systemd units that start at each boot."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.agent import NODE_NAME, Json, make_container
from support.unit import systemctl

FOLDER = Path("/var/lib/testvm/power-cut")
NOTES = FOLDER / "before.json"
OUT = FOLDER / "out"
DATA = FOLDER / "api"
UNIT = Path("/etc/systemd/system/testvm-local-api.service")
PORT = 6443
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"
FLAGS = (
    "--kubeconfig", str(DATA / "kubelet.kubeconfig"), "--client-ca-file", str(DATA / "ca.crt"), "--authentication-token-webhook",
    "--authorization-mode", "Webhook",
)  # fmt: skip


def start_api() -> None:
    """Install and start the API's unit, which is enabled."""
    program = Path(sys.executable).with_name("pykubelet")
    UNIT.write_text(
        f"""[Unit]
Description=Kubernetes API for this node

[Service]
ExecStart={program} local-api --data-dir {DATA} --port {PORT} --node-name {NODE_NAME} --service-address ""
Restart=always

[Install]
WantedBy=multi-user.target
"""
    )
    systemctl("daemon-reload")
    systemctl("enable", UNIT.name)
    systemctl("start", UNIT.name)


def remove_api() -> None:
    """Stop the unit, and remove it."""
    systemctl("disable", "--now", UNIT.name)
    UNIT.unlink(missing_ok=True)
    systemctl("daemon-reload")


def make_pod_of_api() -> Json:
    """A pod that notes each start, with a value of a ConfigMap and the length of its token."""
    script = f'echo "$COLOR $(wc -c < {TOKEN})" >> /out/web; trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'
    reference = {"configMapKeyRef": {"name": "colors", "key": "color"}}
    container = make_container(
        script=script,
        env=[{"name": "COLOR", "valueFrom": reference}],
        volumeMounts=[{"name": "out", "mountPath": "/out"}],
    )
    spec = {"containers": [container], "volumes": [{"name": "out", "hostPath": {"path": str(OUT)}}]}
    return {"metadata": {"name": "web"}, "spec": spec}


def ask(method: str, path: str, body: Json | None = None) -> tuple[int, Json]:
    """The status and the body of an answer; (0, {}) without one."""
    context = ssl.create_default_context(cafile=str(DATA / "ca.crt"))
    context.load_cert_chain(DATA / "local-api-client.crt", DATA / "local-api-client.key")
    connection = http.client.HTTPSConnection("127.0.0.1", PORT, context=context, timeout=60)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        found: Json = json.loads(answer.read())
        return answer.status, found
    except (OSError, ValueError):
        return 0, {}
    finally:
        connection.close()


async def wait_for(path: str, holds: Callable[[int, Json], bool], within: float) -> Json:
    """Wait until an answer is as wanted."""
    async with asyncio.timeout(within):
        while True:
            try:
                status, found = await asyncio.to_thread(ask, "GET", path)
            except FileNotFoundError:  # the certificates are not made yet
                status, found = 0, {}
            if holds(status, found):
                return found
            await asyncio.sleep(1)


def is_running(status: int, pod: Json) -> bool:
    """Whether the answer is a pod with all containers running."""
    states: list[Any] = pod.get("status", {}).get("containerStatuses") or []
    return status == 200 and bool(states) and all("running" in state.get("state", {}) for state in states)
