"""A private containerd below a folder: started, found again, stopped, and removed with everything it made.

Owns the folder's `containerd/` part and its configuration. Never touches the machine's own containerd. Works with
containerd 1.6, 1.7 and 2.x, and with CRI-O (`crio.py`) or Docker Engine (`docker.py`) in its place where the given folder of
programs has that.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from testbed import claims, cri, crio, docker, host, images
from testbed.host import TestbedError
from testbed.network import choose_subnet, has_shared_chains, remove_network, used_subnets, write_cni_config
from testbed.private_runtime import CONTAINERD, CRIO, DOCKER, DOCKERD, Testbed

# containerd puts `.ttrpc` behind the path, and a socket's path has 107 characters at most
_LONGEST_SOCKET = 100


def load(folder: Path) -> Testbed | None:
    """The testbed that `up` made in `folder`, running or not."""
    try:
        data = json.loads((folder.resolve() / "testbed.json").read_text())
        return Testbed(**data | {"launcher": tuple(data.get("launcher", ()))})
    except (OSError, ValueError, TypeError):
        return None


def up(
    folder: Path,
    image_names: Iterable[str] = (images.BUSYBOX,),
    bin_dir: str = "",
    launcher: Iterable[str] = (),
) -> Testbed:
    """Make sure that a private containerd runs below `folder` and has the images; returns it.

    Finds a running one, also one that lost only its containerd (its containers are then adopted). `bin_dir`, or the
    variable TESTBED_BIN, names the folder of another runtime than the system's containerd. Raises TestbedError with the end of
    containerd's log if it does not come up.
    """
    folder = folder.resolve()
    with _locked(folder):
        testbed = load(folder) or _plan(folder, bin_dir, tuple(launcher))
        _hold(testbed)
        if len(str(testbed.socket)) > _LONGEST_SOCKET:
            raise TestbedError(f"{testbed.socket} is too long for a socket: use a folder with a shorter path")
        start(testbed)
        for name in (images.PAUSE, *image_names):
            import_image(testbed, name, images.build(name, folder / "images"))
    return testbed


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "testbed.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def kind(bin_dir: str = "") -> str:
    """Which runtime `up` starts with this `bin_dir`; its files are in the folder of this name."""
    bin_dir = bin_dir or os.environ.get("TESTBED_BIN", "")
    kinds = {CRIO: CRIO, DOCKERD: DOCKER}
    found = (kind for program, kind in kinds.items() if bin_dir and Path(bin_dir, program).exists())
    return next(found, CONTAINERD)


def _plan(folder: Path, bin_dir: str, launcher: tuple[str, ...]) -> Testbed:
    bin_dir = bin_dir or os.environ.get("TESTBED_BIN", "")
    seed = int.from_bytes(hashlib.sha256(os.fsencode(folder)).digest()[:4], "big")
    holder = claims.folder(folder)
    name = claims.claim("name", (f"pyk{(seed + i) % 2**32:08x}" for i in range(1000)), holder)
    assert name is not None
    testbed = Testbed(
        folder=str(folder),
        name=name,
        subnet=choose_subnet(seed, used_subnets(), holder),
        snapshotter="overlayfs" if _overlay_works(folder) else "native",
        bin_dir=bin_dir,
        shared_chains_were_there=has_shared_chains() and not _another_runs(folder),
        launcher=launcher,
        kind=kind(bin_dir),
    )
    part = folder / "testbed.json.part"
    part.write_text(json.dumps(asdict(testbed), indent=2) + "\n")
    part.replace(folder / "testbed.json")
    return testbed


def _hold(testbed: Testbed) -> None:
    """Claim name and subnet again, for a test bed of an earlier start of the machine. Raises TestbedError."""
    for kind, value in (("name", testbed.name), ("subnet", testbed.subnet)):
        if other := claims.hold(kind, value, claims.folder(Path(testbed.folder))):
            raise TestbedError(
                f"the {kind} {value} of {testbed.folder} is that of {other}: remove one of them (make down)"
            )


def _overlay_works(folder: Path) -> bool:
    """Overlay mounts are refused on some file systems, such as another overlay."""
    trial = folder / "overlay-trial"
    for part in ("lower", "upper", "work", "merged"):
        (trial / part).mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={trial}/lower,upperdir={trial}/upper,workdir={trial}/work"
    command = ["mount", "-t", "overlay", "overlay", "-o", options, str(trial / "merged")]
    works = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0
    host.unmount_below(trial)
    shutil.rmtree(trial)
    return works


def render_config(testbed: Testbed) -> str:
    """The containerd configuration, in the version 2 form that 1.6, 1.7 and 2.x read."""
    root, quoted = testbed.root, json.dumps
    cri_plugin = 'plugins."io.containerd.grpc.v1.cri"'
    handlers = "".join(
        f"""
