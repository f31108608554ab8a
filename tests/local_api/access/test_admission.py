"""Writes that access refuses, by kind."""

from __future__ import annotations

import pytest
from local_api.access.objects import Objects, bound, rbac, rule, user
from local_api.access.test_signing import asked

from pykubelet_local_api.access.admission import admit_write
from pykubelet_local_api.access.signing import CLIENT
from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.kinds.table import BY_TYPE
from pykubelet_local_api.objects import Json

JANE = user("jane")
STRONG = rbac("ClusterRole", "strong", rules=[rule("get", "secrets")])
CONFIG_MAP: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "default"}}


def admit(new: Json, old: Json | None = None, subresource: str = "") -> None:
    admit_write(BY_TYPE[new["apiVersion"], new["kind"]], new, old, subresource, JANE, Objects(STRONG))


@pytest.mark.parametrize(
    ("new", "old", "subresource"),
    [
        (STRONG, None, ""),
        (rbac("Role", "r", "default", rules=STRONG["rules"]), rbac("Role", "r", "default"), ""),
        (bound(STRONG, "User:jane"), None, ""),
        (bound(STRONG, "User:jane", namespace="default"), bound(STRONG, "User:x", namespace="default"), ""),
        (asked(CLIENT, ["client auth"], groups=("system:masters",)), None, ""),
        (asked(CLIENT, ["client auth"]), asked(CLIENT, ["client auth"]), "approval"),
    ],
)
def test_what_gives_more_than_its_writer_has_is_refused(new: Json, old: Json | None, subresource: str) -> None:
    with pytest.raises(StatusError) as caught:
        admit(new, old, subresource)
    assert caught.value.code == 403


def test_anything_else_passes() -> None:
    admit(CONFIG_MAP)
    admit(rbac("Role", "r", "default", rules=[]))
    admit(asked(CLIENT, ["client auth"]))
    request = asked(CLIENT, ["client auth"])
    admit(request, request, "status")
