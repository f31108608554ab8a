"""Network volumes on real servers: nfs against the kernel's server, also while it hangs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.agent import Json, container_status, make_container, make_pod
from support.storage_servers import NFS_PORT, nfs_server, silenced
from support.unit import LONG_S, UnitAgent
from vm.hung_storage import Record, others_end, others_run, timed

from pykubelet.edges.host.fs import mounts

pytestmark = pytest.mark.vm

MakeUnit = Callable[..., UnitAgent]
#: A dead server is given up after a minute; the rest is what the emulated machine needs.
GIVEN_UP_S = 300.0


def nfs_pod(name: str, server: str, export: Path, script: str = "", read_only: bool = False) -> Json:
    """A pod whose container has the export at /data."""
    container = make_container(script=script, volumeMounts=[{"name": "share", "mountPath": "/data"}])
    source = {"server": server, "path": str(export), "readOnly": read_only}
    return make_pod(name, container, volumes=[{"name": "share", "nfs": source}])


def mounted(agent: UnitAgent, pod: str) -> mounts.Mount | None:
    """The mount of the pod's volume."""
    uid = agent.pods()[pod]["metadata"]["uid"]
    path = f"{agent.root}/pods/{uid}/volumes/kubernetes.io~nfs/share"
    return next((mount for mount in mounts.read_mounts() if mount.target == path), None)


def nfs_mounts(agent: UnitAgent) -> list[str]:
    found = (mount for mount in mounts.read_mounts() if mount.fs_type.startswith("nfs"))
    return [mount.target for mount in found if mount.target.startswith(str(agent.root))]


@pytest.fixture
def export(tmp_path: Path) -> Iterator[Path]:
    """A directory that the machine's NFS server exports."""
    with nfs_server(tmp_path / "export"):
        yield tmp_path / "export"


async def test_pods_share_an_nfs_export(make_unit: MakeUnit, export: Path) -> None:
    agent = make_unit().start()
    sleeps = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"
    (export / "old").write_text("from the server\n")
    refuses = f"touch /data/no 2>&1; cat /data/old; {sleeps}"
    agent.put(
        nfs_pod("writer", "127.0.0.1", export, f"echo from a pod > /data/new; {sleeps}"),
        nfs_pod("reader", "::1", export, refuses, read_only=True),
    )
    await agent.wait_running("writer", "reader", within=LONG_S)
    await agent.wait_for("the file", lambda: (export / "new").exists(), LONG_S)
    assert (export / "new").read_text() == "from a pod\n"
    await agent.wait_for("the output", lambda: "from the server" in agent.output("reader", "main"), LONG_S)
    assert "Read-only file system" in agent.output("reader", "main")
    reader = mounted(agent, "reader")
    assert reader is not None and reader.source == f"[::1]:{export}" and reader.fs_type == "nfs4"
    assert "ro" in reader.options

    old = agent.main_pid()
    agent.kill9()
    agent.wait_restarted(old)
    for pod in await agent.wait_running("writer", "reader", within=LONG_S):
        assert container_status(pod)["restartCount"] == 0
    assert len(nfs_mounts(agent)) == 2
    agent.remove("writer", "reader")
    await agent.wait_gone("writer", "reader", within=LONG_S)
    await agent.wait_for("no mount is left", lambda: not nfs_mounts(agent), LONG_S)
    assert sorted(path.name for path in export.iterdir()) == ["new", "old"]


async def test_a_server_that_hangs_costs_only_the_pods_that_use_it(
    make_unit: MakeUnit, export: Path, record_property: Record
) -> None:
    agent = make_unit().start()
    agent.put(make_pod("usual"))
    await agent.wait_running("usual", within=LONG_S)
    with timed(record_property, "a pod ends before"):
        agent.remove("usual")
        await agent.wait_gone("usual", within=LONG_S)
    writes = "trap 'exit 0' TERM; while :; do date > /data/now; sleep 1; done"
    agent.put(nfs_pod("hung", "127.0.0.1", export, writes))
    await agent.wait_running("hung", within=LONG_S)
    await agent.wait_for("the file", lambda: (export / "now").exists(), LONG_S)
    with silenced(NFS_PORT):
        agent.put(nfs_pod("late", "127.0.0.1", export))
        await others_run(agent, "hung", record_property)
        with timed(record_property, "the pod with the hung volume ends"):
            await others_end(agent, "hung", record_property)
            await agent.wait_for("the hung volume is given up", lambda: not nfs_mounts(agent), GIVEN_UP_S)
            await agent.wait_gone("hung", within=LONG_S)
        assert container_status(agent.pods()["late"])["state"].get("running") is None
    with timed(record_property, "the waiting pod starts once the server is back"):
        await agent.wait_running("late", within=LONG_S)
    agent.remove("late", "another")
    await agent.wait_gone("late", "another", within=LONG_S)
    await agent.wait_for("no mount is left", lambda: not nfs_mounts(agent), LONG_S)
    await agent.wait_nothing_left(within=LONG_S)
