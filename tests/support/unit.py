"""The agent as a service of systemd on the machine's own containerd, as its users have it. Only for the virtual machine.

Owns the unit `pykubelet.service`, the machine's containerd service and its groups `kubepods`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from support.agent import Agent, Json, sweep
from testbed import containerd, cri, host, images
from testbed.node import render_config
from testbed.private_runtime import Testbed

UNIT = "pykubelet.service"
UNIT_FILE = Path("/etc/systemd/system", UNIT)
CONTAINERD_CONFIG = Path("/etc/containerd/config.toml")
CGROUP_MOUNT = Path("/sys/fs/cgroup")
ARCHIVES = Path("/root/images")
#: Long enough for an agent that is only slow.
WATCHDOG_S = 120
#: Nothing in the machine takes so long unless it never comes; emulated on a busy host, a pod may need minutes.
LONG_S = 900.0


def systemctl(*words: str, check: bool = True) -> str:
    """The output of `systemctl`; an AssertionError with its words when it fails."""
    command = ["systemctl", "--no-pager", *words]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900)
    assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


def show(unit: str, *properties: str) -> dict[str, str]:
    """Properties of a unit, as systemd prints them."""
    lines = systemctl("show", unit, f"--property={','.join(properties)}").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def pod_units() -> list[str]:
    """The slices of pods and the scopes of containers that systemd knows, in whatever state."""
    rows = json.loads(systemctl("list-units", "--all", "--type=slice,scope", "--output=json"))
    names = [str(row["unit"]) for row in rows]
    return sorted(name for name in names if "-pod" in name or name.startswith(("cri-containerd-", "docker-")))


class SystemContainerd(Testbed):
    """The machine's containerd, a service of systemd."""

    __slots__ = ()

    @property
    def socket(self) -> Path:
        return Path("/run/containerd/containerd.sock")

    def set_driver(self, driver: str) -> None:
        """Let runc use the cgroup driver `systemd` or `cgroupfs`; containerd starts again if that is new."""
        text = CONTAINERD_CONFIG.read_text()
        word = "true" if driver == "systemd" else "false"
        other = "false" if driver == "systemd" else "true"
        if f"SystemdCgroup = {word}" not in text:
            CONTAINERD_CONFIG.write_text(text.replace(f"SystemdCgroup = {other}", f"SystemdCgroup = {word}"))
            systemctl("restart", "containerd.service")
            assert host.wait_until(lambda: cri.is_ready(self.socket), LONG_S, 0.2)


def system_containerd() -> SystemContainerd:
    """The machine's containerd, answering, with the images that these tests use."""
    runtime = SystemContainerd("/var/lib/testvm", "system", "", "overlayfs")
    assert host.wait_until(lambda: cri.is_ready(runtime.socket), 120, 0.2), "containerd.service does not answer"
    for name in (images.PAUSE, images.BUSYBOX):
        containerd.import_image(runtime, name, images.build(name, ARCHIVES))
    return runtime


