"""Which programs a control plane is made of, with which flags; the real ones are in tests/cluster."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from testbed import certificates, controlplane_build, controlplane_flags, controlplane_programs
from testbed.controlplane_flags import Ports
from testbed.host import TestbedError

PORTS = Ports(api=1, etcd=2, etcd_peer=3, controllers=4, scheduler=5)


def put_program(folder: Path, name: str, message: str = "") -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{message}'\n")
    path.chmod(0o755)
    return path


def test_a_folder_of_programs_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("etcd", "kubectl", "kube-controller-manager"):
        put_program(tmp_path, name)
    apiserver = put_program(tmp_path, "kube-apiserver", "Kubernetes v1.36.2+more")
    monkeypatch.setenv(controlplane_programs.VARIABLE, str(tmp_path))
    found = controlplane_programs.find()
    assert (found.apiserver, found.minor) == (str(apiserver), 36)
    assert (found.controllers, found.scheduler) == (str(tmp_path / "kube-controller-manager"), "")


def test_a_folder_without_an_api_server_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(controlplane_programs.VARIABLE, str(tmp_path))
    with pytest.raises(TestbedError, match="no kube-apiserver in"):
        controlplane_programs.find()


def test_what_was_built_is_not_built_again(tmp_path: Path) -> None:
    assert controlplane_build.ensure(tmp_path) == tmp_path


@pytest.mark.parametrize(("minor", "expected"), [(20, True), (23, True), (24, False), (36, False)])
def test_the_insecure_ports_are_closed_where_there_are_some(minor: int, expected: bool) -> None:
    kubeconfig = Path("/admin")
    controllers = controlplane_flags.controllers_flags(minor, Path("/pki"), PORTS, kubeconfig, {})
    scheduler = controlplane_flags.scheduler_flags(minor, PORTS, kubeconfig)
    assert ("--port=0" in controllers, "--port=0" in scheduler) == (expected, expected)


@pytest.mark.parametrize("minor", [20, 36])
def test_nodes_are_held_to_their_own(minor: int) -> None:
    flags = controlplane_flags.apiserver_flags(minor, Path("/pki"), PORTS, None)
    assert {"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"} <= set(flags)


def test_flags_of_the_caller_win() -> None:
    extra = {"cluster-signing-duration": "1m", "leader-elect": "true"}
    flags = controlplane_flags.controllers_flags(36, Path("/pki"), PORTS, Path("/admin"), extra)
    assert "--cluster-signing-duration=1m" in flags
    assert "--leader-elect=false" not in flags


def test_certificates_hold_before_a_strict_judge_and_are_kept(tmp_path: Path) -> None:
    authority = certificates.make_authority(tmp_path)
    pair = certificates.issue(tmp_path, "apiserver", "kube-apiserver", ["a:b"], ["DNS:localhost", "IP:127.0.0.1"])
    verify = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-verify_ip", "127.0.0.1", "-CAfile"]
    subprocess.run([*verify, str(authority), f"{pair}.crt"], capture_output=True, check=True)
    before = [path.read_bytes() for path in (authority, Path(f"{pair}.crt"))]
    certificates.make_authority(tmp_path)
    certificates.issue(tmp_path, "apiserver", "kube-apiserver", ["a:b"], ["DNS:localhost", "IP:127.0.0.1"])
    assert [path.read_bytes() for path in (authority, Path(f"{pair}.crt"))] == before
    assert Path(f"{pair}.key").stat().st_mode & 0o077 == 0
