import json
from typing import Any

import pytest
from act.runtime.rendering import make_container, make_pod

from pykubelet.act.runtime.render.render_config import (
    RestoredContainer,
    container_annotations,
    container_labels,
    restored_container,
    sandbox_labels,
)
from pykubelet.base.api import core

IDENTITY = {
    "io.kubernetes.pod.name": "web",
    "io.kubernetes.pod.namespace": "shop",
    "io.kubernetes.pod.uid": "uid-1",
}


def test_labels() -> None:
    pod = make_pod(metadata={"labels": {"app": "x", "io.kubernetes.pod.uid": "forged"}})
    assert sandbox_labels(pod) == {"app": "x", **IDENTITY}
    assert container_labels(pod, pod.spec.containers[0]) == {**IDENTITY, "io.kubernetes.container.name": "app"}


def test_annotations_of_a_plain_container() -> None:
    container = make_container(terminationMessagePath="/dev/termination-log", terminationMessagePolicy="File")
    assert container_annotations(make_pod(container), container, 3, {}) == {
        "io.kubernetes.container.hash": "d58a7d96",
        "io.kubernetes.container.restartCount": "3",
        "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
        "io.kubernetes.container.terminationMessagePolicy": "File",
    }


def test_annotations_with_everything_are_read_back() -> None:
    hook = {"httpGet": {"path": "/bye", "port": "web", "httpHeaders": [{"name": "A", "value": "b"}]}}
    container = make_container(
        lifecycle={"preStop": hook},
        ports=[{"containerPort": 80, "name": "web", "protocol": "TCP"}, {"containerPort": 81, "hostPort": 8081}],
        terminationMessagePath="/t",
        terminationMessagePolicy="FallbackToLogsOnError",
    )
    pod = make_pod(
        container,
        metadata={"deletionGracePeriodSeconds": 0},
        terminationGracePeriodSeconds=30,
    )
    annotations = container_annotations(pod, container, 1, {"io.kubernetes.container.restartCount": "9", "vendor": "x"})
    assert annotations["vendor"] == "x"
    assert annotations["io.kubernetes.container.restartCount"] == "1"
    assert annotations["io.kubernetes.container.preStopHandler"] == (
        '{"httpGet":{"path":"/bye","port":"web","httpHeaders":[{"name":"A","value":"b"}]}}'
    )
    assert annotations["io.kubernetes.container.ports"] == (
        '[{"name":"web","containerPort":80,"protocol":"TCP"},{"hostPort":8081,"containerPort":81}]'
    )
    assert restored_container(annotations) == RestoredContainer(
        deletion_grace_s=0,
        termination_grace_s=30,
        termination_message_path="/t",
        termination_message_policy="FallbackToLogsOnError",
        pre_stop=container.lifecycle.preStop if container.lifecycle else None,
        ports=container.ports,
    )


@pytest.mark.parametrize(
    "hook",
    [
        {"exec": {"command": ["/bin/sh", "-c", "echo <&>"]}},
        {"sleep": {"seconds": 3}},
        {"tcpSocket": {"port": 80, "host": "h"}},
        {"httpGet": {"port": 8080, "scheme": "HTTPS", "host": "h"}},
    ],
)
def test_hooks_survive(hook: dict[str, Any]) -> None:
    container = make_container(lifecycle={"preStop": hook})
    annotations = container_annotations(make_pod(container), container, 0, {})
    assert container.lifecycle is not None
    assert restored_container(annotations).pre_stop == container.lifecycle.preStop
    assert json.loads(annotations["io.kubernetes.container.preStopHandler"]) == hook


def test_what_the_reference_wrote_is_read() -> None:
    """Its field order and its escapes."""
    annotations = {
        "io.kubernetes.container.hash": "8e45cbd0",
        "io.kubernetes.pod.terminationGracePeriod": "7",
        "io.kubernetes.container.preStopHandler": '{"exec":{"command":["sh","-c","a \\u0026\\u0026 b"]}}',
    }
    restored = restored_container(annotations)
    assert restored.termination_grace_s == 7
    assert restored.pre_stop == core.LifecycleHandler(exec=core.ExecAction(command=("sh", "-c", "a && b")))


def test_damage_counts_as_missing() -> None:
    damaged = {
        "io.kubernetes.pod.terminationGracePeriod": "",
        "io.kubernetes.container.preStopHandler": "{",
        "io.kubernetes.container.ports": '{"a":1}',
    }
    assert restored_container(damaged) == RestoredContainer()
    assert restored_container({}) == RestoredContainer()
