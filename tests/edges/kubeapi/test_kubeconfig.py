from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from pykubelet.edges.kubeapi.kubeconfig import ClusterAccess, ExecPlugin, KubeconfigError, Pem, load_access

CA = b"-----BEGIN CERTIFICATE-----\nA\n"


Entry = dict[str, Any]


def write(folder: Path, cluster: Entry | None = None, user: Entry | None = None, **top: Any) -> str:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "k", "cluster": {"server": "https://10.0.0.1:6443/", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "n"}}],
        "current-context": "c",
        **top,
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return str(path)


def test_paths_count_from_the_file_and_data_goes_first(tmp_path: Path) -> None:
    data = base64.b64encode(CA).decode()
    user = {"client-certificate": "pki/c.pem", "client-key": "/abs/k.pem", "tokenFile": "../token"}
    access = load_access(write(tmp_path, {"certificate-authority": "x", "certificate-authority-data": data}, user))
    assert access == ClusterAccess(
        server="https://10.0.0.1:6443",
        ca=Pem(data=CA),
        client_cert=Pem(f"{tmp_path}/pki/c.pem"),
        client_key=Pem("/abs/k.pem"),
        token_file=f"{tmp_path.parent}/token",
        origin=f"{tmp_path}/kubeconfig",
    )


def test_the_ways_of_the_connection(tmp_path: Path) -> None:
    cluster = {"insecure-skip-tls-verify": True, "tls-server-name": "api", "proxy-url": "http://proxy:3128"}
    access = load_access(write(tmp_path, cluster, {"token": "t", "as": "boss", "as-groups": ["g", "h"]}))
    assert access.insecure and access.server_name == "api" and access.proxy == "http://proxy:3128"
    assert access.token == "t"
    assert access.headers == (("Impersonate-User", "boss"), ("Impersonate-Group", "g"), ("Impersonate-Group", "h"))
    assert "'t'" not in repr(access)


def test_a_plugin_and_its_cluster_info(tmp_path: Path) -> None:
    spec = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "./bin/plugin",
        "args": ["a"],
        "env": [{"name": "K", "value": "v"}],
        "provideClusterInfo": True,
        "interactiveMode": "Never",
    }
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
    (tmp_path / "ca.pem").write_bytes(CA)
    cluster = {"certificate-authority": "ca.pem", "extensions": [extension]}
    assert load_access(write(tmp_path, cluster, {"exec": spec})).plugin == ExecPlugin(
        command=f"{tmp_path}/bin/plugin",
        args=("a",),
        env=(("K", "v"),),
        api_version="client.authentication.k8s.io/v1beta1",
        cluster={
            "server": "https://10.0.0.1:6443/",
            "certificate-authority-data": base64.b64encode(CA).decode(),
            "config": {"audience": "x"},
        },
    )


@pytest.mark.parametrize(
    ("cluster", "user", "top", "complaint"),
    [
        ({}, {}, {"current-context": ""}, "current-context: is missing; name the context to use"),
        ({}, {}, {"current-context": "z"}, 'current-context: context "z" does not exist'),
        ({}, {}, {"clusters": []}, 'contexts[c].cluster: cluster "k" does not exist'),
        ({}, {}, {"users": []}, 'contexts[c].user: user "u" does not exist'),
        ({}, {}, {"kind": "Secret"}, "kind: expected Config of v1, got Secret of v1"),
        ({"server": ""}, {}, {}, "clusters[k].server: is missing"),
        ({"server": "ftp://x"}, {}, {}, 'clusters[k].server: "ftp://x" is no http or https URL'),
        ({"certificate-authority-data": "%"}, {}, {}, "clusters[k].certificate-authority-data: is not base64"),
        ({"proxy-url": "ftp://p"}, {}, {}, "clusters[k].proxy-url: only http, https and socks5 proxies can be used"),
        ({}, {"client-key": "k"}, {}, "users[u].client-certificate: a client certificate and its key belong together"),
        ({}, {"auth-provider": {"name": "gcp"}}, {}, "users[u].auth-provider: is no longer supported; use exec"),
        ({}, {"username": "u", "token": "t"}, {}, "users[u]: more than one authentication method: token and username"),
        ({}, {"exec": {"command": "x"}}, {}, "users[u].exec.apiVersion: must be client.authentication.k8s.io/v1 or"),
        ({}, {"token": ["t"]}, {}, "users[0].user.token: expected string, got list"),
        (
            {"certificate-authority": "x", "insecure-skip-tls-verify": True},
            {},
            {},
            "specifying a root certificates file with the insecure flag is not allowed",
        ),
    ],
)
def test_errors_name_the_field(tmp_path: Path, cluster: Entry, user: Entry, top: Entry, complaint: str) -> None:
    with pytest.raises(KubeconfigError) as caught:
        load_access(write(tmp_path, cluster, user, **top))
    assert complaint in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}/kubeconfig: ")


def test_unknown_and_duplicate_fields_do_not_matter(tmp_path: Path) -> None:
    """As for the kubelet; the last value counts."""
    path = write(tmp_path, {"nope": 1}, {"token": "old"}, foo={})
    with open(path, "a") as file:
        file.write("users: [{name: u, user: {token: new}}]\n---\nmore: 1\n")
    assert load_access(path).token == "new"


@pytest.mark.parametrize("text", ["", "a: b: c", "[]", "\xff"])
def test_a_file_that_is_no_kubeconfig(tmp_path: Path, text: str) -> None:
    path = tmp_path / "k"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(KubeconfigError):
        load_access(str(path))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match="no such file"):
        load_access(str(tmp_path / "none"))
