"""What people hear about the machine when the agent starts."""

from __future__ import annotations

from typing import Any

import pytest

from pykubelet.app.advice import Circumstances, advice
from pykubelet.base.kit.values import replace
from pykubelet.base.model.kube_events import EventType

FINE = Circumstances(
    cgroup_v2=True, has_swap=False, tmpfs_no_swap=False, resolv_conf="nameserver 10.0.0.1\nsearch a.b\n"
)
LONG = "search " + " ".join(f"d{n}.example" for n in range(32)) + "\n"


def test_a_machine_without_fault_is_not_talked_about() -> None:
    assert advice(FINE) == ()
    assert advice(replace(FINE, has_swap=True, tmpfs_no_swap=True)) == ()
    assert advice(replace(FINE, resolv_conf=None)) == ()
    assert advice(replace(FINE, resolv_conf=LONG)) == (), "without a cluster's domains there is capacity"


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        ({"cgroup_v2": False}, "CgroupV1", "cgroup v1 support is deprecated and will be removed in a future release"),
        ({"has_swap": True}, "PossibleMemoryBackedVolumesOnDisk", "might be swapped to disk"),
        (
            {"resolv_conf": LONG, "resolv_conf_path": "/etc/resolv.conf", "cluster_domain": "cluster.local"},
            "CheckLimitsForResolvConf",
            "Resolv.conf file '/etc/resolv.conf' contains search line consisting of more than 29 domains!",
        ),
    ],
)
def test_what_people_should_know_is_an_event_of_the_node(change: dict[str, Any], reason: str, words: str) -> None:
    (reported,) = advice(replace(FINE, **change))
    assert (reported.type, reported.reason, reported.pod) == (EventType.WARNING, reason, None)
    assert words in reported.message
