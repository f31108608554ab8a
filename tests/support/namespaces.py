"""Machines for tests that need several: each has namespaces, cgroups, `/etc`, `/var/lib`, `/run` and a containerd of its own.

Owns the cgroup of each machine, and everything below its folder. What is written below `/etc` and `/var` stays in that folder.
On cgroup v1 only: on v2 the root of a machine's cgroups could not have processes. Two machines are joined by `connect`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from testbed import containerd, host

#: The variable that makes a kubelet one of an older release: every command on a machine has it.
EMULATED = "PYKUBELET_EMULATED_VERSION"
TOOLS = Path(host.__file__).parents[1]
_SBIN = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OVERLAYS = ("/etc", "/var/lib", "/var/log", "/usr/libexec")
# process 1 of the machine; it reaps what its children leave
_INIT = """set -e
folder=$1; name=$2; shift 2
hostname "$name"
ip link set lo up
mount -t proc proc /proc
umount -R /sys/fs/cgroup
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
for controller in cpu cpuacct cpuset memory devices freezer blkio pids; do
  mkdir "/sys/fs/cgroup/$controller"
  mount -t cgroup -o "$controller" cgroup "/sys/fs/cgroup/$controller"
done
mkdir /sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
# the folder is below /var/lib, which becomes an overlay: it is put back on top
mount --bind "$folder" /mnt
for path; do
  upper="/mnt/files$path"; mkdir -p "$upper" "/mnt/work$path" "$path"
  mount -t overlay overlay -o "lowerdir=$path,upperdir=$upper,workdir=/mnt/work$path" "$path"
done
mount --bind /mnt "$folder"
umount /mnt
mkdir -p /var/lib/kubelet "$folder/kubelet"
mount --bind "$folder/kubelet" /var/lib/kubelet
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/netns /run/lock
mount --make-rshared /
sysctl -qw net.ipv4.ip_forward=1
touch "$folder/started"
while :; do sleep 86400 & wait $!; done
"""
# stands for systemd with the one service kubelet, whose unit has kubeadm's 10-kubeadm.conf
_SYSTEMCTL = """#!/bin/sh
running() { [ -e /run/kubelet.loop ] && kill -0 "$(cat /run/kubelet.loop)" 2>/dev/null; }
case "$1 $2" in
  "daemon-reload " | "status kubelet" | "is-enabled kubelet") ;;
  "is-active kubelet") running ;;
  "start kubelet" | "restart kubelet")
    if running; then kill "$(cat /run/kubelet.pid)"; else
      setsid sh FOLDER/service >> FOLDER/kubelet.log 2>&1 < /dev/null & echo $! > /run/kubelet.loop
    fi ;;
  "stop kubelet")
    if running; then kill "$(cat /run/kubelet.loop)" "$(cat /run/kubelet.pid)"; fi
    rm -f /run/kubelet.loop ;;
  *) exit 1 ;;
esac
"""
_SERVICE = """while :; do
  KUBELET_KUBEADM_ARGS=
  [ ! -f /var/lib/kubelet/kubeadm-flags.env ] || . /var/lib/kubelet/kubeadm-flags.env
  kubelet --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf \\
    --config=/var/lib/kubelet/config.yaml $KUBELET_KUBEADM_ARGS &
  echo $! > /run/kubelet.pid
  wait $! || :
  sleep 1
