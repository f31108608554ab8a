"""The command lines of a control plane on loopback. Pure: what differs between Kubernetes versions is decided here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LOOPBACK = "127.0.0.1"
SERVICE_RANGE = "10.96.0.0/16"
# The API server is reachable on loopback only, which an Endpoints object cannot name; this one is for documentation
_ADVERTISED = "192.0.2.1"
_LAST_WITH_INSECURE_PORTS = 23
_FIRST_WITH_BOUND_TOKENS = 21
_FIRST_WITH_TRUST_BUNDLES = 33
#: The first with stub requests, which older ones refuse.
FIRST_WITH_POD_CERTIFICATES = 36


@dataclass(frozen=True, slots=True)
class Ports:
    """All on loopback, except the API server's in a control plane with an address of its own."""

    api: int
    etcd: int
    etcd_peer: int
    controllers: int
    scheduler: int


def etcd_flags(folder: Path, ports: Ports) -> list[str]:
    """`folder` is etcd's own."""
    client, peer = f"http://127.0.0.1:{ports.etcd}", f"http://127.0.0.1:{ports.etcd_peer}"
    values = {
        "name": "testbed",
        "data-dir": folder,
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"testbed={peer}",
        "log-level": "warn",
        "logger": "zap",
    }
    # nothing here is worth a wait for the disk
    return [*_flags(values), "--unsafe-no-fsync"]


def apiserver_flags(
    minor: int, pki: Path, ports: Ports, audit: tuple[Path, Path] | None, address: str = LOOPBACK
) -> list[str]:
    """`pki` has the certificates; `audit` is the policy file and the log, where one is kept; at `address` it listens."""
    values: dict[str, object] = {
        "etcd-servers": f"http://127.0.0.1:{ports.etcd}",
        "bind-address": address,
        "secure-port": ports.api,
        "advertise-address": _ADVERTISED if address == LOOPBACK else address,
        "endpoint-reconciler-type": "none",
        "service-cluster-ip-range": SERVICE_RANGE,
        "cert-dir": pki,
        "tls-cert-file": pki / "apiserver.crt",
        "tls-private-key-file": pki / "apiserver.key",
        "client-ca-file": pki / "ca.crt",
        "kubelet-client-certificate": pki / "kubelet-client.crt",
        "kubelet-client-key": pki / "kubelet-client.key",
        "kubelet-preferred-address-types": "InternalIP,Hostname",
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "enable-bootstrap-token-auth": "true",
        "allow-privileged": "true",
        "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
        "service-account-key-file": pki / "accounts.key.pub",
        "service-account-signing-key-file": pki / "accounts.key",
    }
    if minor < _FIRST_WITH_BOUND_TOKENS:
        values["feature-gates"] = "BoundServiceAccountTokenVolume=true"
    if minor >= _FIRST_WITH_TRUST_BUNDLES:
        gates = "ClusterTrustBundle=true,ClusterTrustBundleProjection=true"
        with_certificates = minor >= FIRST_WITH_POD_CERTIFICATES
        values["feature-gates"] = f"{gates},PodCertificateRequest=true" if with_certificates else gates
        values["runtime-config"] = "certificates.k8s.io/v1beta1=true"
    if audit is not None:
        values |= {"audit-policy-file": audit[0], "audit-log-path": audit[1]}
    return _flags(values)


def controllers_flags(minor: int, pki: Path, ports: Ports, kubeconfig: Path, extra: Mapping[str, str]) -> list[str]:
    """kube-controller-manager; `extra` flags win."""
    values: dict[str, object] = {
        **_common(minor, ports.controllers, kubeconfig),
        "cert-dir": pki,
        "use-service-account-credentials": "true",
        "service-account-private-key-file": pki / "accounts.key",
        "root-ca-file": pki / "ca.crt",
        "cluster-signing-cert-file": pki / "ca.crt",
        "cluster-signing-key-file": pki / "ca.key",
        "controllers": "*,bootstrapsigner,tokencleaner",
        # the tests make a hundred pods at once
        "kube-api-qps": "200",
        "kube-api-burst": "400",
    }
    if minor < _FIRST_WITH_BOUND_TOKENS:
        values["feature-gates"] = "BoundServiceAccountTokenVolume=true"
    return _flags({**values, **extra})


def scheduler_flags(minor: int, ports: Ports, kubeconfig: Path) -> list[str]:
    """kube-scheduler."""
    return _flags(_common(minor, ports.scheduler, kubeconfig))


def _common(minor: int, port: int, kubeconfig: Path) -> dict[str, object]:
    values: dict[str, object] = {
        "kubeconfig": kubeconfig,
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
        "bind-address": "127.0.0.1",
        "secure-port": port,
        "leader-elect": "false",
    }
    if minor <= _LAST_WITH_INSECURE_PORTS:
        values["port"] = 0  # a second port, in the clear, at a number that another control plane may have
    return values


def _flags(values: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items()]


def audit_policy() -> Mapping[str, object]:
    """Every request once, as it is answered, without bodies (JSON is YAML)."""
    rules: Sequence[object] = [{"level": "Metadata"}]
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": rules,
    }
