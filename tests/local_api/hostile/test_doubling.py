"""What costs time grows at most as fast as what a client sends: eight times as much takes less than 28 times as long.

Work that grows with the square takes 64 times as long. Times are CPU times, the least of some runs. The limit is that far above eight
because other programs leave little of the processor's cache to the larger work: linear work has taken ten times as long for four times as
much.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count

import pytest
from local_api.access.objects import Objects, rbac, rule, thing, user
from support.cost import no_collections

from pykubelet_local_api.access.covers import missing_rights
from pykubelet_local_api.access.rbac import AccessAttributes, authorize_by_roles, rules_of
from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.kinds.schema import schema_of
from pykubelet_local_api.kinds.table import STORED
from pykubelet_local_api.objects import Json
from pykubelet_local_api.patch.json_patch import json_patch, merge_patch
from pykubelet_local_api.patch.managed import apply, record_update
from pykubelet_local_api.patch.strategic import strategic_patch
from pykubelet_local_api.reconcile.garbage import garbage
from pykubelet_local_api.rest.selectors import read_selectors

SMALL, TIMES, MOST = 500, 8, 28.0
RUNS = 3
TRIES = 10
PODS, MAPS = STORED["pods"], STORED["configmaps"]
POD = schema_of(PODS.definition)
NOW = 1_800_000_000.0
Work = Callable[[], object]


def containers(number: int) -> list[Json]:
    return [{"name": f"c{index}", "image": "i", "env": [{"name": "A", "value": "b"}]} for index in range(number)]


def pod(number: int) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": containers(number)}}


def config_map(number: int, value: str = "x") -> Json:
    data = {f"k{index}": value for index in range(number)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "uid": "u"}, "data": data}


def merged_lists(number: int) -> Work:
    order = [{"name": found["name"]} for found in reversed(containers(number))]
    patch = {"spec": {"containers": containers(number)[::-1], "$setElementOrder/containers": order}}
    return lambda: strategic_patch(pod(number), patch, POD)


def deleted_elements(number: int) -> Work:
    gone = [{"name": found["name"], "$patch": "delete"} for found in containers(number)]
    return lambda: strategic_patch(pod(number), {"spec": {"containers": gone}}, POD)


def scalars(number: int) -> Work:
    names = [f"a/{index}" for index in range(number)]
    old = {"metadata": {"finalizers": names}}
    patch = {"metadata": {"finalizers": names[::-1], "$deleteFromPrimitiveList/finalizers": names[::2]}}
    return lambda: strategic_patch(old, patch, POD)


def operations(name: str) -> Callable[[int], Work]:
    def of(number: int) -> Work:
        old, paths = config_map(number), [f"/data/k{index}" for index in range(number)]
        made: dict[str, Callable[[str], Json]] = {
            "test": lambda path: {"op": "test", "path": path, "value": "x"},
            "copy": lambda path: {"op": "copy", "from": "/data/k0", "path": path},
            "move": lambda path: {"op": "move", "from": path, "path": path + "m"},
            "add": lambda path: {"op": "add", "path": path, "value": {"a": "b"}},
            "remove": lambda path: {"op": "remove", "path": path},
        }
        listed = [made[name](path) for path in paths]
        return lambda: json_patch(old, listed)

    return of


def merge(number: int) -> Work:
    return lambda: merge_patch(config_map(number), config_map(number, "y"))


def applied(number: int) -> Work:
    def work() -> object:
        first = apply(MAPS, None, config_map(number), "a", NOW, False)
        return apply(MAPS, first, config_map(number, "y"), "b", NOW, True)

    return work


def applied_containers(number: int) -> Work:
    return lambda: apply(PODS, None, pod(number), "a", NOW, False)


def managers(number: int) -> Work:
    """One more apply to an object that has many managers."""

    def body(manager: int) -> Json:
        return {**config_map(0), "data": {f"k{manager}": "x"}}

    found: Json | None = None
    for manager in range(number // 20):
        found = apply(MAPS, found, body(manager), f"m{manager}", NOW, False)
    return lambda: apply(MAPS, found, body(number), "another", NOW, False)


def recorded(number: int) -> Work:
    return lambda: record_update(MAPS, config_map(number), config_map(number, "y"), "m", NOW, "")


def label_selector(number: int) -> Work:
    text = ",".join(f"a{index % 900}!=b" for index in range(min(number, 900))) + " " * number
    return lambda: read_selectors(MAPS, text, "")


def set_selector(number: int) -> Work:
    values = ",".join(f"v{index}" for index in range(number))
    return lambda: read_selectors(MAPS, f"a in ({values})", "")


def filtered(number: int) -> Work:
    wants = read_selectors(MAPS, "a!=b,c in (d,e)", "metadata.name!=x")
    found = [thing("v1", "ConfigMap", f"m{index}", "n", metadata={"labels": {"c": "d"}}) for index in range(number)]
    return lambda: sum(map(wants, found))


def rules(number: int) -> Work:
    listed = [rule("get", f"r{index}") for index in range(number)]
    versions = count()

    def work() -> object:
        role = rbac("Role", "r", "n", rules=listed, metadata={"resourceVersion": str(next(versions))})
        view = Objects(role, rbac("RoleBinding", "r", "n", roleRef={"kind": "Role", "name": "r"}, subjects=JANE))
        return authorize_by_roles(AccessAttributes(user("jane"), "list", "", "x", namespace="n"), view)

    return work


JANE = [{"kind": "User", "name": "jane"}]


def bindings(number: int) -> Work:
    found = [
        rbac("RoleBinding", f"b{index}", "n", roleRef={"kind": "Role", "name": "r"}, subjects=JANE)
        for index in range(number)
    ]
    return lambda: authorize_by_roles(AccessAttributes(user("jane"), "list", "", "x", namespace="n"), Objects(*found))


def rights(number: int) -> Work:
    """A right that is given by a user with many rules."""
    held = rules_of({"rules": [rule("get", f"r{index}") for index in range(number * 4)]})
    given = rules_of({"rules": [rule("get", "r1"), rule("get", "x")]})
    return lambda: missing_rights(given, held)


def owner(name: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": f"{name}-uid", "blockOwnerDeletion": True}


def chain(number: int) -> Work:
    """Each is owned by the one before, and all are deleted in the foreground."""
    going = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["foregroundDeletion"]}
    found = [
        thing("v1", "ConfigMap", f"m{index}", "n", metadata={**going, "ownerReferences": [owner(f"m{index - 1}")]})
        for index in range(number)
    ]
    view = Objects(*found)
    return lambda: garbage().reconcile(view)


def owners(number: int) -> Work:
    """One that is owned by many, half of them gone."""
    found = [thing("v1", "ConfigMap", f"m{index}", "n") for index in range(0, number, 2)]
    references = [owner(f"m{index}") for index in range(number)]
    view = Objects(*found, thing("v1", "ConfigMap", "owned", "n", metadata={"ownerReferences": references}))
    return lambda: garbage().reconcile(view)


def owned(number: int) -> Work:
    """Many that are owned by one, which waits for them."""
    going = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["orphan"]}
    found = [
        thing("v1", "ConfigMap", f"m{index}", "n", metadata={"ownerReferences": [owner("o")]})
        for index in range(number)
    ]
    view = Objects(*found, thing("v1", "ConfigMap", "o", "n", metadata=going))
    return lambda: garbage().reconcile(view)


WORK: dict[str, Callable[[int], Work]] = {
    "lists that are merged by their keys": merged_lists,
    "elements that are deleted from a list": deleted_elements,
    "texts that are merged and deleted": scalars,
    **{f"operations of a JSON patch: {name}": operations(name) for name in ("test", "copy", "move", "add", "remove")},
    "a merge patch": merge,
    "an apply of many fields over those of another manager": applied,
    "an apply of many elements": applied_containers,
    "many managers": managers,
    "a record of many fields": recorded,
    "the requirements of a selector": label_selector,
    "the values of a selector": set_selector,
    "objects that a selector is compared with": filtered,
    "the rules of a role": rules,
    "the bindings of a user": bindings,
    "the rules of a user who gives a right": rights,
    "a chain of owners": chain,
    "the owners of an object": owners,
    "the objects of an owner": owned,
}


@pytest.mark.parametrize("name", WORK)
def test_the_cost_grows_no_faster_than_the_input(name: str) -> None:
    check_growth(WORK[name])


def check_growth(work_on: Callable[[int], Work]) -> None:
    """AssertionError if `TIMES` as much costs more than `MOST` times as long."""

    def seconds(number: int) -> float:
        work = work_on(number)
        return min(_timed(work) for _ in range(RUNS))

    small, large = float("inf"), float("inf")
    with no_collections():
        for _ in range(TRIES):  # other programs may leave little of the processor's cache to the larger one
            small, large = min(small, seconds(SMALL)), min(large, seconds(SMALL * TIMES))
            if large <= MOST * small:
                break
    assert large <= MOST * max(small, 0.00005), (
        f"{small * 1000:.1f} ms, and {large * 1000:.1f} ms for {TIMES} times as much"
    )


def _timed(work: Work) -> float:
    began = time.thread_time()
    try:
        work()
    except StatusError as error:
        assert error.code < 500, error.message
    return time.thread_time() - began
