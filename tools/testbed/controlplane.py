"""A Kubernetes control plane of our own on loopback: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.

Owns `<folder>/controlplane`: certificates, kubeconfigs, etcd's data, logs, process ids. What is there is kept, so a control
plane that was stopped comes back with its objects, its certificates and its ports. Node authorization and NodeRestriction
are on: a node may do what its own name allows, and no more.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from testbed import certificates, claims, controlplane_flags, controlplane_programs, host
from testbed.controlplane_flags import Ports
from testbed.controlplane_programs import Programs
from testbed.host import TestbedError
from testbed.rest import Client

ETCD, APISERVER, CONTROLLERS, SCHEDULER = "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"
_START_ORDER = (ETCD, APISERVER, CONTROLLERS, SCHEDULER)
_STOP_S = 5.0
#: A program that has ended is found at once; this is for one that runs and is not ready. Some 5 s are usual.
_START_S = 90.0 * host.SLOWNESS
#: Where the API server was away, controllers and scheduler ask again after 0.8 s, doubling to 30 s, and up to twice that.
CONTROLLERS_S = 120.0 * host.SLOWNESS
TOKEN = "abcdef.0123456789abcdef"


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """A control plane that was started in `folder`; written down there, so that later calls find the same one."""

    folder: str
    ports: Ports
    programs: Programs
    audited: bool = False
    controllers_flags: Mapping[str, str] = field(default_factory=dict)
    cgroup: str = ""
    address: str = controlplane_flags.LOOPBACK

    @property
    def root(self) -> Path:
        """Everything of the control plane is below it."""
        return Path(self.folder, "controlplane")

    @property
    def pki(self) -> Path:
        """Keys, certificates, and kubeconfigs."""
        return self.root / "pki"

    @property
    def server(self) -> str:
        """The API server's URL."""
        return f"https://{self.address}:{self.ports.api}"

    @property
    def authority(self) -> Path:
        """The certificate authority of servers and clients."""
        return self.pki / "ca.crt"

    @property
    def admin(self) -> Path:
        """The kubeconfig of one who may do everything."""
        return self.pki / "admin.kubeconfig"

    @property
    def audit_log(self) -> Path:
        """One JSON line for each request, where it was asked for."""
        return self.root / "audit.log"

    def client(self) -> Client:
        """The administrator's requests."""
        return Client(self.server, self.authority, self.pki / "admin.crt", self.pki / "admin.key")

    def pid(self, program: str) -> int | None:
        """The process of one of ETCD, APISERVER, CONTROLLERS, SCHEDULER, or None when it does not run."""
        return _read_pid(self.root, program)

    def log_file(self, program: str) -> Path:
        """The log of the program."""
        return self.root / f"{program}.log"


