"""CRI-O as the runtime of a test bed: its configuration, its images and the end of its containers.

The folder of programs has `crio` and `pinns`; `conmon` and `runc` are taken from there or from the system. Everything
that CRI-O writes stays below the test bed's folder.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from testbed import host, images, runc
from testbed.host import TestbedError
from testbed.private_runtime import Testbed

_ANY_SIGNATURE = {"default": [{"type": "insecureAcceptAnything"}]}


def flags(testbed: Testbed) -> tuple[str, ...]:
    """Of the machine's own CRI-O, neither drop-in files nor registries are used."""
    registries = testbed.root / "registries.conf"
    return ("--config-dir", "", "--registries-conf", str(registries), "--registries-conf-dir", f"{registries}.d")


def prepare(testbed: Testbed) -> None:
    """Write the configuration and what it names. Raises TestbedError where a program is missing."""
    root = testbed.root
    (root / "policy.json").write_text(json.dumps(_ANY_SIGNATURE))
    (root / "storage.conf").write_text(f"[storage]\n{_storage(testbed)}")
    # containerd reaches the machine's own registries by HTTP without a setting
    (root / "registries.conf").write_text(_registry("127.0.0.1", "127.0.0.1"))
    for folder in (
        root / "registries.conf.d",
        root / "blobs",
        root / "exits",
        root / "attach",
        testbed.state / "ns",
    ):
        folder.mkdir(parents=True, exist_ok=True)
    testbed.config_file.write_text(_render(testbed, runc.write_script(testbed)))


def _storage(testbed: Testbed) -> str:
    driver = "overlay" if testbed.snapshotter == "overlayfs" else "vfs"
    places = {"graphroot": testbed.root / "root", "runroot": testbed.state / "storage"}
    return f"driver = {json.dumps(driver)}\n" + "".join(
        f"{key} = {json.dumps(str(at))}\n" for key, at in places.items()
    )


def _quoted(path: Path | str) -> str:
    return json.dumps(str(path))


def _render(testbed: Testbed, script: Path) -> str:
    root, state, quoted = testbed.root, testbed.state, _quoted
    handlers = "".join(
        f"""
[crio.runtime.runtimes.{handler}]
runtime_path = {quoted(script)}
runtime_root = {quoted(state / "runc")}
monitor_path = {quoted(runc.find_program(testbed, "conmon"))}
monitor_cgroup = "pod"
"""
        for handler in ("runc", "test-handler")
    )
    return f"""
[crio]
root = {quoted(root / "root")}
runroot = {quoted(state / "storage")}
storage_driver = {"overlay" if testbed.snapshotter == "overlayfs" else "vfs"!r}
log_dir = {quoted(root / "logs")}
version_file = {quoted(state / "version")}
version_file_persist = {quoted(root / "version")}
clean_shutdown_file = {quoted(root / "clean.shutdown")}
internal_wipe = false
internal_repair = false
[crio.api]
listen = {quoted(testbed.socket)}
[crio.runtime]
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
default_runtime = "runc"
pinns_path = {quoted(runc.find_program(testbed, "pinns"))}
namespaces_dir = {quoted(state / "ns")}
container_exits_dir = {quoted(root / "exits")}
container_attach_socket_dir = {quoted(root / "attach")}
hooks_dir = []
cdi_spec_dirs = [{quoted(testbed.devices)}]
irqbalance_config_restore_file = "disable"
enable_pod_events = true
# its rules would outlive the test bed, and it does not map 127.0.0.1
disable_hostport_mapping = true
{handlers}
[crio.image]
big_files_temporary_dir = {quoted(root / "blobs")}
pause_image = {json.dumps(images.PAUSE)}
signature_policy = {quoted(root / "policy.json")}
auto_reload_registries = true
[crio.network]
network_dir = {quoted(root / "cni")}
plugin_dirs = [{json.dumps(testbed.cni_bin)}]
[crio.nri]
enable_nri = false
"""


def import_image(testbed: Testbed, name: str, archive: Path) -> None:
    """Put the image of a docker-archive into CRI-O's storage. Raises TestbedError."""
    driver = "overlay" if testbed.snapshotter == "overlayfs" else "vfs"
    storage = f"containers-storage:[{driver}@{testbed.root / 'root'}+{testbed.state / 'storage'}]{name}"
    command = [runc.find_program(testbed, "skopeo"), "copy", "--insecure-policy", f"docker-archive:{archive}", storage]
    done = subprocess.run(
        command, env=testbed.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        raise TestbedError(f"{' '.join(command)}: {done.stderr.strip()}")


def trust_registry(testbed: Testbed, name: str, address: str) -> None:
    """Reach the registry `name` at `address`, by HTTP or with any certificate. Raises TestbedError if CRI-O ignores it."""
    part = testbed.root / "registry.part"
    part.write_text(_registry(name, address))
    before = _applied(testbed)
    part.replace(testbed.root / "registries.conf.d" / f"{name.replace(':', '_')}.conf")
    if testbed.pid() is not None and not host.wait_until(lambda: _applied(testbed) > before, 30):
        raise TestbedError(f"CRI-O does not read its registries again; see {testbed.log_file}")


def _registry(name: str, address: str) -> str:
    return f"[[registry]]\nprefix = {json.dumps(name)}\nlocation = {json.dumps(address)}\ninsecure = true\n"


def _applied(testbed: Testbed) -> int:
    """How often CRI-O has read its registries, which it does soon after a change."""
    return testbed.log_file.read_text(errors="replace").count("Applied new registry configuration")


def end_containers(testbed: Testbed) -> None:
    """Kill all containers and their monitors: without CRI-O nothing restarts or reports them."""
    mark = str(testbed.state)
    monitors = [
        process.pid
        for process in host.processes()
        if process.argv
        and os.path.basename(process.argv[0]) == "conmon"
        and any(mark in argument for argument in process.argv)
    ]
    host.kill_all(monitors)
    for file in (testbed.state / "runc").glob("*/state.json"):
        pid = json.loads(file.read_text()).get("init_process_pid", 0)
        groups = {group for group in host.read_cgroups(pid) if file.parent.name in group}
        if groups:  # a reused pid would not be in a group of this container's name
            host.kill_all({pid, *(member for group in groups for member in host.cgroup_pids(group))})
        for group in groups:
            host.remove_cgroup(group)
