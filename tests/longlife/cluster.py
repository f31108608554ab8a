"""The cluster's side of the simulation: pods and what they refer to, a signer of certificates, and servers inside the pods."""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from support.api_objects import ResourcePath
from support.memory_api import MemoryApiServer

from pykubelet.base.api.codec import from_object, to_object
from pykubelet.base.api.core import Pod
from pykubelet.base.kit.clock import Clock
from pykubelet.base.manifests.defaults import default_pod
from pykubelet.net.grpc.server import RpcServer
from pykubelet.net.grpc.services import Services

Json = dict[str, Any]
NODE_NAME = "node"
PODS = "/api/v1/namespaces/default/pods"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
SECRETS = "/api/v1/namespaces/default/secrets"
SIGNING = "certificatesigningrequests"
CERTIFICATE_S = 4 * 86400
HTTP_PORT, GRPC_PORT = 8080, 9090
FOREVER = "trap 'exit 0' TERM; serve"


def container(name: str = "app", script: str = FOREVER, **more: Any) -> Json:
    resources = {"requests": {"cpu": "10m", "memory": "8Mi"}, "limits": {"cpu": "100m", "memory": "64Mi"}}
    return {
        "name": name,
        "image": "registry.test/app:1",
        "command": ["sh", "-c", script],
        "resources": resources,
        **more,
    }


def pod(name: str, *containers: Json, **spec: Any) -> Json:
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "containers": list(containers) or [container()],
            "serviceAccountName": "default",
            "terminationGracePeriodSeconds": 5,
            **spec,
        },
    }


def probes(period_s: int) -> Json:
    """One of each sort; `serve_in_pods` answers."""
    every = {"periodSeconds": period_s, "timeoutSeconds": 5}
    return {
        "startupProbe": {"exec": {"command": ["true"]}, **every, "failureThreshold": 10},
        "readinessProbe": {"httpGet": {"port": HTTP_PORT, "path": "/ready"}, **every},
        "livenessProbe": {"tcpSocket": {"port": HTTP_PORT}, **every},
    }


def token_volume(seconds: int = 3600) -> Json:
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": seconds}},
        {"configMap": {"name": "settings"}},
        {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
    ]
    return {"name": "access", "projected": {"sources": sources}}


def resident(name: str, period_s: int) -> Json:
    """A pod for weeks, with everything that needs care meanwhile."""
    mounts = [
        {"name": "access", "mountPath": "/var/run/secrets/access"},
        {"name": "keys", "mountPath": "/keys"},
        {"name": "scratch", "mountPath": "/scratch"},
    ]
    env = [{"name": "COLOR", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "color"}}}]
    grpc: Json = {"livenessProbe": {"grpc": {"port": GRPC_PORT}, "periodSeconds": period_s, "timeoutSeconds": 5}}
    return pod(
        name,
        container("app", volumeMounts=mounts, env=env, **probes(period_s)),
        container("side", **grpc),
        initContainers=[container("prepare", "sleep 2; exit 0")],
        volumes=[
            token_volume(),
            {"name": "keys", "secret": {"secretName": "keys"}},
            {"name": "scratch", "emptyDir": {}},
        ],
    )


class Cluster:
    """What users and controllers do at the API server."""

    def __init__(self, api: MemoryApiServer, clock: Clock) -> None:
        self.api = api
        self._clock = clock
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.signed = 0

    def run(self, manifest: Json) -> Json:
        """A pod bound to the node, with the defaults that an API server gives it."""
        bound = manifest | {"spec": manifest["spec"] | {"nodeName": NODE_NAME}}
        return self.api.create(PODS, to_object(default_pod(from_object(Pod, bound))))

    def delete(self, *names: str) -> None:
        for name in names:
            self.api.delete(f"{PODS}/{name}")

    def pods(self) -> dict[str, Json]:
        return {item["metadata"]["name"]: item for item in self.api.objects("pods")}

    def pod(self, name: str) -> Json | None:
        return self.pods().get(name)

    def settings(self, color: str) -> None:
        self._put(CONFIG_MAPS, "settings", {"color": color})

    def keys(self, key: str) -> None:
        self._put(SECRETS, "keys", {"key": base64.b64encode(key.encode()).decode()})

    def put_config_map(self, name: str, data: Json) -> None:
        self._put(CONFIG_MAPS, name, data)

    def _put(self, path: str, name: str, data: Json) -> None:
        place = ResourcePath("v1", path.rpartition("/")[2], "default", name)
        if place in self.api.store.objects:
            self.api.update(f"{path}/{name}", lambda item: item.update(data=data))
        else:
            self.api.create(path, {"metadata": {"name": name}, "data": data})

    def resize(self, name: str, cpu: str) -> None:
        def changed(item: Json) -> None:
            item["spec"]["containers"][0]["resources"]["limits"]["cpu"] = cpu

        self.api.update(f"{PODS}/{name}/resize", changed)

    def forget_events(self) -> None:
        """An API server keeps Events for an hour, and signing requests that were answered not for ever."""
        for plural in ("events", SIGNING):
            for place in [place for place in self.api.store.objects if place.plural == plural]:
                self.api.store.remove(place)

    async def sign_for_ever(self) -> None:
        wakeup = asyncio.Event()
        self.api.store.watch(wakeup)
        while True:
            wakeup.clear()
            for item in self.api.objects(SIGNING):
                if not item.get("status", {}).get("certificate"):
                    self._sign(item)
            await wakeup.wait()

    def _sign(self, item: Json) -> None:
        asked = x509.load_pem_x509_csr(base64.b64decode(item["spec"]["request"]))
        now = datetime.fromtimestamp(self._clock.wall(), UTC)
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
        made = x509.CertificateBuilder(
            issuer_name=name,
            subject_name=asked.subject,
            public_key=asked.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - timedelta(minutes=5),
            not_valid_after=now + timedelta(seconds=CERTIFICATE_S),
        )
        for extension in asked.extensions:
            made = made.add_extension(extension.value, extension.critical)
        pem = made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
        status = {
            "conditions": [{"type": "Approved", "status": "True"}],
            "certificate": base64.b64encode(pem).decode(),
        }
        place = ResourcePath("certificates.k8s.io/v1", SIGNING, "", item["metadata"]["name"], "status")
        self.api.store.update(place, {**item, "status": status})
        self.signed += 1


class InPods:
    """What listens in all pods, which have all addresses of 10.88.0.0/16 on this machine's loopback. `is_well`: what it answers."""

    def __init__(self) -> None:
        self.is_well = True
        self.asked = 0
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        health = RpcServer(Services({"/grpc.health.v1.Health/Check": self._health}))
        self._servers = [
            await asyncio.start_server(self._answer, "0.0.0.0", HTTP_PORT),
            await asyncio.start_server(health.serve, "0.0.0.0", GRPC_PORT),
        ]

    def stop(self) -> None:
        for server in self._servers:
            server.close()

    async def _health(self, _request: bytes) -> bytes:
        self.asked += 1
        return b"\x08\x01" if self.is_well else b"\x08\x02"

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if await reader.readuntil(b"\r\n\r\n"):
                self.asked += 1
                status = b"200 OK" if self.is_well else b"503 Service Unavailable"
                writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # a TCP probe has no answer to check
        finally:
            writer.close()
