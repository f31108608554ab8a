"""What is remembered of objects is forgotten with them."""

from __future__ import annotations

from local_api.reconcile.world import thing

from pykubelet_local_api.objects import Json
from pykubelet_local_api.reconcile.pods import MAX_STALE, Remembered


def pod(number: int) -> Json:
    return thing("Pod", f"p{number}", "ns", metadata={"uid": f"u{number}"})


def test_a_result_is_that_of_the_same_object() -> None:
    known: Remembered[int] = Remembered()
    first = pod(1)
    known.put(first, 7)
    assert known.get(first) == 7
    assert known.get(pod(1)) is None


def test_results_of_objects_that_are_gone_are_forgotten() -> None:
    known: Remembered[int] = Remembered()
    pods = [pod(number) for number in range(10 * MAX_STALE)]
    for found in pods:
        known.put(found, 1)
        known.keep_only(pods[:1])
    assert sum(known.get(found) is not None for found in pods) <= MAX_STALE + 1
    assert known.get(pods[0]) == 1
