"""Paths of the program's own requests."""

from __future__ import annotations

import pytest

from pykubelet_local_api.client import object_path
from pykubelet_local_api.kinds.table import STORED


@pytest.mark.parametrize(
    ("resource", "name", "expected"),
    [
        ("configmaps", "a.b", "/api/v1/namespaces/ns/configmaps/a.b"),
        ("configmaps", "a?force=false&b", "/api/v1/namespaces/ns/configmaps/a%3Fforce%3Dfalse%26b"),
        ("configmaps", "a b#c", "/api/v1/namespaces/ns/configmaps/a%20b%23c"),
        (
            "clusterroles.rbac.authorization.k8s.io",
            "system:x",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:x",
        ),
    ],
)
def test_a_name_is_no_part_of_the_query(resource: str, name: str, expected: str) -> None:
    assert object_path(STORED[resource], "ns", name) == expected
