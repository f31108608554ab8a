"""Writes that access refuses, by kind."""

from __future__ import annotations

import pytest
from local_api.access.objects import Objects, bound, rbac, rule, thing, user
from local_api.access.test_signing import AUTHORITY, asked

from pykubelet.base.manifests.validation.errors import Errors
from pykubelet_local_api.access.admission import admit_write
from pykubelet_local_api.access.bootstrap import bootstrap_objects
from pykubelet_local_api.access.signing import sign
from pykubelet_local_api.access.usages import CLIENT, KUBELET_CLIENT
from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.kinds.table import BY_TYPE
from pykubelet_local_api.objects import Json, copied
from pykubelet_local_api.strategies.strategy import Context
from pykubelet_local_api.strategies.table import strategy_of
from pykubelet_local_api.view import CONTROL, RequestUser

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


def write(new: Json, who: RequestUser, old: Json | None = None, subresource: str = "") -> Errors:
    """The errors of a write as a registry makes it."""
    strategy = strategy_of(BY_TYPE[new["apiVersion"], new["kind"]])
    context = Context(Objects(STRONG, thing("v1", "Namespace", "default")), who, subresource)
    made = copied(new)
    if old is None:
        strategy.prepare_create(made, context)
        return strategy.validate_create(made, context)
    strategy.prepare_update(made, old, context)
    return strategy.validate_update(made, old, context)


def test_every_write_of_these_kinds_is_asked_about() -> None:
    role = rbac("Role", "r", "default", rules=STRONG["rules"])
    binding = bound(STRONG, "User:jane", namespace="default")
    request = asked(CLIENT, ["client auth"])
    approved = request | {"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "r"}]}}
    refused: list[tuple[Json, Json | None, str]] = [
        (role, None, ""), (role, role | {"rules": []}, ""), (binding, None, ""), (binding, binding | {"subjects": []}, ""),
        (asked(CLIENT, ["client auth"], groups=("system:masters",)), None, ""), (approved, request, "approval"),
    ]  # fmt: skip
    for new, old, subresource in refused:
        with pytest.raises(StatusError) as caught:
            write(new, JANE, old, subresource)
        assert caught.value.code == 403, new
    root = user("root", "system:masters")
    for new, old, subresource in refused[:4] + refused[5:]:
        assert write(new, root, old, subresource) == []


def test_the_control_plane_alone_approves_and_signs_at_once() -> None:
    request = asked(KUBELET_CLIENT, ["client auth", "digital signature"])
    signed = sign(request, AUTHORITY, Objects(*bootstrap_objects()))
    assert signed is not None
    assert write(signed, CONTROL, request, "status") == []
    assert [error.detail for error in write(signed, user("root", "system:masters"), request, "status")] == [
        'updates may not add a condition of type "Approved"'
    ]
