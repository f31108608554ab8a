"""A host name that is the whole domain name, and huge pages as the machine has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.agent import Agent, Json, make_container, make_pod
from testbed import host

pytestmark = pytest.mark.integration

MakeAgent = Callable[..., Agent]
POOL = Path("/proc/sys/vm/nr_hugepages")
MIB = 1 << 20


async def test_the_host_name_is_the_whole_domain_name(make_agent: MakeAgent) -> None:
    agent = make_agent().start()
    names: Json = {"setHostnameAsFQDN": True, "subdomain": "sub"}
    script = 'hostname; trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'
    agent.put(make_pod("whole", make_container(script=script), hostname="host", **names))
    agent.put(make_pod("too-long", hostname="h" * 50, **names))
    await agent.wait_running("whole")
    printed = await agent.wait_for("its name is printed", lambda: agent.output("whole", "main"))
    assert printed == "host.sub.default.svc.cluster.local\n"

    def reported() -> bool:
        details = [wait["detail"] for wait in agent.explain("too-long")["waits"]]
        return any("is too long (64 characters is the max, 80 characters requested)" in detail for detail in details)

    await agent.wait_for("the name that is too long is reported", reported)
    await agent.remove_all()


@pytest.fixture
def four_pages() -> Iterator[None]:
    """Four huge pages in the machine's pool, for the time of a test."""
    before = POOL.read_text()

    def has_four() -> bool:
        POOL.write_text("4")
        return int(POOL.read_text()) >= 4

    try:
        if not host.wait_until(has_four, 10, 0.5):  # the kernel may have to free capacity first
            pytest.fail("this machine has too little memory for four huge pages")
        yield
    finally:
        POOL.write_text(before)


async def test_huge_pages_are_given_as_the_machine_has_them(make_agent: MakeAgent, four_pages: None) -> None:
    agent = make_agent().start()
    assert agent.ask_json("explain", "node")["capacity"]["hugepages-2Mi"] == 8 * MIB
    limits = {"hugepages-2Mi": "6Mi", "memory": "20Mi", "cpu": "100m"}
    script = 'grep " /huge " /proc/self/mounts; trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'
    mounts = [{"name": "huge", "mountPath": "/huge"}]
    volumes = [{"name": "huge", "emptyDir": {"medium": "HugePages"}}]
    container = make_container(script=script, resources={"limits": limits}, volumeMounts=mounts)
    agent.put(make_pod("fits", container, volumes=volumes))
    await agent.wait_running("fits")
    mounted = await agent.wait_for("the mount is reported", lambda: agent.output("fits", "main").split())
    assert mounted[2] == "hugetlbfs"
    agent.put(make_pod("too-many", make_container(resources={"limits": {**limits, "hugepages-2Mi": "4Mi"}})))
    refused = await agent.wait_phase("too-many", "Failed")
    assert "hugepages-2Mi" in refused["status"]["message"]
    agent.remove("fits")
    await agent.wait_gone("fits")
    await agent.remove_all()