def load(folder: Path) -> ControlPlane | None:
    """The control plane that `up` made in `folder`, running or not."""
    try:
        data = json.loads((folder.resolve() / "controlplane" / "controlplane.json").read_text())
        return ControlPlane(**data | {"ports": Ports(**data["ports"]), "programs": Programs(**data["programs"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def up(
    folder: Path,
    audited: bool = False,
    controllers_flags: Mapping[str, str] | None = None,
    cgroup: str = "",
    address: str = controlplane_flags.LOOPBACK,
) -> ControlPlane:
    """Make sure that a control plane runs below `folder`; returns it when it is ready to take pods.

    `audited` keeps a log of all requests; `controllers_flags` are laid over those of kube-controller-manager; `cgroup`
    is where the processes run, the caller's to remove; `address` is this machine's where the API server listens, for nodes in
    other network namespaces. The programs are those of the folder's first start, as long as they
    exist. Raises TestbedError with the end of a log.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    plane = load(folder)
    if plane is None or not Path(plane.programs.apiserver).exists():
        ports = plane.ports if plane else Ports(*(host.free_port(0, claims.folder(folder)) for _ in range(5)))
        plane = ControlPlane(str(folder), ports, controlplane_programs.find())
    flags = dict(controllers_flags or {})
    plane = replace(plane, audited=audited, controllers_flags=flags, cgroup=cgroup, address=address)
    plane.root.mkdir(parents=True, exist_ok=True)
    _write_json(plane.root / "controlplane.json", asdict(plane))
    _make_certificates(plane)
    start(plane, ETCD)
    start(plane, APISERVER)
    _allow_bootstrap(plane.client())
    for program, there in ((CONTROLLERS, plane.programs.controllers), (SCHEDULER, plane.programs.scheduler)):
        if there:
            start(plane, program, wait=False)
    wait_namespace(plane, "default")
    return plane


def _write_json(path: Path, document: object) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(document, indent=2) + "\n")
    part.replace(path)


def _make_certificates(plane: ControlPlane) -> None:
    pki = plane.pki
    certificates.make_authority(pki)
    certificates.make_signing_key(pki / "accounts.key")
    first_service = controlplane_flags.SERVICE_RANGE.partition("/")[0].removesuffix("0") + "1"
    names = ["DNS:localhost", "DNS:kubernetes.default.svc", f"IP:{plane.address}", f"IP:{first_service}"]
    certificates.issue(pki, "apiserver", "kube-apiserver", addresses=names)
    certificates.issue(pki, "kubelet-client", "kube-apiserver-kubelet-client", ["system:masters"])
    certificates.issue(pki, "admin", "admin", ["system:masters"])
    _write_client_kubeconfig(plane, plane.admin, pki / "admin")


def _write_client_kubeconfig(plane: ControlPlane, path: Path, pair: Path) -> Path:
    user = {"client-certificate": f"{pair}.crt", "client-key": f"{pair}.key"}
    return certificates.write_kubeconfig(path, plane.server, plane.authority, user)


def node_kubeconfig(plane: ControlPlane, node: str) -> Path:
    """The kubeconfig of the node `node`: system:node:<node> of system:nodes."""
    pair = certificates.issue(plane.pki, f"node-{node}", f"system:node:{node}", ["system:nodes"])
    return _write_client_kubeconfig(plane, plane.pki / f"node-{node}.kubeconfig", pair)


def bootstrap_kubeconfig(plane: ControlPlane) -> Path:
    """A kubeconfig with a bootstrap token: it may ask for a node's client certificate, which is then approved."""
    path = plane.pki / "bootstrap.kubeconfig"
    return certificates.write_kubeconfig(path, plane.server, plane.authority, {"token": TOKEN})


def _allow_bootstrap(api: Client) -> None:
    """What kubeadm sets up: a token for joining nodes, and the approval of their first and later client certificates."""
    identity, _, secret = TOKEN.partition(".")
    data = {"token-id": identity, "token-secret": secret, "usage-bootstrap-authentication": "true"}
    api.make(
        "/api/v1/namespaces/kube-system/secrets",
        {
            "metadata": {"name": f"bootstrap-token-{identity}"},
            "type": "bootstrap.kubernetes.io/token",
            "stringData": data,
        },
    )
    signing = "system:certificates.k8s.io:certificatesigningrequests"
    for name, role, group in (
        ("testbed:bootstrap", "system:node-bootstrapper", "system:bootstrappers"),
        ("testbed:first-certificates", f"{signing}:nodeclient", "system:bootstrappers"),
        ("testbed:later-certificates", f"{signing}:selfnodeclient", "system:nodes"),
    ):
        binding = {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}],
        }
        api.make("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)


def wait_namespace(plane: ControlPlane, namespace: str, timeout_s: float = CONTROLLERS_S) -> None:
    """Until pods can be made in a namespace: it has its account and its authority's certificate.

    Without kube-controller-manager they are made here.
    """
    api, path = plane.client(), f"/api/v1/namespaces/{namespace}"
    if not plane.programs.controllers:
        host.wait_until(lambda: api.get(path) is not None, timeout_s)
        api.make(f"{path}/serviceaccounts", {"metadata": {"name": "default"}})
        certificate = {"ca.crt": plane.authority.read_text()}
        api.make(f"{path}/configmaps", {"metadata": {"name": "kube-root-ca.crt"}, "data": certificate})

    def is_complete() -> bool:
        account = api.get(f"{path}/serviceaccounts/default")
        return account is not None and api.get(f"{path}/configmaps/kube-root-ca.crt") is not None

    if not host.wait_until(is_complete, timeout_s):
        raise TestbedError(
            f"no account in the namespace {namespace} after {timeout_s:.0f} s; "
            f"the end of {plane.log_file(CONTROLLERS)}:\n{_tail(plane.log_file(CONTROLLERS))}"
        )


# Processes


def start(plane: ControlPlane, program: str, wait: bool = True) -> None:
    """Start one of the programs unless it runs, and wait until it is ready."""
    if plane.pid(program) is None:
        argv = _command(plane, program)
        for port in _ports(plane.ports, program):
            host.wait_port_free(port, program)
        env = {key: value for key, value in os.environ.items() if key in ("HOME", "LANG", "PATH")}
        env["GOMAXPROCS"] = str(os.cpu_count() or 1)
        pid = host.spawn(argv, plane.log_file(program), env, plane.cgroup or None)
        (plane.root / f"{program}.pid").write_text(str(pid))
    if wait:
        wait_ready(plane, program)


def _ports(ports: Ports, program: str) -> tuple[int, ...]:
    match program:
        case "etcd":
            return ports.etcd, ports.etcd_peer
        case "kube-apiserver":
            return (ports.api,)
        case "kube-controller-manager":
            return (ports.controllers,)
        case _:
            return (ports.scheduler,)


def wait_ready(plane: ControlPlane, program: str) -> None:
    """Wait until it reports that it is ready. Raises TestbedError with the end of its log."""

    def settled() -> bool:
        return plane.pid(program) is None or is_ready(plane, program)

    if not host.wait_until(settled, _START_S) or plane.pid(program) is None:
        log = plane.log_file(program)
        raise TestbedError(f"{program} does not come up; the end of {log}:\n{_tail(log)}")


def is_ready(plane: ControlPlane, program: str) -> bool:
    """Whether the program itself reports that it is ready."""
    match program:
        case "etcd":
            return _answers(http.client.HTTPConnection("127.0.0.1", plane.ports.etcd, timeout=2), "/health")
        case "kube-apiserver":
            return plane.client().is_ready()
        case _:
            port = plane.ports.controllers if program == CONTROLLERS else plane.ports.scheduler
            # its certificate is of its own making, and all that it reports here is its health
            trusting = ssl._create_unverified_context()
            return _answers(http.client.HTTPSConnection("127.0.0.1", port, timeout=2, context=trusting), "/healthz")


def _answers(connection: http.client.HTTPConnection, path: str) -> bool:
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _command(plane: ControlPlane, program: str) -> list[str]:
    programs, ports, pki = plane.programs, plane.ports, plane.pki
    match program:
        case "etcd":
            return [programs.etcd, *controlplane_flags.etcd_flags(plane.root / "etcd", ports)]
        case "kube-apiserver":
            audit = None
            if plane.audited:
                audit = (plane.root / "audit-policy.json", plane.audit_log)
                _write_json(audit[0], controlplane_flags.audit_policy())
            return [
                programs.apiserver,
                *controlplane_flags.apiserver_flags(programs.minor, pki, ports, audit, plane.address),
            ]
        case "kube-controller-manager":
            extra = plane.controllers_flags
            flags = controlplane_flags.controllers_flags(programs.minor, pki, ports, plane.admin, extra)
            return [programs.controllers, *flags]
        case _:
            return [programs.scheduler, *controlplane_flags.scheduler_flags(programs.minor, ports, plane.admin)]


def _read_pid(root: Path, program: str) -> int | None:
    try:
        pid = int((root / f"{program}.pid").read_text())
    except (OSError, ValueError):
        return None
    process = host.read_process(pid)
    return pid if process is not None and any(str(root) in argument for argument in process.argv) else None


def stop(folder: Path, programs: Iterable[str] = _START_ORDER) -> None:
    """End the control plane below `folder`, or some of its programs; objects, certificates and ports stay."""
    root = folder.resolve() / "controlplane"
    for program in sorted(programs, key=_START_ORDER.index, reverse=True):
        if (pid := _read_pid(root, program)) is not None:
            host.end_process(pid, _STOP_S)


def kill(plane: ControlPlane, program: str) -> None:
    """SIGKILL to one of the programs, as a crash would."""
    if (pid := plane.pid(program)) is not None:
        host.kill_all([pid])


def down(folder: Path) -> None:
    """End the control plane below `folder` and forget it."""
    stop(folder)
    shutil.rmtree(folder.resolve() / "controlplane", ignore_errors=True)


def _tail(path: Path, lines: int = 15) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError as error:
        return str(error)
