"""Values of pods' cgroups that extensions change: who is asked when, and that everything that writes them writes the same."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from provide.cgroups.conftest import FakeCgroups, Make, active

from pykubelet.base.api.core import Pod
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.sizing import QOSClass
from pykubelet.edges.host.cgroups.cgroup_values import CgroupLimits
from pykubelet.provide.cgroups import decide
from pykubelet.provide.cgroups.model import MemoryProtection, NodeResources, ResourceSettings

MIB = 1 << 20


class Asked:
    """An extension that gives each pod this."""

    def __init__(self, **answer: str) -> None:
        self.answer = {name.replace("_", "."): text for name, text in answer.items()}
        self.seen: list[str] = []

    def __call__(self, pod: Pod, name: str, values: Mapping[str, str], is_new: bool) -> Mapping[str, str]:
        assert name == "" and not is_new
        self.seen.append(values.get("memory.max", ""))
        return self.answer


def sized(uid: str, memory: str, cpu: str = "100m") -> Pod:
    amounts = {"cpu": cpu, "memory": memory}
    spec = {"containers": [{"name": "c", "resources": {"requests": {"memory": "1Mi", "cpu": "1m"}, "limits": amounts}}]}
    return msgspec.convert({"metadata": {"name": uid, "namespace": "ns", "uid": uid}, "spec": spec}, Pod)


def own(fake: FakeCgroups, uid: str) -> CgroupLimits:
    return next(limits for path, limits in fake.groups.items() if path.endswith(uid))


async def test_it_is_asked_once_for_each_size(make: Make, fake: FakeCgroups) -> None:
    ask = Asked(memory_high=str(5 * MIB), pids_max="9")
    cgroups = make(ask_extensions=ask)
    await cgroups.ensure_root()
    small, large = sized("u1", "64Mi"), sized("u1", "128Mi")
    assert await cgroups.ensure_pod(small) is None
    assert (own(fake, "u1").pids, own(fake, "u1").unified["memory.high"]) == (9, str(5 * MIB))
    assert await cgroups.ensure_pod(small) is None
    assert ask.seen == [str(64 * MIB)]

    assert await cgroups.widen_pod(small, large) is None  # a resize: both sizes, then the new one
    ask.answer = {"memory.max": str(100 * MIB)}  # no question, no other answer
    assert await cgroups.ensure_pod(large) is None
    assert ask.seen == [str(64 * MIB), str(128 * MIB)]
    assert own(fake, "u1").memory_bytes == 128 * MIB and own(fake, "u1").pids == 9

    assert await cgroups.remove_pod(PodUID("u1"))
    assert await cgroups.ensure_pod(large) is None
    assert len(ask.seen) == 3 and own(fake, "u1").memory_bytes == 100 * MIB


async def test_a_resize_widens_to_the_changed_values(make: Make, fake: FakeCgroups) -> None:
    ask = Asked(memory_max=str(200 * MIB))
    cgroups = make(ask_extensions=ask)
    await cgroups.ensure_root()
    await cgroups.ensure_pod(sized("u1", "64Mi"))
    ask.answer = {}
    await cgroups.widen_pod(sized("u1", "64Mi"), sized("u1", "128Mi"))
    assert own(fake, "u1").memory_bytes == 200 * MIB


async def test_the_groups_above_protect_what_the_pod_protects(make: Make, fake: FakeCgroups) -> None:
    ask = Asked(memory_low=str(5 * MIB), memory_min=str(3 * MIB))
    cgroups = make(ask_extensions=ask, memory_protection=MemoryProtection.OFF)
    await cgroups.ensure_root()
    pods = [sized("u1", "64Mi"), sized("u2", "64Mi")]
    await cgroups.update_qos(active(*pods))  # as the loop does once the pods are known
    assert fake.groups["/kubepods/burstable"].unified == {"memory.low": "0", "memory.min": "0"}
    await cgroups.ensure_pod(pods[0])
    assert fake.groups["/kubepods/burstable"].unified == {"memory.low": str(5 * MIB), "memory.min": str(3 * MIB)}
    await cgroups.ensure_pod(pods[1])
    assert fake.groups["/kubepods/burstable"].unified == {"memory.low": str(10 * MIB), "memory.min": str(6 * MIB)}
    assert fake.groups["/kubepods"].unified == {"memory.min": str(6 * MIB), "memory.low": str(10 * MIB)}
    await cgroups.update_qos(active(*pods), force=True)  # the periodic update writes the same
    assert fake.groups["/kubepods/burstable"].unified == {"memory.low": str(10 * MIB), "memory.min": str(6 * MIB)}
    await cgroups.update_qos(active(pods[0]))
    assert fake.groups["/kubepods/burstable"].unified == {"memory.low": str(5 * MIB), "memory.min": str(3 * MIB)}


async def test_before_all_pods_are_known_the_groups_above_stay(make: Make, fake: FakeCgroups) -> None:
    cgroups = make(ask_extensions=Asked(memory_low="5"), memory_protection=MemoryProtection.OFF)
    await cgroups.ensure_root()
    before = fake.groups["/kubepods/burstable"]
    await cgroups.ensure_pod(sized("u1", "64Mi"))
    assert fake.groups["/kubepods/burstable"] == before


def test_an_extension_that_changes_nothing_leaves_the_sums_of_memory_qos() -> None:
    pods = [sized("u1", "64Mi"), sized("u2", "32Mi")]
    node = NodeResources({"memory": 1 << 33})
    plain = ResourceSettings(memory_protection=MemoryProtection.TIERED, protects_pods_softly=True)
    asking = ResourceSettings(
        memory_protection=MemoryProtection.TIERED, protects_pods_softly=True, ask_extensions=Asked()
    )
    sums = decide.sums_of(decide.share_of(pod, decide.pod_cgroup_limits(pod, asking)) for pod in pods)
    with_extension, without = decide.qos_limits(sums, node, asking), decide.qos_limits(sums, node, plain)
    for qos in QOSClass:
        found = with_extension[qos].unified
        assert {name: text for name, text in found.items() if text != "0"} == dict(without[qos].unified)
