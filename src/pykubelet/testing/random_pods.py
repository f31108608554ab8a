"""Random pods that request CPUs, memory and devices, for tests and benchmarks of placement."""

from __future__ import annotations

from random import Random

from pykubelet.base.api.core import Container, ObjectMeta, Pod, PodSpec, Quantity, ResourceRequirements

NAMESPACE = "random"


def random_pod(random: Random, number: int, *, cpus: int, resources: tuple[str, ...] = (), memory_mi: int = 256) -> Pod:
    """A pod with up to two init containers or sidecars and one or two regular ones.

    Most are Guaranteed. `cpus`: the most that one container requests. `memory_mi`: the most for each CPU. `resources`: extended
    resources, of which containers request a few.
    """
    guaranteed = random.random() < 0.9

    def container(name: str, restart: str = "") -> Container:
        count = random.randint(1, cpus)
        whole = random.random() < 0.85
        limits = {
            "cpu": str(count) if whole else f"{count * 1000 - 500}m",
            "memory": f"{count * random.randint(1, memory_mi)}Mi",
        }
        devices = {resource: str(random.randint(1, 2)) for resource in resources if random.random() < 0.3}
        requests: dict[str, Quantity] = {**limits, **devices} if guaranteed else {"cpu": "100m", **devices}
        return Container(
            name=name,
            image="image",
            restartPolicy=restart,
            resources=ResourceRequirements(requests=requests, limits={**limits, **devices}),
        )

    init = [container(f"init-{at}", random.choice(("", "Always"))) for at in range(random.choice((0, 0, 1, 2)))]
    regular = [container(f"app-{at}") for at in range(random.choice((1, 1, 2)))]
    name = f"pod-{number}"
    metadata = ObjectMeta(name=name, namespace=NAMESPACE, uid=f"{name}-uid")
    return Pod(metadata=metadata, spec=PodSpec(initContainers=tuple(init), containers=tuple(regular)))
