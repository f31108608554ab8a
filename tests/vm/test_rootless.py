"""A node of an ordinary user on cgroup v2, in a group that systemd delegates: limits of pods hold, and usage is measured."""

from __future__ import annotations

import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.agent import make_container, make_pod
from support.rootless import RootlessNode
from support.unit import LONG_S

pytestmark = pytest.mark.vm
USER, UNIT = "ordinary", "rootless-node"
FOLDER = Path("/var/lib/rootless")
MIB = 1 << 20
#: What programs in a user namespace need; they cannot load modules themselves.
MODULES = (
    *("tun", "overlay", "bridge", "veth", "nf_tables", "nft_compat", "nft_chain_nat", "xt_MASQUERADE", "xt_comment"),
    *("xt_conntrack", "xt_addrtype", "xt_mark", "xt_multiport"),
)


def run(*words: str) -> None:
    subprocess.run(words, stdin=subprocess.DEVNULL, check=True)


@pytest.fixture
def node() -> Iterator[RootlessNode]:
    """A node (not started) of a user whose systemd has all controllers that pods need."""
    run("modprobe", "--all", *MODULES)
    Path("/root").chmod(0o711)
    delegate = Path("/etc/systemd/system/user@.service.d/delegate.conf")
    delegate.parent.mkdir(exist_ok=True)
    delegate.write_text("[Service]\nDelegate=cpu cpuset io memory pids\n")
    run("systemctl", "daemon-reload")
    run("useradd", "--create-home", USER)
    run("loginctl", "enable-linger", USER)
    uid = pwd.getpwnam(USER).pw_uid
    runtime = Path(f"/run/user/{uid}")
    deadline = time.monotonic() + LONG_S
    while not (runtime / "bus").exists():
        assert time.monotonic() < deadline, "the user has no systemd"
        time.sleep(1)
    as_user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--init-groups"]
    manager = [*as_user, "env", f"XDG_RUNTIME_DIR={runtime}", f"DBUS_SESSION_BUS_ADDRESS=unix:path={runtime}/bus"]
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(mode=0o711)
    enter = [*manager, "systemd-run", "--user", "--pipe", "--wait", "--collect", f"--unit={UNIT}"]
    made = RootlessNode(FOLDER, uid=uid, enter=[*enter, "--property=Delegate=yes"])
    yield made
    subprocess.run([*manager, "systemctl", "--user", "stop", UNIT], stdin=subprocess.DEVNULL, check=False)
    made.stop()


def test_pods_of_an_ordinary_user_have_cgroups(node: RootlessNode) -> None:
    size = {"cpu": "1", "memory": "64Mi"}
    greedy = "sleep 5; tail /dev/zero"
    node.put(
        make_pod("limited", make_container(resources={"requests": size, "limits": size})),
        make_pod(
            "greedy", make_container(script=greedy, resources={"limits": {"memory": "16Mi"}}), restartPolicy="Never"
        ),
    )
    node.start(within_s=LONG_S)

    def running() -> bool:
        pod = node.pod("limited")
        return pod is not None and pod["status"].get("phase") == "Running"

    node.wait(running, "the pod runs", LONG_S)
    pod = node.pod("limited")
    assert pod is not None
    uid = pod["metadata"]["uid"]
    (group,) = Path("/sys/fs/cgroup/user.slice").rglob(f"kubepods/pod{uid}")
    assert f"{UNIT}.service" in str(group)
    assert int((group / "memory.max").read_text()) == 64 * MIB
    assert (group / "cpu.max").read_text() == "100000 100000\n"

    def is_measured() -> bool:
        found = {entry["podRef"]["name"]: entry for entry in node.get("/stats/summary")["pods"]}
        return bool(found.get("limited-rootless", {}).get("memory", {}).get("workingSetBytes"))

    node.wait(is_measured, "its usage is known", LONG_S)

    def reason() -> str:
        statuses = (node.pod("greedy") or {"status": {}})["status"].get("containerStatuses") or [{}]
        return str(statuses[0].get("state", {}).get("terminated", {}).get("reason", ""))

    node.wait(reason, "the greedy container has ended", LONG_S)
    assert reason() == "OOMKilled"
    node.remove("limited")
    node.wait(lambda: not group.exists(), "nothing is left of the pod's cgroup", LONG_S)
