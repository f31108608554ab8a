"""The texts of an eviction are the reference's."""

from __future__ import annotations

import pytest
from observe.eviction.samples import GI, MI, make_pod, make_use, seen, threshold

from pykubelet.base.kit.values import replace
from pykubelet.config.eviction import stall_threshold
from pykubelet.observe.eviction.messages import eviction_message, reclaim_message

HARD = threshold("memory.available", "100Mi")
LOW = {"memory.available": seen(50 * MI), "nodefs.inodesFree": seen(1500, 5000), "pid.available": seen(12, 1000)}


def test_a_container_above_its_request_is_named() -> None:
    pod, use = make_pod("hog", memory="10Mi"), make_use("hog", memory=300 * MI)
    message, annotations = eviction_message(HARD, [HARD], LOW, (pod, use))
    assert message == (
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. "
        "Container main was using 300Mi, request is 10Mi, has larger consumption of memory. "
    )
    assert annotations == (
        ("offending_containers", "main"),
        ("offending_containers_usage", "300Mi"),
        ("starved_resource", "memory"),
    )


def test_a_container_within_its_request_is_not_named() -> None:
    message, annotations = eviction_message(HARD, [HARD], LOW, (make_pod("p", memory="1Gi"), make_use("p", memory=GI)))
    assert message == "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. "
    assert dict(annotations)["offending_containers"] == ""


def test_a_pod_without_statistics_has_no_annotations() -> None:
    message, annotations = eviction_message(HARD, [HARD], LOW, (make_pod("p"), None))
    assert message == "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. "
    assert annotations == ()


def test_a_pod_that_requests_as_a_whole_is_named_as_a_whole() -> None:
    pod = make_pod("whole", {"resources": {"requests": {"memory": "20Mi"}}})
    use = make_use("whole", memory=30 * MI)
    message, annotations = eviction_message(HARD, [HARD], LOW, (pod, use))
    assert "Pod whole was using 30Mi, request is 20Mi, has larger consumption of memory. " in message
    assert dict(annotations)["offending_pod_usage"] == "30Mi"
    without, _ = eviction_message(HARD, [HARD], LOW, (pod, use), pod_level=False)
    assert "Pod whole" not in without


def test_layers_and_logs_count_as_ephemeral_storage() -> None:
    low = threshold("nodefs.available", "10%")
    pod, use = make_pod("hog"), make_use("hog", rootfs=2 * MI, logs=MI)
    message, _ = eviction_message(low, [low], {"nodefs.available": seen(GI // 2, 10 * GI)}, (pod, use))
    assert message == (
        "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 512Mi. "
        "Container main was using 3Mi, request is 0, has larger consumption of ephemeral-storage. "
    )


@pytest.mark.parametrize(
    ("signal", "limit", "text"),
    [
        ("nodefs.inodesFree", "2k", "inodes. Threshold quantity: 2k, available: 1500. "),
        ("pid.available", "100", "pids. Threshold quantity: 100, available: 12. "),
    ],
)
def test_counts_name_no_containers(signal: str, limit: str, text: str) -> None:
    low = threshold(signal, limit)
    message, annotations = eviction_message(low, [low], LOW, (make_pod("p"), make_use("p", memory=GI)))
    assert message == f"The node was low on resource: {text}"
    assert dict(annotations)["offending_containers_usage"] == ""


def test_the_first_met_threshold_of_the_resource_is_quoted() -> None:
    allocatable = replace(HARD, signal="allocatableMemory.available")
    observed = {**LOW, "allocatableMemory.available": seen(5 * MI)}
    message, _ = eviction_message(allocatable, [HARD, allocatable], observed, (make_pod("p"), None))
    assert "Threshold quantity: 100Mi, available: 50Mi. " in message


def test_a_stall_is_a_share_of_time() -> None:
    stall = threshold("memory.stall.full", "80%")
    message, _ = eviction_message(stall, [stall], {"memory.stall.full": seen(6300, 10000)}, (make_pod("p"), None))
    assert message == (
        "The node was low on resource: memory. All tasks were stalled 37.00% of the last 10s, threshold: 20%. "
    )


@pytest.mark.parametrize("share", ["0.25%", "7%", "20%", "33.3%", "57%", "99%"])
def test_the_threshold_of_a_stall_is_the_share_that_was_given(share: str) -> None:
    stall = stall_threshold("io.some", share)
    message, _ = eviction_message(stall, [stall], {"io.stall.some": seen(0, 10000)}, (make_pod("p"), None))
    assert message.endswith(f"stalled 100.00% of the last 10s, threshold: {share}. ")


def test_texts_of_the_node() -> None:
    assert reclaim_message("memory") == "Attempting to reclaim memory"
