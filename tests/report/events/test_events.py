"""Events: counted up, joined, kept and logged once."""

from __future__ import annotations

import asyncio
import logging

import pytest
from report.samples import UID
from support.cost import bytes_in_use

from pykubelet.base.kit.cells import Mailbox, make_cell
from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.kube_events import KubeEvent, Occurrence, Recent, normal, warning
from pykubelet.report.events.correlate import COMBINED, MEMORY, MESSAGE_LIMIT, Correlator, SpamFilter
from pykubelet.report.events.loop import KEPT_PER_OBJECT, KEPT_PODS, EventsLoop, added

WEB = PodRef("default", "web", UID)


def see(correlator: Correlator, *messages: str, at: float = 0.0, **fields: str) -> list[Occurrence]:
    return [correlator.see(warning("BackOff", text, WEB, fields.get("path", "")), at, 1000.0 + at) for text in messages]


def test_the_same_event_counts_up() -> None:
    correlator = Correlator()
    see(correlator, "held back")
    (again,) = see(correlator, "held back", at=7.0)
    assert (again.count, again.first_at, again.last_at) == (2, 1000.0, 1007.0)


@pytest.mark.parametrize(
    "other",
    [
        warning("BackOff", "held back", PodRef("default", "db", PodUID("uid-2"))),
        warning("BackOff", "held back", WEB, "spec.containers{b}"),
        warning("Failed", "held back", WEB),
        normal("BackOff", "held back", WEB),
        warning("BackOff", "held back"),
    ],
)
def test_another_object_type_or_reason_is_another_event(other: KubeEvent) -> None:
    correlator = Correlator()
    see(correlator, "held back")
    assert correlator.see(other, 0.0, 1000.0).count == 1


def test_many_similar_messages_are_joined() -> None:
    correlator = Correlator()
    found = see(correlator, *(f"try {n}" for n in range(12)))
    assert [o.message for o in found[:9]] == [f"try {n}" for n in range(9)]
    assert [(o.message, o.count) for o in found[9:]] == [(f"{COMBINED}try {n}", n - 8) for n in range(9, 12)]


def test_a_long_message_is_cut_wherever_it_is_kept() -> None:
    correlator = Correlator()
    for found in see(correlator, *(f"try {n}: " + "x" * 1_000_000 for n in range(12))):
        assert len(found.message) == len(found.kube_event.message) == MESSAGE_LIMIT
        assert found.message.endswith("x...")
    (again,) = see(correlator, "try 0: " + "x" * 1_000_000)
    assert again.count == 2


def test_little_is_remembered_of_the_events_of_pods_that_have_gone() -> None:
    correlator, spam = Correlator(), SpamFilter()
    before = bytes_in_use()
    for number in range(MEMORY):
        pod = PodRef("default", f"web-{number}", PodUID(f"11111111-2222-3333-4444-{number:012}"))
        event = warning("Unhealthy", f"{number} {'x' * MESSAGE_LIMIT}", pod)
        assert correlator.see(event, 0.0, 1000.0).count == 1
        assert spam.lets_pass(event, 0.0)
    assert bytes_in_use() - before < 4 << 20
    assert correlator.see(event, 0.0, 1000.0).count == 2


def test_similar_messages_far_apart_are_not_joined() -> None:
    correlator = Correlator()
    see(correlator, *(f"try {n}" for n in range(12)))
    (later,) = see(correlator, "try 99", at=601.0)
    assert later.message == "try 99"


def test_a_ring_keeps_the_newest_and_each_event_once() -> None:
    correlator = Correlator()
    ring: tuple[Occurrence, ...] = ()
    for number in range(3):
        ring = added(ring, correlator.see(normal("Pulled", f"image {number}", WEB), 0.0, number))
    for at in (10.0, 11.0):
        ring = added(ring, correlator.see(normal("Pulled", "image 0", WEB), 0.0, at))
    assert [(o.message, o.count) for o in ring] == [("image 1", 1), ("image 2", 1), ("image 0", 3)]
    for number in range(100):
        ring = added(ring, correlator.see(normal(f"R{number}", "x", WEB), 0.0, 20.0))
    assert len(ring) == KEPT_PER_OBJECT
    assert ring[-1].kube_event.reason == "R99"


async def test_the_loop_keeps_what_happened_and_logs_it_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pykubelet.events")
    logging.getLogger("pykubelet").propagate = True
    mailbox: Mailbox[KubeEvent] = Mailbox("recorder")
    recent, writer = make_cell("recent", Recent())
    async with Supervisor("test") as supervisor:
        supervisor.start_root("events", EventsLoop(mailbox, writer, ManualClock()).run())
        for _ in range(3):
            mailbox.post(warning("BackOff", "held back", WEB))
        mailbox.post(normal("Starting", "Starting kubelet."))
        for number in range(KEPT_PODS):
            mailbox.post(normal("Pulled", "x", PodRef("default", f"p{number}", PodUID(f"other-{number}"))))
        async with asyncio.timeout(5):
            reported = await recent.wait_for(lambda now: len(now.pods) == KEPT_PODS)
            assert UID not in reported.pods
            mailbox.post(warning("BackOff", "held back", WEB))
            await recent.wait_for(lambda now: UID in now.pods)
    assert [(o.message, o.count) for o in recent.get().pods[UID]] == [("held back", 4)]
    assert [o.message for o in recent.get().node] == ["Starting kubelet."]
    assert len(recent.get().pods) == KEPT_PODS
    lines = [r.getMessage() for r in caplog.records if r.name == "pykubelet.events"]
    assert lines.count("held back") == 1
