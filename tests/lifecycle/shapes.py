"""Random pods: every mix of init containers, sidecars, policies, rules, probes and hooks that changes how a pod lives."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from lifecycle.truth import Json, PodTruth

IMAGE = "registry.test/app:1"
#: The exit code for which rules restart the container, and all containers.
AGAIN, ALL_AGAIN = 3, 88
POLITE, DEAF = "trap 'exit 0' TERM; serve", "trap '' TERM; serve"


@dataclass(frozen=True)
class Rule:
    codes: tuple[int, ...]
    restarts_all: bool


@dataclass(frozen=True)
class Container:
    """A container of a manifest, in the words of the model. `probes`: failure thresholds by kind."""

    name: str
    is_init: bool
    is_sidecar: bool
    policy: str
    rules: tuple[Rule, ...]
    has_hook: bool
    probes: dict[str, int] = field(hash=False, default_factory=dict)

    @property
    def is_plain_init(self) -> bool:
        return self.is_init and not self.is_sidecar


def parse(manifest: Json, *, is_init: bool) -> Container:
    rules = tuple(
        Rule(tuple(rule["exitCodes"]["values"]), rule["action"] == "RestartAllContainers")
        for rule in manifest.get("restartPolicyRules", ())
    )
    kinds = {kind: manifest[f"{kind}Probe"]["failureThreshold"] for kind in KINDS if f"{kind}Probe" in manifest}
    policy, hook = manifest.get("restartPolicy", ""), "postStart" in manifest.get("lifecycle", {})
    return Container(manifest["name"], is_init, is_init and policy == "Always", policy, rules, hook, kinds)


KINDS = ("startup", "liveness", "readiness")


def containers_of(pod: PodTruth) -> dict[str, Container]:
    """All containers in the order of their starts."""
    found = [parse(m, is_init=True) for m in pod.spec.get("initContainers", ())]
    found += [parse(m, is_init=False) for m in pod.spec["containers"]]
    return {c.name: c for c in found}


class Shapes:
    """Makes manifests from random numbers."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def pod(self, name: str, *, is_static: bool) -> Json:
        """A manifest; one for the API server is not bound to the node yet."""
        policy = self._random.choice(("Always", "Always", "OnFailure", "Never"))
        init = [self._container(f"i{n}", policy, is_init=True) for n in range(self._random.choice((0, 0, 1, 2)))]
        if self._chance(0.4):
            init.insert(self._random.randint(0, len(init)), self._sidecar("s"))
        regular = [self._container(name, policy) for name in ("a", "b")[: self._random.choice((1, 2, 2))]]
        spec: Json = {"restartPolicy": policy, "containers": regular, "terminationGracePeriodSeconds": 20}
        if init:
            spec["initContainers"] = init
        if not is_static and self._chance(0.5):
            regular[0]["resources"] = {"requests": {"cpu": "10m"}, "limits": {"cpu": "100m"}}
        if self._chance(0.3):
            spec["volumes"] = [{"name": "host", "hostPath": {"path": "/etc"}}]
        meta = {"name": name, "namespace": "default"}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}

    def _container(self, name: str, policy: str, *, is_init: bool = False) -> Json:
        script = self._random.choice((POLITE, POLITE, "serve", DEAF))
        made: Json = {"name": name, "image": IMAGE, "command": ["sh", "-c", script]}
        if self._chance(0.25):
            made["resources"] = {"limits": {"memory": "16Mi"}}
        if self._chance(0.15):
            made["restartPolicy"] = self._random.choice(
                ("OnFailure", "Never") if is_init else ("Always", "OnFailure", "Never")
            )
        if self._chance(0.3):
            made.setdefault("restartPolicy", policy if not is_init or policy != "Always" else "OnFailure")
            made["restartPolicyRules"] = [self._rule(AGAIN, "Restart"), self._rule(ALL_AGAIN, "RestartAllContainers")]
        if is_init:
            return made
        self._add_hook(made)
        if self._chance(0.4):
            made["readinessProbe"] = self._probe("readiness")
        if self._chance(0.25):
            made["livenessProbe"] = self._probe("liveness")
        if self._chance(0.2):
            made["startupProbe"] = self._probe("startup", failures=200)
        return made

    def _sidecar(self, name: str) -> Json:
        made: Json = {"name": name, "image": IMAGE, "command": ["sh", "-c", POLITE], "restartPolicy": "Always"}
        if self._chance(0.5):
            made["startupProbe"] = self._probe("startup", failures=200)
        if self._chance(0.3):
            made["readinessProbe"] = self._probe("readiness")
        if self._chance(0.4):
            made["restartPolicyRules"] = [self._rule(ALL_AGAIN, "RestartAllContainers")]
        self._add_hook(made)
        return made

    def _add_hook(self, made: Json) -> None:
        if self._chance(0.2):
            made["lifecycle"] = {"postStart": {"exec": {"command": ["hook"]}}}

    def _rule(self, code: int, action: str) -> Json:
        return {"action": action, "exitCodes": {"operator": "In", "values": [code]}}

    def _probe(self, kind: str, failures: int | None = None) -> Json:
        threshold = failures or self._random.choice((1, 2))
        return {
            "exec": {"command": ["probe", kind]},
            "periodSeconds": 1,
            "timeoutSeconds": 5,
            "failureThreshold": threshold,
        }
