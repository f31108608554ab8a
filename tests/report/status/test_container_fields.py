"""Fields of a container's status that are reported as they are: volume mounts, user, stop signal, resources, image."""

from __future__ import annotations

from typing import Any

import pytest
from report.samples import (
    container,
    exited,
    facts,
    make_pod,
    reported,
    reported_after,
    running,
    view,
)

from pykubelet.base.api import core
from pykubelet.base.model.containers import container_hash
from pykubelet.base.model.labels import CONTAINER_HASH
from pykubelet.base.model.node import HandlerFeatures
from pykubelet.base.model.observed import ObservedUser, ResourcesView
from pykubelet.report.status.project import project_status


@pytest.mark.parametrize(
    ("mount", "supported", "expected"),
    [
        ({}, True, {}),
        ({"readOnly": True}, True, {"readOnly": True, "recursiveReadOnly": "Disabled"}),
        (
            {"readOnly": True, "recursiveReadOnly": "IfPossible"},
            True,
            {"readOnly": True, "recursiveReadOnly": "Enabled"},
        ),
        (
            {"readOnly": True, "recursiveReadOnly": "IfPossible"},
            False,
            {"readOnly": True, "recursiveReadOnly": "Disabled"},
        ),
        ({"readOnly": True, "recursiveReadOnly": "Enabled"}, True, {"readOnly": True, "recursiveReadOnly": "Enabled"}),
    ],
)
def test_volume_mounts(mount: dict[str, Any], supported: bool, expected: dict[str, Any]) -> None:
    pod = make_pod(container(volumeMounts=(core.VolumeMount(name="v", mountPath="/v", **mount),)))
    handlers = {"": HandlerFeatures(recursive_read_only_mounts=supported)}
    shown = reported(pod, view(running()), handlers=handlers)
    assert shown["volumeMounts"] == [{"name": "v", "mountPath": "/v", **expected}]


@pytest.mark.parametrize("uid", [1000, 4294967294])
def test_the_user_of_the_first_process(uid: int) -> None:
    shown = reported(make_pod(), view(running(user=ObservedUser(uid, 100, (100, 7)))))
    assert shown["user"] == {"linux": {"uid": uid, "gid": 100, "supplementalGroups": [100, 7]}}


@pytest.mark.parametrize(("gate", "shown"), [(True, "SIGUSR1"), (False, "")])
def test_the_stop_signal_is_reported_with_its_gate_only(gate: bool, shown: str) -> None:
    look = view(running(stop_signal="SIGUSR1"))
    (status,) = project_status(facts(make_pod(), look, reports_stop_signals=gate)).containerStatuses
    assert status.stopSignal == shown


ASKED = core.ResourceRequirements(
    requests={"cpu": "100m", "memory": "64Mi"}, limits={"cpu": "0.5", "memory": "64Mi", "hugepages-2Mi": "2Mi"}
)


@pytest.mark.parametrize(
    ("applied", "limits", "requests"),
    [
        (None, {}, {}),
        (ResourcesView(102, 50_000, 100_000, 64 << 20), {}, {}),
        (ResourcesView(204, 100_000, 100_000, 128 << 20), {"cpu": "1", "memory": "128Mi"}, {"cpu": "200m"}),
        (ResourcesView(0, 0, 0, 1000), {"memory": "1k"}, {}),
    ],
)
def test_resources_of_a_running_container_are_what_the_runtime_applies(
    applied: ResourcesView | None, limits: dict[str, str], requests: dict[str, str]
) -> None:
    shown = reported(make_pod(container(resources=ASKED)), view(running(resources=applied)))
    assert shown["resources"] == {"limits": {**ASKED.limits, **limits}, "requests": {**ASKED.requests, **requests}}
    assert shown["allocatedResources"] == ASKED.requests


def test_tiny_cpu_amounts_keep_what_was_asked_for() -> None:
    tiny = core.ResourceRequirements(requests={"cpu": "1m"}, limits={"cpu": "5m"})
    shown = reported(make_pod(container(resources=tiny)), view(running(resources=ResourcesView(2, 1000, 100_000, 0))))
    assert shown["resources"] == {"limits": {"cpu": "5m"}, "requests": {"cpu": "1m"}}


def test_resources_that_the_runtime_stops_telling_stay_while_the_instance_runs() -> None:
    pod = make_pod(container(resources=ASKED))
    before = view(running(resources=ResourcesView(204, 100_000, 100_000, 128 << 20)))
    (shown,) = reported_after(pod, before, view(running())).containerStatuses
    assert shown.resources is not None
    assert (shown.resources.limits["memory"], shown.resources.requests["cpu"]) == ("128Mi", "200m")
    (again,) = reported_after(pod, before, view(exited("app", 1), running(number=1))).containerStatuses
    assert again.resources == ASKED


@pytest.mark.parametrize(
    ("given", "of_runtime", "shown"),
    [
        ("busybox", "docker.io/library/busybox:latest", "docker.io/library/busybox:latest"),
        ("busybox:1", "docker.io/library/busybox:1", "docker.io/library/busybox:1"),
        ("localhost:5000/app", "localhost:5000/app:latest", "localhost:5000/app:latest"),
        ("example.com/app:2", "example.com/app:1", "example.com/app:2"),
        ("app:2", "docker.io/library/other:2", "app:2"),
        ("example.com/app:2", "sha256:abc", "sha256:abc"),
        ("example.com/app@sha256:abc", "example.com/app:1", "example.com/app:1"),
    ],
)
def test_of_several_tags_of_an_image_the_one_of_the_spec_is_shown(given: str, of_runtime: str, shown: str) -> None:
    spec = container(image=given)
    own = running(image=of_runtime, annotations={CONTAINER_HASH: container_hash(spec)})
    assert reported(make_pod(spec), view(own))["image"] == shown
    earlier = running(
        image=of_runtime, annotations={CONTAINER_HASH: container_hash(container(image="example.com/old:1"))}
    )
    assert reported(make_pod(spec), view(earlier))["image"] == of_runtime
