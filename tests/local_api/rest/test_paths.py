"""What the paths of requests name."""

from __future__ import annotations

import pytest

from pykubelet_local_api.rest.paths import parse_target


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/api/v1/pods", ("pods", "", "", "", "")),
        ("/api/v1/namespaces/a/pods", ("pods", "a", "", "", "")),
        ("/api/v1/namespaces/a/pods/b", ("pods", "a", "b", "", "")),
        ("/api/v1/namespaces/a/pods/b/status", ("pods", "a", "b", "status", "")),
        ("/api/v1/namespaces/a/pods/b:80/proxy/x/y", ("pods", "a", "b:80", "proxy", "x/y")),
        ("/api/v1/namespaces/a/pods/b/proxy/", ("pods", "a", "b", "proxy", "")),
        ("/api/v1/namespaces", ("namespaces", "", "", "", "")),
        ("/api/v1/namespaces/a", ("namespaces", "", "a", "", "")),
        ("/api/v1/namespaces/a/finalize", ("namespaces", "", "a", "finalize", "")),
        ("/api/v1/nodes/n/proxy/metrics", ("nodes", "", "n", "proxy", "metrics")),
        ("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n", ("leases", "kube-node-lease", "n", "", "")),
    ],
)  # fmt: skip
def test_a_path_names(path: str, named: tuple[str, ...]) -> None:
    found = parse_target(path)
    assert found is not None
    assert (found.kind.plural, found.namespace, found.name, found.subresource, found.rest) == named


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/api",
        "/api/v1",
        "/api/v1/",
        "/api/v2/pods",
        "/api/v1/deployments",
        "/apis/apps/v1/deployments",
        "/apis//v1/pods",
        "/api/v1/namespaces//pods",
        "/api/v1/namespaces/a/nodes/n",
        "/api/v1/namespaces/a/pods/b/unknown",
        "/api/v1/namespaces/a/pods/b/status/more",
        "/api/v1/pods//status",
    ],
)
def test_other_paths_name_nothing(path: str) -> None:
    assert parse_target(path) is None