class UnitAgent(Agent):
    """An agent that systemd starts, watches and restarts. `driver`: its cgroup driver, and containerd's. `launcher`: what is started
    in the place of its program."""

    #: Every look costs the emulated CPUs, and the agent that is looked at, a good part of a second.
    step_s: ClassVar[float] = 1.0
    launcher: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.driver = str(self.settings.get("cgroupDriver", "systemd"))
        self.root = self.folder / "root"
        self.manifests = self.folder / "manifests"
        self.logs = self.folder / "logs"
        self.config_file = self.folder / "kubelet.yaml"
        self.cgroup = "/"
        self.manifests.mkdir(parents=True, exist_ok=True)
        if self.config_file.exists():
            config = json.loads(self.config_file.read_text())
        else:
            ports = (host.free_port(0), host.free_port(0), host.free_port(0))
            config = render_config(self.testbed, self.manifests, ports)
            config |= {"podLogsDir": str(self.logs), "cgroupRoot": None, "failCgroupV1": True}
            # emulated on a busy host, a sandbox may take minutes
            config |= {"cgroupDriver": self.driver, "runtimeRequestTimeout": "10m", **self.settings}
            config = {key: value for key, value in config.items() if value is not None}
            self.config_file.write_text(json.dumps(config, indent=2))
        self.health_port, self.read_only_port, self.port = (
            int(config[name]) for name in ("healthzPort", "readOnlyPort", "port")
        )

    def change_settings(self, **settings: Any) -> None:
        """Other KubeletConfiguration fields, from the next start on."""
        config = json.loads(self.config_file.read_text()) | settings
        self.config_file.write_text(json.dumps(config, indent=2))

    def command(self, *more: str) -> list[str]:
        command = super().command(*more)
        return [*self.launcher, *command[1:]] if self.launcher else command

    def render_unit(self) -> str:
        """The unit, with readiness and watchdog as the Kubernetes documentation has them."""
        variables = "".join(f'Environment="{name}={value}"\n' for name, value in self.environment.items())
        return f"""[Unit]
Description=Kubernetes node agent
After=containerd.service network.target
Wants=containerd.service

[Service]
Type=notify
WatchdogSec={WATCHDOG_S}
Restart=always
RestartSec=1
TimeoutStartSec=600
{variables}ExecStart={" ".join(self.command())}

[Install]
WantedBy=multi-user.target
"""

    def start(self, wait: bool = True) -> UnitAgent:
        UNIT_FILE.write_text(self.render_unit())
        systemctl("daemon-reload")
        systemctl("enable", UNIT)
        systemctl("start", UNIT)  # with Type=notify it returns when the agent is ready
        if wait:
            self.wait_healthy()
        return self

    def main_pid(self) -> int:
        """The agent's process; 0 while there is none."""
        return int(show(UNIT, "MainPID")["MainPID"])

    def wait_restarted(self, old: int, within: float = LONG_S) -> None:
        """Another process than `old` is the agent's, and systemd counts it as started."""

        def is_new() -> bool:
            found = show(UNIT, "MainPID", "ActiveState")
            return found["ActiveState"] == "active" and int(found["MainPID"]) not in (0, old)

        assert host.wait_until(is_new, within, 0.2), self.log_tail()
        self.wait_healthy()

    def stop(self) -> int:
        systemctl("stop", UNIT)
        return int(show(UNIT, "ExecMainStatus")["ExecMainStatus"])

    def kill9(self) -> None:
        systemctl("kill", "--signal=KILL", "--kill-who=main", UNIT)

    def log_text(self) -> str:
        command = ["journalctl", "--no-pager", "-b", "-o", "cat", "-u", UNIT]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120).stdout

    def pod_cgroups(self) -> list[Path]:
        return [folder for folder in cgroups_below_kubepods() if "pod" in folder.name.replace("kubepods", "")]

    def summary(self) -> Json:
        """The Summary API."""
        code, body = self.get("/stats/summary", self.read_only_port)
        assert code == 200, f"{code} {body}"
        found: Json = json.loads(body)
        return found

    async def clear(self) -> None:
        """For the end of a test that may have failed: unit, pods, files and groups away."""
        await clear_machine(self.testbed)
        if self.folder.exists():
            host.unmount_below(self.folder)
            shutil.rmtree(self.folder)


def with_flags(make_unit: Callable[..., UnitAgent], *more: str) -> Callable[..., UnitAgent]:
    """`make_unit` as `a_world` calls it: the agent's flags, and fields by keyword. `more`: further flags."""

    def make(flags: tuple[str, ...], **settings: Any) -> UnitAgent:
        agent = make_unit(**settings)
        agent.flags = (*flags, *more)
        return agent

    return make


class TimeOfChange:
    """Looks in a thread of its own until a condition holds; `at` is then when it was seen first, seconds since the epoch.

    Tests look once a second (`UnitAgent.step_s`), which is too seldom for times that are to be printed.
    """

    def __init__(self, holds: Callable[[], bool], step_s: float) -> None:
        self.at = 0.0
        self._holds = holds
        self._step_s = step_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> TimeOfChange:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self.at:
            is_last = self._done.wait(self._step_s)
            if self._holds():
                self.at = time.time()
            elif is_last:
                return


async def clear_machine(runtime: Testbed) -> None:
    """The unit, every pod of the runtime and the groups of pods away, also those of a test run that was cut short."""
    if UNIT_FILE.exists():
        systemctl("disable", "--now", UNIT, check=False)
        UNIT_FILE.unlink()
        systemctl("daemon-reload")
    await sweep(runtime)
    if (CGROUP_MOUNT / "kubepods.slice").exists():
        systemctl("stop", "kubepods.slice")
    if (CGROUP_MOUNT / "kubepods").exists():
        host.remove_cgroup("/kubepods")


def container_group(runtime_id: str) -> Path:
    """The cgroup of a container or sandbox by its id at the runtime, of either driver."""
    names = (f"cri-containerd-{runtime_id}.scope", f"docker-{runtime_id}.scope", runtime_id)
    return next(path for path in cgroups_below_kubepods() if path.name in names)


def read_events(file: Path) -> dict[str, int]:
    """A file of counts by name, as `memory.events`; empty when it is gone."""
    try:
        return {name: int(count) for name, count in (line.split() for line in file.read_text().splitlines())}
    except OSError:
        return {}


def cgroups_below_kubepods() -> Iterator[Path]:
    """Every group at or below that of all pods, of either driver."""
    for top in ("kubepods.slice", "kubepods"):
        # groups vanish meanwhile: os.walk passes over them, Path.rglob raises
        yield from (Path(folder) for folder, _, _ in os.walk(CGROUP_MOUNT / top))