done
"""


class SeparateMachine:
    """A machine named `name`; `programs`: what is in its PATH first. `start` begins it, `stop` removes all of it."""

    def __init__(self, folder: Path, name: str, programs: Mapping[str, Path]) -> None:
        self.folder, self.name = folder.resolve(), name
        self.cgroup = f"/pyk-{os.getpid()}-{name}"
        self._process: subprocess.Popen[bytes] | None = None
        self._own = self.folder / "bin"
        self._own.mkdir(parents=True)
        (self.folder / "tmp").mkdir()
        for program, path in programs.items():
            (self._own / program).symlink_to(path)
        (self._own / "systemctl").write_text(_SYSTEMCTL.replace("FOLDER", str(self.folder)))
        (self._own / "systemctl").chmod(0o755)
        (self.folder / "service").write_text(_SERVICE)

    @property
    def endpoint(self) -> str:
        """Its containerd, as `--cri-socket` has it."""
        return f"unix://{self.folder}/containerd/containerd.sock"

    @property
    def pid(self) -> int:
        """Its process 1, by the number that it has outside."""
        assert self._process is not None
        outer = self._process.pid
        return int(Path(f"/proc/{outer}/task/{outer}/children").read_text().split()[0])

    def start(self) -> None:
        """Process 1 and containerd, with the images of the tests."""
        words = [
            "unshare",
            "--mount",
            "--net",
            "--pid",
            "--uts",
            "--ipc",
            "--cgroup",
            "--fork",
            "--propagation",
            "private",
        ]
        # it must be in its cgroup before it makes the namespace
        enter = ["sh", "-c", 'read line && exec "$@"', "sh", *words]
        argv = [*enter, "sh", "-c", _INIT, "sh", str(self.folder), self.name, *_OVERLAYS]
        with (self.folder / "init.log").open("wb") as log:
            process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=log, stderr=log)
        self._process = process
        host.enter_cgroup(self.cgroup, process.pid)
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
        begun = host.wait_until(lambda: (self.folder / "started").exists() or process.poll() is not None, 60)
        assert begun and process.poll() is None, (self.folder / "init.log").read_text()
        self._python(f"containerd.up(P({str(self.folder)!r}))")

    def load(self, archive: Path) -> None:
        """Give the image in `archive` to its containerd."""
        testbed = containerd.load(self.folder)
        assert testbed is not None
        testbed_words = ("images", "import", "--snapshotter", testbed.snapshotter, str(archive))
        self.run("ctr", "--address", str(testbed.socket), "-n", "k8s.io", *testbed_words)

    def run(self, *command: str, text: str = "", check: bool = True, timeout_s: float = 300) -> str:
        """The output of a command in the machine; an AssertionError with it when it fails."""
        words = ["nsenter", "-t", str(self.pid), "-m", "-n", "-p", "-u", "-i", "-C", "--", *command]
        env = {"PATH": f"{self._own}:{_SBIN}", "KUBECONFIG": "/etc/kubernetes/admin.conf", "HOME": "/root"}
        env |= {"PYTHONPATH": str(TOOLS), "TMPDIR": str(self.folder / "tmp")}  # the claims of test beds name processes
        env |= {name: os.environ[name] for name in (EMULATED,) if name in os.environ}
        enter = ["sh", "-c", 'read line && exec "$@"', "sh", *words]
        with subprocess.Popen(
            enter, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            host.enter_cgroup(self.cgroup, process.pid)
            output, _ = process.communicate(f"\n{text}", timeout=timeout_s)
        assert not check or process.returncode == 0, f"{command}: {process.returncode}\n{output}\n{self.log_tail()}"
        return output

    def _python(self, script: str) -> None:
        self.run(sys.executable, "-c", f"from pathlib import Path as P; from testbed import containerd; {script}")

    def log_tail(self) -> str:
        """The end of the kubelet's log."""
        log = self.folder / "kubelet.log"
        return "\n".join(log.read_text(errors="replace").splitlines()[-60:]) if log.exists() else ""

    def stop(self) -> None:
        """End every process, and with them the namespaces and mounts; remove cgroup and files."""
        host.remove_cgroup(self.cgroup)
        if self._process is not None:
            self._process.wait(60)
        shutil.rmtree(self.folder)


def connect(first: SeparateMachine, second: SeparateMachine, addresses: tuple[str, str]) -> None:
    """A network cable between two machines, with these addresses (a.b.c.d/n); each is the other's default gateway."""
    ends = (str(first.pid), str(second.pid))
    words = ["nsenter", "-t", ends[0], "-n", "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0"]
    subprocess.run([*words, "netns", ends[1]], check=True)
    others = (second, first)
    for machine, other, address, gateway in zip((first, second), others, addresses, addresses[::-1], strict=True):
        machine.run("ip", "address", "add", address, "dev", "eth0")
        machine.run("ip", "link", "set", "eth0", "up")
        machine.run("ip", "route", "add", "default", "via", gateway.partition("/")[0])
        names = f"127.0.0.1 localhost\n{address.partition('/')[0]} {machine.name}\n{gateway.partition('/')[0]} {other.name}\n"
        machine.run("tee", "/etc/hosts", text=names)
