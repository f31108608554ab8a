"""Events as the API server gets them, while it answers, refuses, and is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from report.samples import UID
from support.api_objects import parse_resource_path
from support.api_server import ApiFault, FakeApiServer
from support.memory_api import virtual_api_server
from support.unreachable import UnreachableClient

from pykubelet.base.api.core import ObjectMeta, Pod
from pykubelet.base.kit.cells import Mailbox, make_cell
from pykubelet.base.kit.clock import Clock, ManualClock
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import replace
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.kube_events import EventObject, EventType, KubeEvent, Occurrence, Recent, normal, warning
from pykubelet.base.model.lifecycle import Starts
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.roster import Roster, RosterPod
from pykubelet.edges.kubeapi.client import ApiClient, ClientLimits
from pykubelet.report.events import send
from pykubelet.report.events.correlate import SPAM_BURST, SpamFilter
from pykubelet.report.events.loop import EventsLoop
from pykubelet.report.events.send import EventPeriods, EventSender
from pykubelet_local_api.objects import Json

pytestmark = pytest.mark.virtual_time

WEB = PodRef("shop", "web", UID)
PATH = "spec.containers{main}"


class Stand:
    """The whole package on a fake API server."""

    def __init__(self, server: FakeApiServer, sender_clock: Clock, settle_s: float) -> None:
        self.server = server
        self.clock = ManualClock()
        self.recorder: Mailbox[KubeEvent] = Mailbox("recorder")
        outbox: Mailbox[Occurrence] = Mailbox("outbox")
        _, recent = make_cell("recent", Recent())
        pod = Pod(metadata=ObjectMeta(name="web", namespace="shop", uid=UID, resourceVersion="42"))
        roster, _ = make_cell("roster", Roster({UID: RosterPod(pod, "api", 0.0)}))
        self.client = ApiClient(server.access(), server.clock, ClientLimits(deadline_s=30))
        self.loop = EventsLoop(self.recorder, recent, self.clock, outbox)
        starts, self.starts = make_cell("starts", Starts())
        node, self.node = make_cell("node", NodeView("node-1", "node-1", uid="n-1"))
        self.sender = EventSender(self.client, outbox, roster, starts, node, sender_clock, EventPeriods(settle_s))

    def happen(self, *recorder: KubeEvent) -> None:
        for kube_event in recorder:
            self.recorder.post(kube_event)

    def events(self) -> list[Json]:
        events = parse_resource_path("/api/v1/events")
        assert events is not None
        return self.server.store.list(events)

    async def until(self, number: int, total: int | None = None) -> list[Json]:
        """As soon as there are so many Events, counting so many in all."""
        wakeup = asyncio.Event()
        self.server.store.watch(wakeup)
        try:
            async with asyncio.timeout(30):
                while len(self.events()) < number or (total or 0) > sum(e["count"] for e in self.events()):
                    await wakeup.wait()
                    wakeup.clear()
        except TimeoutError:
            raise AssertionError(f"only {self.events()}") from None
        return self.events()

    async def queued(self, number: int) -> None:
        """So many wait to be sent."""
        await _until(lambda: len(self.sender._queue) == number)

    async def answered(self, number: int) -> None:
        """The sender knows of so many that they have arrived."""
        await _until(lambda: len(self.sender._names) == number)


async def _until(holds: Callable[[], bool]) -> None:
    for _ in range(6000):
        if holds():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came to be so")


@asynccontextmanager
async def running(clock: Clock | None, settle_s: float) -> AsyncIterator[Stand]:
    async with virtual_api_server() as server, Supervisor("test") as supervisor:
        stand = Stand(server, clock or server.clock, settle_s)
        supervisor.start_root("events", stand.loop.run())
        supervisor.start_root("sender", stand.sender.run())
        yield stand
        await stand.client.close()


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    async with running(None, settle_s=0.01) as stand:
        yield stand


async def test_an_event_of_a_container(stand: Stand) -> None:
    stand.clock.advance(100)
    stand.happen(KubeEvent(normal("a", "b").type, "Pulled", "it is there", WEB, PATH, (("k", "v"),)))
    (event,) = await stand.until(1)
    meta = event.pop("metadata")
    assert event == {
        "apiVersion": "v1",
        "kind": "Event",
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "shop",
            "name": "web",
            "uid": UID,
            "resourceVersion": "42",
            "fieldPath": PATH,
        },
        "reason": "Pulled",
        "message": "it is there",
        "source": {"component": "kubelet", "host": "node-1"},
        "firstTimestamp": "2023-11-14T22:15:00Z",
        "lastTimestamp": "2023-11-14T22:15:00Z",
        "eventTime": None,
        "count": 1,
        "type": "Normal",
        "reportingComponent": "kubelet",
        "reportingInstance": "node-1",
    }
    assert meta["namespace"] == "shop" and meta["name"].startswith("web.") and meta["annotations"] == {"k": "v"}


async def test_a_pod_may_have_the_longest_name_there_is(stand: Stand) -> None:
    long = replace(WEB, name="a" * 235 + "." + "b" * 17)
    stand.happen(normal("Pulled", "it is there", long))
    (event,) = await stand.until(1)
    assert event["involvedObject"]["name"] == long.name
    name = event["metadata"]["name"]
    assert len(name) <= 253 and name.startswith("a" * 235) and ".." not in name


async def test_an_event_of_the_node(stand: Stand) -> None:
    stand.happen(normal("Starting", "Starting kubelet."))
    (event,) = await stand.until(1)
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "n-1"}
    assert event["metadata"]["namespace"] == "default"


async def test_an_event_of_a_node_that_is_not_known_yet_waits_for_its_uid(stand: Stand) -> None:
    """`kubectl describe node` shows only what has it."""
    stand.node.publish(NodeView("node-1", "node-1"))
    stand.happen(normal("Starting", "Starting kubelet."), normal("Pulled", "x", WEB, PATH))
    (event,) = await stand.until(1)
    assert event["reason"] == "Pulled", "it holds up no other"
    stand.node.publish(NodeView("node-1", "node-1", uid="made"))
    [event] = [event for event in await stand.until(2) if event["reason"] == "Starting"]
    assert event["involvedObject"]["uid"] == "made"


async def test_an_event_of_a_node_that_nothing_registers_is_sent_after_a_minute() -> None:
    clock = ManualClock()
    async with running(clock, settle_s=0.01) as stand:
        stand.node.publish(NodeView("node-1", "node-1"))
        stand.happen(normal("Starting", "Starting kubelet."))
        await stand.queued(1)
        clock.advance(59)
        await asyncio.sleep(0.05)
        assert stand.events() == []
        clock.advance(2)
        (event,) = await stand.until(1)
        assert "uid" not in event["involvedObject"]


async def test_a_repetition_is_a_patch_of_the_count(stand: Stand) -> None:
    stand.happen(warning("BackOff", "held back", WEB, PATH))
    await stand.until(1)
    stand.clock.advance(10)
    stand.happen(warning("BackOff", "held back", WEB, PATH))
    (event,) = await stand.until(1, total=2)
    assert (event["firstTimestamp"], event["lastTimestamp"]) == ("2023-11-14T22:13:20Z", "2023-11-14T22:13:30Z")
    assert [sent.method for sent in stand.server.requests] == ["POST", "PATCH"]


async def test_an_event_that_expired_at_the_server_is_made_again(stand: Stand) -> None:
    stand.happen(warning("BackOff", "held back", WEB))
    (event,) = await stand.until(1)
    stand.server.delete(f"/api/v1/namespaces/shop/events/{event['metadata']['name']}")
    stand.happen(warning("BackOff", "held back", WEB))
    (event,) = await stand.until(1)
    assert event["count"] == 2


async def test_events_of_an_absence_come_later_and_counted_together(stand: Stand) -> None:
    await stand.server.stop()
    stand.happen(*[warning("BackOff", "held back", WEB)] * 20, normal("Killing", "x", WEB))
    await asyncio.sleep(0.1)
    await stand.server.start()
    await stand.until(2, total=21)
    assert stand.server.count() <= 3


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_server_in_trouble_is_asked_again(stand: Stand, status: int) -> None:
    stand.server.faults.append(ApiFault(status=status))
    stand.happen(normal("Pulled", "x", WEB))
    await stand.until(1)


@pytest.mark.parametrize("status", [400, 403, 404, 422])
async def test_a_refused_event_does_not_hold_up_the_next(stand: Stand, status: int) -> None:
    stand.server.faults.append(ApiFault(status=status))
    stand.happen(normal("Pulled", "x", WEB), normal("Created", "y", WEB))
    (event,) = await stand.until(1)
    assert event["reason"] == "Created"


async def test_an_answer_that_was_lost_makes_no_second_event(stand: Stand) -> None:
    stand.happen(normal("Pulled", "x", WEB))
    (event,) = await stand.until(1)
    await stand.answered(1)
    stand.sender._names.clear()  # as if the answer had not come
    stand.sender._mailbox.post(Occurrence(normal("Pulled", "x", WEB), "x", 1_700_000_000.0, 1_700_000_000.0, serial=1))
    stand.happen(normal("Created", "y", WEB))
    events = await stand.until(2)
    assert [e["reason"] for e in events] == ["Pulled", "Created"] and events[0] == event
    assert [sent.method for sent in stand.server.requests] == ["POST"] * 3


async def test_similar_events_are_joined_and_too_many_held_back(stand: Stand) -> None:
    stand.happen(*(warning("Unhealthy", f"probe {number}", WEB) for number in range(60)))
    events = await stand.until(10)
    await asyncio.sleep(0.1)
    assert len(events) == 10
    assert events[-1]["message"].startswith("(combined from similar events): probe ")
    assert sum(event["count"] for event in stand.events()) <= SPAM_BURST


async def test_events_wait_while_others_happen_but_not_for_long() -> None:
    clock = ManualClock()
    async with running(clock, settle_s=0.3) as stand:
        for number in range(25):
            assert stand.events() == [], f"after {number * 0.2} s without a lull"
            stand.happen(normal("Pulled", "x", PodRef("shop", f"p{number}", PodUID(f"uid-{number}"))))
            await stand.queued(number + 1)
            clock.advance(0.2)
        await stand.until(1)
        await asyncio.sleep(0.05)
        assert len(stand.events()) == 1, "only the first has waited for the longest time"
        clock.advance(0.3)
        await stand.until(25)


async def test_events_wait_while_the_runtime_makes_a_pod_but_not_for_one_that_is_stuck() -> None:
    clock = ManualClock()
    async with running(clock, settle_s=0.3) as stand:
        stuck = {PodUID("stuck"): clock.wall() - 6}
        stand.starts.publish(Starts({**stuck, UID: clock.wall()}))
        stand.happen(normal("Pulled", "x", WEB))
        await stand.queued(1)
        clock.advance(1)
        await asyncio.sleep(0.4)
        assert stand.events() == []
        stand.starts.publish(Starts(stuck))
        await stand.until(1)


async def test_the_queue_is_bounded_and_no_sender_waits(stand: Stand) -> None:
    await stand.server.stop()
    refs = [PodRef("shop", f"p{number}", UID) for number in range(send.QUEUE_MAX + 200)]
    for serial, ref in enumerate(refs):
        stand.sender._mailbox.post(Occurrence(normal("Pulled", "x", ref), "x", 1.0, 1.0, serial=serial))
    await _until(lambda: len(stand.sender._mailbox) == 0)
    assert len(stand.sender._queue) in (send.QUEUE_MAX, send.QUEUE_MAX - 1), "one may be on its way"


def test_an_object_has_a_burst_and_then_one_in_five_minutes() -> None:
    spam = SpamFilter()
    event = warning("Unhealthy", "x", WEB)
    assert sum(spam.lets_pass(event, 0.0) for _ in range(100)) == SPAM_BURST
    assert not spam.lets_pass(event, 299.0)
    assert spam.lets_pass(event, 300.0)
    assert not spam.lets_pass(event, 301.0)
    assert spam.lets_pass(normal("Starting", "other object"), 301.0)
    assert sum(spam.lets_pass(event, 1e6) for _ in range(100)) == SPAM_BURST
    assert sum(spam.lets_pass(replace(event, type=EventType.NORMAL), 1e6) for _ in range(100)) == SPAM_BURST


async def test_an_event_waits_a_day_for_an_api_server_that_cannot_be_reached() -> None:
    client, outbox = UnreachableClient(), Mailbox[Occurrence]("outbox")
    roster, _ = make_cell("roster", Roster())
    starts, _ = make_cell("starts", Starts())
    node, _ = make_cell("node", NodeView("node-1", "node-1", uid="n-1"))
    clock = ManualClock()
    sender = EventSender(client, outbox, roster, starts, node, clock, EventPeriods(settle_s=0.0))
    async with Supervisor("test") as supervisor:
        supervisor.start_root("sender", sender.run())
        outbox.post(
            Occurrence(normal("Pulled", "it is there", WEB), "it is there", clock.wall(), clock.wall(), serial=1)
        )
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(24 * 3600.0):
                raise await supervisor.wait_failed()
    assert len(client.tries) > 5000
    assert max(client.pauses) <= send.RETRY_MAX_S * 1.5 + 0.1


async def test_an_event_about_a_claim_names_the_claim(stand: Stand) -> None:
    claim = EventObject("PersistentVolumeClaim", "store", "data", "c1")
    stand.happen(replace(warning("VolumeResizeFailed", "full", WEB), about=claim))
    (event,) = await stand.until(1)
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": "store",
        "name": "data",
        "uid": "c1",
    }
    assert event["metadata"]["namespace"] == "store" and event["metadata"]["name"].startswith("data.")
