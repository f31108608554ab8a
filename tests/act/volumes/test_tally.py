"""What `/metrics` tells about work on volumes."""

from __future__ import annotations

from pykubelet.act.volumes.model import CONFIG_MAP, EmptyDirPlan, HostPathPlan, PayloadPlan, Result, SetUp, TearDown
from pykubelet.act.volumes.tally import OPERATIONS, count_operation, plugin_of
from pykubelet.base.model.ids import PodUID

UID = PodUID("uid-1")


def set_up(plan: EmptyDirPlan | HostPathPlan | PayloadPlan) -> SetUp:
    return SetUp(UID, "v", plan, "wanted")


def test_plugins_by_their_names() -> None:
    assert plugin_of(set_up(EmptyDirPlan("/p", "/m", ""))) == "kubernetes.io/empty-dir"
    assert plugin_of(set_up(HostPathPlan("/p", ""))) == "kubernetes.io/host-path"
    assert plugin_of(TearDown(UID, "v", CONFIG_MAP, "v", "over")) == "kubernetes.io/configmap"
    payload = PayloadPlan("secret", "/pods/u/volumes/kubernetes.io~secret/v", ())
    assert plugin_of(set_up(payload)) == "kubernetes.io/secret"


def test_operations_by_their_ends() -> None:
    done = ("kubernetes.io/empty-dir", "volume_mount", "success", "false")
    failed = ("kubernetes.io/configmap", "volume_unmount", "fail-unknown", "false")
    before = OPERATIONS.count(*done), OPERATIONS.count(*failed)
    count_operation(set_up(EmptyDirPlan("/p", "/m", "")), Result.DONE, 0.01)
    count_operation(TearDown(UID, "v", CONFIG_MAP, "v", "over"), Result.UNCERTAIN, 30.0)
    assert (OPERATIONS.count(*done), OPERATIONS.count(*failed)) == (before[0] + 1, before[1] + 1)