[{cri_plugin}.containerd.runtimes.{handler}]
runtime_type = "io.containerd.runc.v2"
[{cri_plugin}.containerd.runtimes.{handler}.options]
Root = {quoted(str(testbed.state / "runc"))}
SystemdCgroup = false
"""
        for handler in ("runc", "test-handler")
    )
    return f"""version = 2
root = {quoted(str(root / "root"))}
state = {quoted(str(testbed.state))}
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.blockfile", "io.containerd.internal.v1.opt",
  "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp", "io.containerd.nri.v1.nri",
]
[grpc]
address = {quoted(str(testbed.socket))}
[{cri_plugin}]
sandbox_image = {quoted(images.PAUSE)}
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
tolerate_missing_hugetlb_controller = true
enable_cdi = true
cdi_spec_dirs = [{quoted(str(testbed.devices))}]
[{cri_plugin}.containerd]
snapshotter = {quoted(testbed.snapshotter)}
default_runtime_name = "runc"
{handlers}
[{cri_plugin}.cni]
bin_dir = {quoted(testbed.cni_bin)}
conf_dir = {quoted(str(root / "cni"))}
[{cri_plugin}.registry]
config_path = {quoted(str(testbed.registries))}
"""


def start(testbed: Testbed, timeout_s: float = 60) -> None:
    """Start the runtime if it does not run, and wait until it answers CRI."""
    if testbed.pid() is None:
        for folder in (testbed.root / "root", testbed.state, testbed.registries, testbed.devices):
            folder.mkdir(parents=True, exist_ok=True)
        write_cni_config(testbed.network, testbed.root / "cni", testbed.root / "ipam")
        if testbed.is_docker:
            docker.start_daemon(testbed)
        testbed.socket.unlink(missing_ok=True)
        argv = [*testbed.launcher, *_command(testbed)]
        pid = host.spawn(argv, testbed.log_file, testbed.env, testbed.cgroup)
        (testbed.root / f"{testbed.kind}.pid").write_text(str(pid))

    def settled() -> bool:
        return cri.is_ready(testbed.socket) or testbed.pid() is None

    if not host.wait_until(settled, timeout_s) or testbed.pid() is None:
        raise TestbedError(f"{testbed.kind} does not answer; the end of {testbed.log_file}:\n{_tail(testbed.log_file)}")


def _command(testbed: Testbed) -> list[str]:
    """The command that serves the CRI; writes its configuration."""
    if testbed.is_docker:
        return docker.arguments(testbed)
    program = shutil.which(testbed.kind, path=testbed.env["PATH"])
    if program is None:
        raise TestbedError(f"{testbed.kind} is missing: install the Debian package containerd")
    argv = [program, "--config", str(testbed.config_file), "--log-level", "info"]
    if testbed.is_crio:
        crio.prepare(testbed)
        return [*argv, *crio.flags(testbed)]
    testbed.config_file.write_text(render_config(testbed))
    return argv


def _tail(path: Path, lines: int = 15) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError as error:
        return str(error)


def stop(testbed: Testbed) -> None:
    """End containerd only: shims and containers run on, and `start` finds them again."""
    for pid in _runtime(testbed):
        host.end_process(pid, 10)


def kill(testbed: Testbed) -> None:
    """SIGKILL to containerd only, as a crash would."""
    host.kill_all(_runtime(testbed))


def _runtime(testbed: Testbed) -> list[int]:
    """The processes of the runtime; containers and their shims are not among them."""
    serving = testbed.pid()
    behind = docker.daemons(testbed) if testbed.is_docker else []
    return behind if serving is None else [serving, *behind]


def import_image(testbed: Testbed, name: str, archive: Path) -> None:
    """Import a docker-archive unless the runtime has this very image, and wait until CRI knows it by `name`."""
    with tarfile.open(archive) as tar, tar.extractfile("manifest.json") or contextlib.nullcontext() as member:
        assert member is not None
        image_id = "sha256:" + json.load(member)[0]["Config"].removesuffix(".json")
    if cri.has_image(testbed.socket, name, image_id):
        return
    if testbed.is_crio:
        crio.import_image(testbed, name, archive)
    elif testbed.is_docker:
        docker.load_image(testbed, archive)
    else:
        testbed.ctr("images", "import", "--snapshotter", testbed.snapshotter, "--all-platforms", str(archive))
    found_id = (
        "" if testbed.is_docker else image_id
    )  # images that Docker keeps in containerd have the ID of their manifest
    if not host.wait_until(lambda: cri.has_image(testbed.socket, name, found_id), 60):
        raise TestbedError(f"{archive} was imported, but CRI does not know {name}")


def trust_registry(testbed: Testbed, registry: str, url: str, ca_file: Path | None = None, mirror_of: str = "") -> None:
    """Configure how containerd reaches the registry `registry` (host:port): by `url` (http or https), with its own CA.

    `mirror_of` names another registry host that this one answers for. containerd reads it at the next pull.
    """
    host_name = mirror_of or registry
    if testbed.is_docker:
        return  # Docker reaches registries of the machine itself without a setting, with any certificate
    if testbed.is_crio:
        crio.trust_registry(testbed, host_name, registry)
        return
    folder = testbed.registries / (host_name.replace(":", "_") + "_" if ":" in host_name else host_name)
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"server = {json.dumps(url)}", f"[host.{json.dumps(url)}]", 'capabilities = ["pull", "resolve"]']
    if ca_file is not None:
        lines.append(f"ca = {json.dumps(str(ca_file))}")
    (folder / "hosts.toml").write_text("\n".join(lines) + "\n")


def describe_devices(testbed: Testbed, kind: str, names: Iterable[str]) -> None:
    """Make the CDI devices `<kind>=<name>` known. A container with one has the variable DEVICE with its name."""
    devices = [{"name": name, "containerEdits": {"env": [f"DEVICE={name}"]}} for name in names]
    file = testbed.devices / f"{kind.replace('/', '_')}.json"
    part = file.with_suffix(".part")
    part.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": devices}))
    part.replace(file)


def down(folder: Path, cgroup_roots: Iterable[str] = ()) -> None:
    """Stop everything that `up` and its users made below `folder`, remove it from the machine, and the folder with it.

    `cgroup_roots` are groups of the caller's own in which pods ran. What an earlier `down` left is removed too.
    """
    folder = folder.resolve()
    if not folder.exists():
        for cgroup in cgroup_roots:
            host.remove_cgroup(cgroup)
        return
    with _locked(folder):
        host.kill_all(host.users_of(folder))  # of a test run that was itself ended
        if (testbed := load(folder)) is not None:
            stop(testbed)
            _end_containers(testbed)
        for cgroup in cgroup_roots:
            host.remove_cgroup(cgroup)
        host.unmount_below(folder)
        host.detach_loops(folder)
        if testbed is not None:
            remove_network(testbed.network, not testbed.shared_chains_were_there and not _another_runs(folder))
            host.remove_cgroup(testbed.cgroup)
        for link in host.links_into(folder):
            link.unlink(missing_ok=True)
        shutil.rmtree(folder)


def _end_containers(testbed: Testbed) -> None:
    """Kill all containers, then their shims: without containerd nothing restarts or reports them."""
    if testbed.is_crio:
        crio.end_containers(testbed)
        return
    bundles = testbed.bundles
    shims = [process.pid for process in host.processes() if _is_shim(process, testbed)]
    groups: set[str] = set()
    pids: set[int] = set()
    for bundle in bundles:
        pid = _read_init_pid(bundle)
        process_groups = host.read_cgroups(pid) if pid else set()
        own = {group for group in process_groups if bundle.name in group}
        groups |= own
        if own:  # a reused pid would not be in a group of this container's name
            pids.add(pid)
    for group in groups:
        pids |= host.cgroup_pids(group)
    host.kill_all(pids)
    host.kill_all(shims)
    for group in groups:
        host.remove_cgroup(group)
    for bundle in bundles:
        _remove_shim_socket(bundle)


def _is_shim(process: host.Process, testbed: Testbed) -> bool:
    argv = process.argv
    return bool(argv) and "containerd-shim" in os.path.basename(argv[0]) and str(testbed.shim_address) in argv


def _read_init_pid(bundle: Path) -> int:
    try:
        return int((bundle / "init.pid").read_text())
    except (OSError, ValueError):
        return 0


def _remove_shim_socket(bundle: Path) -> None:
    """A killed shim leaves its socket behind; the bundle names it, in a file of its own (1.x) or among JSON (2.x)."""
    for name in ("address", "bootstrap.json"):
        try:
            content = (bundle / name).read_text()
        except OSError:
            continue
        for path in re.findall(r"/run/containerd/s/[0-9a-f]{64}", content):
            Path(path).unlink(missing_ok=True)


def _another_runs(folder: Path) -> bool:
    """Whether a testbed of another folder is alive, which may be about to use the shared chains."""
    return any(
        argument.endswith(("/containerd/containerd.toml", "/crio/crio.toml", "/docker/docker.sock"))
        and not argument.startswith(f"{folder}/")
        for process in host.processes()
        for argument in process.argv
    )
