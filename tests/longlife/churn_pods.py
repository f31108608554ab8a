"""Pods of all shapes, which come and go: what each of them has, and the objects that are there for it alone."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from longlife.cluster import FOREVER, GRPC_PORT, container, pod, probes, token_volume

Json = dict[str, Any]
CORE = "/api/v1"
CLAIM_SIZE = {"storage": "1Gi"}
DEAF = "trap '' TERM; serve"
ALL_AGAIN = 88


@dataclass(frozen=True)
class Passing:
    """A pod that comes and goes. `objects`: with the paths of their collections, in the order in which they are made; `image`: pulled for
    it alone. `is_static`: its manifest is a file."""

    manifest: Json
    objects: tuple[tuple[str, Json], ...] = ()
    image: str = ""
    is_static: bool = False

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.manifest["metadata"]["namespace"])


def passing(number: int, random: Random) -> Passing:
    """The pod with this number, in a namespace, with labels and annotations that few or no others have."""
    made = SHAPES[number % len(SHAPES)](f"p{number}", random)
    _request_little(made.manifest["spec"])
    about = made.manifest["metadata"]
    about["labels"] = {"app": f"app-{number % 40}", "pod-template-hash": random.randbytes(5).hex()}
    about["annotations"] = {"example.com/revision": str(number)}
    return made


def _request_little(spec: Json) -> None:
    """So that the node takes all pods, unless they are to be refused."""
    for made in (*spec["containers"], *spec.get("initContainers", ())):
        if made["resources"]["requests"]["cpu"] == "10m":
            made["resources"]["requests"]["cpu"] = "1m"


def _plain(name: str, _: Random) -> Passing:
    return Passing(pod(name))


def _many_containers(name: str, random: Random) -> Passing:
    return Passing(pod(name, *(container(f"c{index}") for index in range(random.randint(4, 12)))))


def _with_init(name: str, random: Random) -> Passing:
    init = [container("prepare", "sleep 1; exit 0"), _sidecar("proxy"), container("migrate", "sleep 2; exit 0")]
    return Passing(pod(name, container(), container("b"), initContainers=init[: random.randint(1, 3)]))


def _sidecar(name: str) -> Json:
    started: Json = {"startupProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1}}
    return container(name, restartPolicy="Always", **started)


def _failing_init(name: str, _: Random) -> Passing:
    return Passing(pod(name, initContainers=[container("prepare", "sleep 1; exit 1")]))


def _with_own_config(name: str, random: Random) -> Passing:
    """A ConfigMap and a Secret of its own, as volumes, as variables, and in a projected volume with a token."""
    data = {f"key-{index}": random.randbytes(100).hex() for index in range(random.randint(1, 20))}
    secret = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    objects = (
        (_in_default("configmaps"), {"metadata": {"name": name}, "data": data}),
        (_in_default("secrets"), {"metadata": {"name": name}, "data": secret}),
    )
    projected = token_volume()
    projected["projected"]["sources"] += [{"configMap": {"name": name}}, {"secret": {"name": name, "items": []}}]
    volumes = [
        {"name": "config", "configMap": {"name": name}},
        {"name": "secret", "secret": {"secretName": name}},
        projected,
    ]
    env_from = [{"configMapRef": {"name": name}}, {"secretRef": {"name": name}}]
    return Passing(pod(name, _mounting(volumes) | {"envFrom": env_from}, volumes=volumes), objects)


def _with_volumes(name: str, _: Random) -> Passing:
    """The kinds of volumes that need no objects of its own."""
    fields = [
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "cpu", "resourceFieldRef": {"containerName": "app", "resource": "limits.cpu"}},
    ]
    volumes: list[Json] = [
        {"name": "scratch", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "host", "hostPath": {"path": "/etc"}},
        {"name": "fields", "downwardAPI": {"items": fields}},
        {"name": "settings", "configMap": {"name": "settings"}},
        {"name": "keys", "secret": {"secretName": "keys"}},
        {"name": "none", "configMap": {"name": "there-is-none", "optional": True}},
        token_volume(),
    ]
    mounting = _mounting(volumes)
    mounting["volumeMounts"].append({"name": "scratch", "mountPath": "/part", "subPath": "part"})
    return Passing(pod(name, mounting, container("b", volumeMounts=mounting["volumeMounts"][:2]), volumes=volumes))


def _with_claim(name: str, _: Random) -> Passing:
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": CLAIM_SIZE}}
    bound = {"phase": "Bound", "capacity": CLAIM_SIZE, "accessModes": ["ReadWriteOnce"]}
    reference = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": name}
    volume = {
        "capacity": CLAIM_SIZE,
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/etc"},
        "claimRef": reference,
    }
    about = {"name": name, "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
    objects = (
        (
            _in_default("persistentvolumeclaims"),
            {"metadata": about, "spec": spec | {"volumeName": name}, "status": bound},
        ),
        (f"{CORE}/persistentvolumes", {"metadata": {"name": name}, "spec": volume, "status": {"phase": "Bound"}}),
    )
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]
    return Passing(pod(name, _mounting(volumes), volumes=volumes), objects)


def _waiting(name: str, random: Random) -> Passing:
    """What it refers to never comes."""
    volumes: Json = random.choice(
        (
            {"configMap": {"name": f"no-{name}"}},
            {"secret": {"secretName": f"no-{name}"}},
            {"persistentVolumeClaim": {"claimName": f"no-{name}"}},
            {"csi": {"driver": f"{name}.no.csi.test"}},
            {"projected": {"sources": [{"configMap": {"name": f"no-{name}"}}]}},
        )
    )
    volume = {"name": "v", **volumes}
    return Passing(pod(name, _mounting([volume]), volumes=[volume]))


def _without_image(name: str, _: Random) -> Passing:
    return Passing(pod(name, container() | {"image": f"registry.test/no-{name}:1"}))


def _with_own_image(name: str, _: Random) -> Passing:
    image = f"registry.test/of-{name}:1"
    return Passing(pod(name, container(imagePullPolicy="Always") | {"image": image}), image=image)


def _probed(name: str, _: Random) -> Passing:
    grpc: Json = {"livenessProbe": {"grpc": {"port": GRPC_PORT}, "periodSeconds": 2, "timeoutSeconds": 5}}
    return Passing(pod(name, container(**probes(2)), container("b", **grpc)))


def _ill(name: str, random: Random) -> Passing:
    kind = random.choice(("livenessProbe", "startupProbe", "readinessProbe"))
    fails: Json = {kind: {"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 2}}
    return Passing(pod(name, container(DEAF_NAME, DEAF, **fails), container("b")))


DEAF_NAME = "deaf"


def _crashing(name: str, random: Random) -> Passing:
    return Passing(pod(name, container(script=f"sleep {random.randint(0, 5)}; exit 1"), container("b")))


def _job(name: str, random: Random) -> Passing:
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": f"of-{name}",
        "uid": random.randbytes(16).hex(),
        "controller": True,
    }
    made = pod(name, container(script=f"echo done; sleep {random.randint(1, 20)}; exit 0"), restartPolicy="Never")
    made["metadata"]["ownerReferences"] = [owner]
    return Passing(made)


def _failed_job(name: str, random: Random) -> Passing:
    script = f"sleep {random.randint(1, 9)}; exit 3"
    policy = random.choice(("Never", "OnFailure"))
    return Passing(pod(name, container(script=script), restartPolicy=policy, activeDeadlineSeconds=20))


def _with_hooks(name: str, _: Random) -> Passing:
    hooks = {"postStart": {"exec": {"command": ["true"]}}, "preStop": {"sleep": {"seconds": 2}}}
    return Passing(pod(name, container(lifecycle=hooks), container("b", DEAF)))


def _with_rules(name: str, _: Random) -> Passing:
    rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [ALL_AGAIN]}}
    again = container("again", f"sleep 5; exit {ALL_AGAIN}", restartPolicy="Never", restartPolicyRules=[rule])
    return Passing(pod(name, container(), again))


def _pinned(name: str, _: Random) -> Passing:
    """A CPU of its own, or the rejection if there is none."""
    whole = {"cpu": "1", "memory": "16Mi"}
    return Passing(pod(name, container() | {"resources": {"requests": whole, "limits": whole}}))


def _rejected(name: str, random: Random) -> Passing:
    if random.random() < 0.5:
        return Passing(pod(name, container() | {"resources": {"requests": {"cpu": "4000"}}}))
    return Passing(pod(name, nodeSelector={"example.com/of": name}))


def _elsewhere(name: str, _: Random) -> Passing:
    """In a namespace and with a ServiceAccount of its own."""
    volumes = [{"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]
    made = pod(name, _mounting(volumes), volumes=volumes, serviceAccountName=f"of-{name}")
    made["metadata"]["namespace"] = f"in-{name}"
    return Passing(made)


def _on_host(name: str, _: Random) -> Passing:
    ports = [{"containerPort": 8081, "hostPort": 8081}]
    gates = [{"conditionType": f"example.com/{name}"}]
    return Passing(pod(name, container(ports=ports), hostNetwork=True, readinessGates=gates, hostUsers=True))


def _static(name: str, random: Random) -> Passing:
    made = random.choice((_with_init, _crashing, _many_containers))(name, random).manifest
    del made["spec"]["serviceAccountName"]
    return Passing({"apiVersion": "v1", "kind": "Pod", **made}, is_static=True)


SHAPES: tuple[Callable[[str, Random], Passing], ...] = (
    _plain,
    _many_containers,
    _with_init,
    _failing_init,
    _with_own_config,
    _with_volumes,
    _with_claim,
    _waiting,
    _without_image,
    _with_own_image,
    _probed,
    _ill,
    _crashing,
    _job,
    _failed_job,
    _with_hooks,
    _with_rules,
    _pinned,
    _rejected,
    _elsewhere,
    _on_host,
    _static,
)


def _in_default(plural: str) -> str:
    return f"{CORE}/namespaces/default/{plural}"


def _mounting(volumes: list[Json]) -> Json:
    mounts = [{"name": volume["name"], "mountPath": f"/{volume['name']}"} for volume in volumes]
    return container("app", FOREVER, volumeMounts=mounts)
