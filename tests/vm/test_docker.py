"""Pods over Docker Engine and `pykubelet cri-docker`, both as services of systemd, on cgroup v2 with Docker's systemd driver."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.agent import Json, container_status, make_container, make_pod
from support.unit import LONG_S, SystemContainerd, UnitAgent, clear_machine, container_group, pod_units, show, systemctl
from support.world import a_world
from testbed import cri, host, images
from testbed.checkout import CHECKOUT

pytestmark = pytest.mark.vm

UNIT = "pykubelet-cri-docker.service"
DROP_IN = Path("/run/systemd/system", f"{UNIT}.d", "checkout.conf")
FOLDER = Path("/var/lib/testvm/over-docker")
MIB = 1 << 20


class SystemDocker(SystemContainerd):
    """The machine's Docker Engine behind the program that serves the CRI."""

    __slots__ = ()

    @property
    def socket(self) -> Path:
        return Path("/run/pykubelet-cri-docker/cri.sock")


@pytest.fixture
async def docker() -> AsyncIterator[SystemDocker]:
    """Both services, with the images of these tests. Docker has no network of its own: pods get theirs from CNI plugins."""
    settings = {"bridge": "none", "iptables": False, "ip-forward": False, "ip-masq": False, "live-restore": True}
    Path("/etc/docker").mkdir(exist_ok=True)
    Path("/etc/docker/daemon.json").write_text(json.dumps(settings))
    install = ("apt-get", "install", "-y", "--no-install-recommends", "docker.io", "apparmor")
    run("env", "DEBIAN_FRONTEND=noninteractive", *install)
    for name in (images.PAUSE, images.BUSYBOX):
        run("docker", "load", "--input", str(images.build(name, Path("/root/images"))))
    Path("/run/systemd/system", UNIT).write_text((CHECKOUT / f"debian/pykubelet.{UNIT}").read_text())
    DROP_IN.parent.mkdir(exist_ok=True)
    program = f"{CHECKOUT}/.venv/bin/pykubelet cri-docker --pause-image {images.PAUSE}"
    DROP_IN.write_text(f"[Service]\nExecStart=\nExecStart={program} --cni-bin-dir /usr/lib/cni\n")
    systemctl("daemon-reload")
    systemctl("start", UNIT)
    runtime = SystemDocker("/var/lib/testvm", "docker", "", "overlay2")
    assert host.wait_until(lambda: cri.is_ready(runtime.socket), LONG_S, 0.5), journal()
    yield runtime
    await clear_machine(runtime)
    systemctl("stop", UNIT, "docker.service", "docker.socket")


def run(*command: str) -> str:
    """The output of a command; an AssertionError with it when it fails."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONG_S, check=False
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def journal() -> str:
    return run("journalctl", "-b", "-n", "60", "-o", "short-monotonic", "-u", UNIT, "-u", "docker.service")


async def test_pods_over_docker_have_their_groups_and_outlive_both_services(
    docker: SystemDocker, tmp_path: Path
) -> None:
    def make(flags: tuple[str, ...], **settings: Any) -> UnitAgent:
        agent = UnitAgent(docker, FOLDER, settings)
        agent.flags = flags
        return agent

    script = 'trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done'
    size = {"cpu": "1", "memory": "64Mi"}
    pods: dict[str, Json] = {
        "guaranteed": {"requests": size, "limits": size},
        "burstable": {"requests": {"cpu": "50m", "memory": "120Mi"}, "limits": {"cpu": "1", "memory": "128Mi"}},
    }
    async with a_world(make, tmp_path, memorySwap={"swapBehavior": "LimitedSwap"}) as world:
        agent = world.agent
        for name, given in pods.items():
            world.run(make_pod(name, make_container(script=script, resources=given)))
        await world.wait_ready(*pods, within=LONG_S)
        view = await agent.look()
        groups = {name: container_group(view.of(name).running[0].id) for name in pods}
        assert all(group.name.startswith("docker-") for group in groups.values())
        assert all(group.parent.name.endswith(".slice") for group in groups.values())

        def limits(name: str) -> tuple[int, int]:
            found = [int((groups[name] / file).read_text()) for file in ("memory.max", "memory.swap.max")]
            return found[0] // MIB, found[1] // MIB

        expected = {name: limits(name) for name in pods}
        assert expected["guaranteed"] == (64, 0)
        assert expected["burstable"] in {(128, 20), (128, 21)}  # of 1 GiB of swap, 120 MiB of 6 GiB
        assert {(group / "cpu.max").read_text().split()[0] for group in groups.values()} == {"100000"}

        systemctl("daemon-reload")
        systemctl("kill", "--signal=KILL", UNIT)
        systemctl("restart", "docker.service")
        assert host.wait_until(lambda: show(UNIT, "ActiveState")["ActiveState"] == "active", LONG_S, 0.5), journal()
        assert host.wait_until(lambda: cri.is_ready(docker.socket), LONG_S, 0.5), journal()
        assert {name: limits(name) for name in pods} == expected
        await world.wait_ready(*pods, within=LONG_S)
        for name in pods:
            pod = world.pod(name)
            assert pod is not None and container_status(pod)["restartCount"] == 0
        assert (await agent.look()).running_ids() == view.running_ids()

        for name in pods:
            world.delete(name)
        await world.wait_gone(*pods, within=LONG_S)
        await agent.wait_nothing_left(within=LONG_S)
        await agent.wait_for("no slice or scope of a pod left", lambda: not pod_units(), LONG_S)
        await agent.wait_for("no container left", lambda: not run("docker", "ps", "--all", "--quiet"), LONG_S)
    await agent.clear()
