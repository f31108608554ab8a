"""Which pod a thread works on, from its record of work and from the variables of its functions."""

from __future__ import annotations

import threading
from collections.abc import Callable

from desired.roster.wants import make_pod

from pykubelet.base.api.core import Pod
from pykubelet.base.kit.flight import WORK
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.roster import RosterPod
from pykubelet.edges.host.services.monitor import pod_in_work

REF = PodRef("shop", "web", PodUID("ref-1"))
POD, OTHER, OUTER = make_pod(uid="pod-1"), make_pod(uid="pod-2"), make_pod(uid="outer-1")
ENTRY = RosterPod(make_pod(uid="entry-1"), "file", 0.0)
MANY = (make_pod("a"), make_pod("b"))


def found_in(work: Callable[[threading.Event], None]) -> str:
    """What is found of a thread that is in `work`, which calls a function and waits."""
    end = threading.Event()
    thread = threading.Thread(target=work, args=(end,))
    thread.start()
    try:
        assert thread.ident is not None
        return pod_in_work(thread.ident)
    finally:
        end.set()
        thread.join()


def wait(end: threading.Event) -> None:
    end.wait()


def with_pod(end: threading.Event, pod: Pod = POD, count: int = 3) -> None:
    wait(end)


def with_entry(end: threading.Event, entry: RosterPod = ENTRY) -> None:
    wait(end)


def with_reference(end: threading.Event, ref: PodRef = REF) -> None:
    wait(end)


def with_two(end: threading.Event, pod: PodRef = REF, other: Pod = OTHER) -> None:
    wait(end)


def around_two(end: threading.Event, pod: Pod = OUTER) -> None:
    with_two(end)


def with_many(end: threading.Event, pods: tuple[Pod, ...] = MANY) -> None:
    wait(end)


def test_the_pod_is_a_variable_of_the_innermost_function_that_has_one() -> None:
    assert found_in(with_pod) == "pod-1"
    assert found_in(with_entry) == "entry-1"
    assert found_in(with_reference) == "ref-1"


def test_a_function_with_two_pods_does_not_show_which_one_it_is() -> None:
    assert found_in(with_two) == ""
    assert found_in(around_two) == "outer-1"


def test_nothing_is_found_in_work_for_all_pods() -> None:
    assert found_in(with_many) == ""
    assert pod_in_work(-1) == ""


def test_the_record_of_work_comes_first() -> None:
    with WORK.on("uid-1"):
        assert found_in(with_pod) == "uid-1"
