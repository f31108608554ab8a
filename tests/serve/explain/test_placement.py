"""The map of the node: who has which CPUs, memory, devices and claims, and what is free."""

from __future__ import annotations

import json
from typing import Any

from serve.world import make_world
from support.cost import check_cost

from pykubelet.app.placement_map import map_lines, pod_lines
from pykubelet.base.kit.cells import make_cell
from pykubelet.base.kit.values import replace
from pykubelet.base.model.claims import ClaimDevice, Claims, ContainerClaim, PodClaims
from pykubelet.base.model.ids import PodUID
from pykubelet.base.model.machine import Cpu, MachineTopology, NumaNode
from pykubelet.base.model.placement import (
    AssignedDevices,
    ContainerPlacement,
    DeviceResource,
    MemoryBlock,
    Placements,
    PodPlacement,
)
from pykubelet.base.model.roster import Rejection
from pykubelet.net.http.server import Request, Response
from pykubelet.serve.explain.documents import PlacementCells, ask_routes
from pykubelet.serve.explain.placement import placement_document, pod_placement_document

GI = 1 << 30
GPU = "example.com/gpu"
A, B = PodUID("a-uid"), PodUID("b-uid")
NAMES = {A: "default/a", B: "shop/b"}


def machine(nodes: int, per_node: int) -> MachineTopology:
    """Half of the CPUs are second threads, with ids above those of all first ones."""
    cores = nodes * per_node // 2
    cpus = tuple(
        Cpu(core + thread * cores, core, core * nodes // cores, core * nodes // cores, 0)
        for thread in range(2)
        for core in range(cores)
    )
    return MachineTopology(cpus, tuple(NumaNode(node, 32 * GI) for node in range(nodes)))


TWO_NODES = Placements(
    pods={
        A: PodPlacement(
            {
                "main": ContainerPlacement(
                    frozenset({1, 2, 3, 9, 10}),
                    "0",
                    (MemoryBlock((0,), "memory", 5 * GI),),
                    (AssignedDevices(GPU, {0: frozenset({"g0", "g1"})}),),
                ),
                "log": ContainerPlacement(memory=(MemoryBlock((0,), "memory", 0),)),
            }
        ),
        B: PodPlacement(
            {
                "main": ContainerPlacement(
                    frozenset({4, 12}), devices=(AssignedDevices(GPU, {1: frozenset({"g5"}), -1: frozenset({"old"})}),)
                )
            }
        ),
    },
    machine=machine(2, 8),
    reserved=frozenset({0, 8}),
    shared=frozenset({0, 5, 6, 7, 8, 11, 13, 14, 15}),
    allocatable_memory=(MemoryBlock((0,), "memory", 31 * GI), MemoryBlock((1,), "memory", 30 * GI + GI // 2)),
    devices={
        GPU: DeviceResource(
            frozenset({"g0", "g1", "g2", "g5", "loose"}),
            frozenset({"g3", "old"}),
            {"g0": (0,), "g1": (0,), "g2": (0,), "g3": (0,), "g5": (1,)},
        ),
        "example.com/gone": DeviceResource(is_stopped=True),
    },
)
NO_CLAIMS = Claims()
CLAIM = ContainerClaim("tpus", "shop", (ClaimDevice("tpu.example.com", "pool", "t0"),))
CLAIMS = Claims({B: PodClaims(True, {"main": (CLAIM,)})})


def shown(placements: Placements, claims: Claims = NO_CLAIMS) -> list[str]:
    """The lines that the command prints, from the document as it comes over the socket."""
    return list(map_lines(json.loads(json.dumps(placement_document(placements, claims, NAMES)))))


def test_two_nodes() -> None:
    assert shown(TWO_NODES, CLAIMS) == [
        "NUMA node 0 (socket 0, memory 32Gi): CPUs 0-3,8-11",
        "  0,8                  reserved",
        "  1-3,9-10             default/a main",
        "  11                   shared pool",
        "  5Gi memory           default/a main",
        "  26Gi memory          free of 31Gi",
        "  example.com/gpu",
        "    g0,g1              default/a main",
        "    g3                 unhealthy",
        "    g2                 free",
        "NUMA node 1 (socket 1, memory 32Gi): CPUs 4-7,12-15",
        "  4,12                 shop/b main",
        "  5-7,13-15            shared pool",
        "  30.5Gi memory        free of 30.5Gi",
        "  example.com/gpu",
        "    g5                 shop/b main",
        "No NUMA node:",
        "  example.com/gpu",
        "    old                shop/b main",
        "    old                unhealthy",
        "    loose              free",
        "example.com/gone: no devices, its plugin has stopped",
        "Resource claims:",
        "  shop/tpus",
        "    tpu.example.com/pool/t0",
        "    held by shop/b main",
    ]


def test_the_document_for_programs() -> None:
    document = placement_document(TWO_NODES, CLAIMS, NAMES)
    assert document["numa_nodes"][0] == {
        "id": 0,
        "sockets": [0],
        "memory": 32 * GI,
        "cpus": "0-3,8-11",
        "reserved": "0,8",
        "shared": "11",
        "exclusive": [{"pod": "default/a", "container": "main", "cpus": "1-3,9-10"}],
    }
    assert document["memory"][0] == {
        "numa_nodes": [0],
        "type": "memory",
        "allocatable": 31 * GI,
        "free": 26 * GI,
        "held": [{"pod": "default/a", "container": "main", "size": 5 * GI}],
    }
    gone, gpu = document["devices"]
    assert gone["resource"] == "example.com/gone" and gone["stopped"] and gone["groups"] == []
    assert (gpu["healthy"], gpu["unhealthy"], gpu["free"]) == (5, 2, 2)
    assert gpu["groups"][0] == {
        "numa_nodes": [0],
        "free": 1,
        "free_ids": ["g2"],
        "unhealthy": 1,
        "unhealthy_ids": ["g3"],
        "held": [{"pod": "default/a", "container": "main", "count": 2, "ids": ["g0", "g1"]}],
    }
    assert document["claims"] == [
        {
            "namespace": "shop",
            "name": "tpus",
            "devices": [{"driver": "tpu.example.com", "pool": "pool", "device": "t0", "share_id": ""}],
            "held": [{"pod": "shop/b", "container": "main"}],
        }
    ]


def test_memory_of_several_nodes_together() -> None:
    """Memory that a container has on both nodes is free or taken on both together."""
    block = MemoryBlock((0, 1), "memory", 40 * GI)
    placements = replace(TWO_NODES, pods={A: PodPlacement({"main": ContainerPlacement(memory=(block,))})}, devices={})
    assert shown(placements)[-3:] == [
        "NUMA nodes 0, 1 together:",
        "  40Gi memory          default/a main",
        "  21.5Gi memory        free of 61.5Gi",
    ]
    pools = placement_document(placements, Claims(), {})["memory"]
    assert [(pool["numa_nodes"], pool["free"]) for pool in pools] == [([0, 1], 21 * GI + GI // 2)]
    assert pools[0]["held"][0]["pod"] == "pod a-uid"  # restored from a state file; its pod is not known yet


def test_without_policies_all_cpus_are_shared() -> None:
    placements = Placements(machine=machine(1, 4))
    assert shown(placements) == [
        "NUMA node 0 (socket 0, memory 32Gi): CPUs 0-3",
        "  0-3                  shared pool",
    ]
    assert shown(Placements()) == []


def test_a_large_machine_fits_on_a_screen() -> None:
    """Eight nodes with 256 CPUs, whose free and taken CPUs alternate: 1 CPU of each core is one pod's."""
    big = machine(8, 32)
    taken = {PodUID(f"p{cpu}"): cpu for cpu in range(0, 256, 2)}
    pods = {uid: PodPlacement({"app": ContainerPlacement(frozenset({cpu}))}) for uid, cpu in taken.items()}
    free = frozenset(range(1, 256, 2))
    lines = list(
        map_lines(
            placement_document(
                Placements(pods, big, shared=free), Claims(), {uid: f"production/web-server-{uid}" for uid in taken}
            )
        )
    )
    assert max(map(len, lines)) <= 80
    assert len(lines) == 8 * (1 + 16 + 2)
    assert lines[:2] == [
        "NUMA node 0 (socket 0, memory 32Gi): CPUs 0-15,128-143",
        "  0                    production/web-server-p0 app",
    ]
    assert lines[17:20] == [
        "  1,3,5,7,9,11,13,15,129,131,133,135,137, shared pool",
        "  139,141,143",
        "NUMA node 1 (socket 1, memory 32Gi): CPUs 16-31,144-159",
    ]


def test_what_one_pod_has() -> None:
    document = pod_placement_document(TWO_NODES, CLAIMS, A)
    assert document is not None and document["explanation"] == ""
    assert list(pod_lines(document)) == [
        "  main: CPUs 1-3,9-10, 5Gi memory on node 0, example.com/gpu g0,g1",
        "  log: shared pool",
    ]
    document = pod_placement_document(TWO_NODES, CLAIMS, B)
    assert document is not None
    assert list(pod_lines(document)) == ["  main: CPUs 4,12, example.com/gpu g5,old, claim shop/tpus"]
    assert pod_placement_document(TWO_NODES, CLAIMS, PodUID("c")) is None


async def test_the_answers_of_the_agent() -> None:
    world = make_world()
    uid = PodUID("uid-1")
    why = "container app needs 4 CPUs on one NUMA node; largest free: 3 on node 1, held by default/x main (5)"
    refused = PodPlacement(rejection=Rejection("TopologyAffinityError", "no"), explanation=why)
    placements, claims = (
        make_cell("placements", replace(TWO_NODES, pods={uid: refused}))[0],
        make_cell("c", Claims())[0],
    )
    route = ask_routes(replace(world.inputs, placement=PlacementCells(placements, claims)), world.clock)

    async def ask(path: str) -> Any:
        answer = await route(Request("GET", path))
        assert isinstance(answer, Response) and isinstance(answer.body, bytes)
        return json.loads(answer.body)

    assert (await ask("/node"))["placement"]["numa_nodes"][1]["cpus"] == "4-7,12-15"
    assert (await ask(f"/pods/{uid}"))["placement"] == {
        "explanation": why,
        "cpus": "",
        "memory": [],
        "containers": [],
    }
    assert (await ask("/pods/late-1"))["placement"] is None
    answer = await route(Request("GET", "/node/recording"))
    assert isinstance(answer, Response) and answer.status == 404  # nothing was placed yet


def test_100_000_devices_are_counted() -> None:
    ids = [f"device-{number:06}" for number in range(100_000)]
    has = AssignedDevices(GPU, {0: frozenset(ids[:50_000])})
    resource = DeviceResource(frozenset(ids[:90_000]), frozenset(ids[90_000:]), dict.fromkeys(ids, (0, 1)))
    placements = Placements({A: PodPlacement({"main": ContainerPlacement(devices=(has,))})}, devices={GPU: resource})

    async def ask() -> None:
        document = placement_document(placements, Claims(), NAMES)
        (group,) = document["devices"][0]["groups"]
        assert (group["held"][0]["count"], group["free"], group["unhealthy"]) == (50_000, 40_000, 10_000)
        assert len(group["held"][0]["ids"]) == 32
        assert max(map(len, map_lines(document))) < 120

    check_cost("the map", ask)
