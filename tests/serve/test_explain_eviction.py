"""What is shown of eviction: signals, users, the next pod, and the pods of a dry run."""

from __future__ import annotations

import asyncio
import json

from observe.eviction.samples import GI, MI, make_pod, make_use
from serve.world import make_world

from pykubelet.base.kit.cells import Mailbox, make_cell
from pykubelet.base.kit.values import replace
from pykubelet.base.model.evictions import Evictions, PodEviction, SignalState, SignalStates, WouldEvict
from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.lifecycle import Lifecycles, PodLifecycle, Stage
from pykubelet.base.model.roster import Roster, RosterPod, pod_ref
from pykubelet.base.model.usage import Usage, UsageWanted
from pykubelet.net.http.server import Request, Response
from pykubelet.serve.explain.documents import EvictionCells, ExplainRoute, ask_routes
from pykubelet.serve.explain.node import eviction_document

PODS = [make_pod("system", priority=2_000_000_000), make_pod("hog", memory="10Mi"), make_pod("good", memory="1Gi")]
USE = {PodUID("system"): 3 * GI, PodUID("hog"): GI, PodUID("good"): GI // 2}
ROSTER = Roster({pod_ref(pod).uid: RosterPod(pod, "api", 1.0) for pod in PODS})
LIVES = Lifecycles({pod_ref(pod).uid: PodLifecycle(pod_ref(pod), pod, Stage.SYNCING, 1.0, 1.0) for pod in PODS})
USAGE = Usage(5.0, None, {uid: make_use(uid, memory=used) for uid, used in USE.items()})
MEMORY = SignalState("memory.available", 0.0, GI, 4 * GI, 8 * GI, -5.0 * MI, 17.0)


def test_a_signal_names_its_users_and_the_pod_that_would_go_next() -> None:
    document = eviction_document(SignalStates(20.0, (MEMORY,), "shared"), Evictions(), ROSTER, LIVES, USAGE)
    [memory] = document["signals"]
    assert (memory["available"], memory["threshold"], memory["per_s"], memory["met_since"]) == (
        4 * GI,
        GI,
        -5.0 * MI,
        17.0,
    )
    assert [user["pod"] for user in memory["top"]] == ["default/system", "default/hog", "default/good"]
    assert memory["next"] == {"pod": "default/hog", "why": "uses 1Gi, requests 10Mi, priority 0"}


def test_before_pods_were_measured_there_is_no_next_one() -> None:
    document = eviction_document(SignalStates(20.0, (MEMORY,), "shared"), Evictions(), ROSTER, LIVES, Usage())
    assert document["signals"][0]["next"] is None and document["signals"][0]["top"] == []


def test_a_dry_run_lists_the_pods_it_spared() -> None:
    eviction = PodEviction(PodRef("default", "hog", PodUID("hog")), "Evicted", "low", 1)
    signals = SignalStates(20.0, (), "", dry_run=True, would_evict=(WouldEvict(19.0, eviction, "memory.available"),))
    document = eviction_document(signals, Evictions(), ROSTER, LIVES, USAGE)
    assert document["dry_run"] and document["would_evict"][0]["pod"] == "default/hog"


async def test_the_node_is_shown_with_new_usage_of_its_pods() -> None:
    usage, usage_end = make_cell("usage", Usage())
    wanted: Mailbox[UsageWanted] = Mailbox("usage-wanted")
    signals, _ = make_cell("signals", SignalStates(20.0, (MEMORY,), "shared"))
    evictions, _ = make_cell("evictions", Evictions())
    world = make_world()
    world.roster.publish(ROSTER)
    world.lifecycles.publish(LIVES)
    cells = EvictionCells(signals, evictions, usage, wanted)
    route = ask_routes(replace(world.inputs, eviction=cells), world.clock)
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(_ask(route))
        request = await wanted.get()
        usage_end.publish(replace(USAGE, taken_at=request.at_least))
    [memory] = json.loads(asked.result().body)["eviction"]["signals"]
    assert memory["next"]["pod"] == "default/hog"
    assert memory["unit"] == "bytes"


async def _ask(route: ExplainRoute) -> Response:
    return await route(Request("GET", "/node"))
