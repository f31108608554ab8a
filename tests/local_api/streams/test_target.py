"""Where log, exec, attach and portforward go at the agent, and which options are refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import parse_qs

import pytest

from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.streams.target import Query, command_target, forward_target, log_target


def pod(*containers: str, node: str = "n1", **spec: list[dict[str, str]]) -> dict[str, Any]:
    assigned = {"nodeName": node} if node else {}
    return {
        "metadata": {"namespace": "default", "name": "x"},
        "spec": {"containers": [{"name": name} for name in containers], **spec, **assigned},
    }


def log(query: str, **more: Any) -> str:
    return log_target(pod("app", **more), parse_qs(query, keep_blank_values=True))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", "stream=All"),
        ("follow=true&previous=1&timestamps=", "follow=true&previous=true&timestamps=true&stream=All"),
        ("follow=false&previous=0&timestamps=False", "stream=All"),
        ("tailLines=0&limitBytes=5&sinceSeconds=7", "sinceSeconds=7&tailLines=0&limitBytes=5&stream=All"),
        ("sinceTime=2026-11-29T20:00:00Z&stream=Stderr", "sinceTime=2026-11-29T20%3A00%3A00Z&stream=Stderr"),
        ("container=app&unknown=1&pretty=true", "stream=All"),
    ],
)
def test_the_options_of_a_log_are_passed_on(query: str, expected: str) -> None:
    assert log(query) == f"/containerLogs/default/x/app?{expected}"


@pytest.mark.parametrize(
    ("query", "code", "message"),
    [
        ("container=nope", 400, "container nope is not valid for pod x"),
        ("tailLines=a", 400, 'strconv.ParseInt: parsing "a": invalid syntax'),
        ("tailLines=9223372036854775808", 400, 'strconv.ParseInt: parsing "9223372036854775808": value out of range'),
        (
            "tailLines=-1",
            422,
            'PodLogOptions "x" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0',
        ),
        ("limitBytes=0", 422, 'PodLogOptions "x" is invalid: limitBytes: Invalid value: 0: must be greater than 0'),
        (
            "stream=both",
            422,
            'PodLogOptions "x" is invalid: stream: Unsupported value: "both": '
            'supported values: "All", "Stderr", "Stdout"',
        ),
        (
            "sinceSeconds=1&sinceTime=2026-11-29T20:00:00Z",
            422,
            'PodLogOptions "x" is invalid: : Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified',
        ),
    ],
)
def test_wrong_options_of_a_log_are_named(query: str, code: int, message: str) -> None:
    with pytest.raises(StatusError) as refused:
        log(query)
    assert (refused.value.code, refused.value.message) == (code, message)


def test_of_several_containers_one_must_be_chosen() -> None:
    several = pod("a", "b", initContainers=[{"name": "init"}], ephemeralContainers=[{"name": "debug"}])
    with pytest.raises(StatusError) as refused:
        log_target(several, {})
    wanted = "a container name must be specified for pod x, choose one of: [init a b debug]"
    assert refused.value.message == wanted
    assert log_target(several, {"container": ["debug"]}).startswith("/containerLogs/default/x/debug?")


def test_an_exec_names_its_streams_and_words() -> None:
    query = parse_qs("container=app&command=ls&command=-l&stdin=true&stdout=true&stderr=false&tty=true")
    assert command_target("exec", pod("app"), query) == (
        "/exec/default/x/app?input=1&output=1&tty=1&command=ls&command=-l"
    )
    assert command_target("attach", pod("app"), parse_qs("stdout=1")) == "/attach/default/x/app?output=1"


def test_ports_of_a_forward_are_passed_on() -> None:
    assert forward_target(pod("app"), {}) == "/portForward/default/x"
    assert forward_target(pod("app"), parse_qs("ports=80&ports=443")) == "/portForward/default/x?port=80%2C443"


@pytest.mark.parametrize("aim", [partial(command_target, "exec"), partial(command_target, "attach"), forward_target])
def test_a_pod_without_a_node_has_no_streams(aim: Callable[[dict[str, Any], Query], str]) -> None:
    with pytest.raises(StatusError) as refused:
        aim(pod("a", node=""), {})
    assert refused.value.message == "pod x does not have a host assigned"


def test_names_cannot_lead_elsewhere_at_the_agent() -> None:
    strange = {"metadata": {"namespace": "a/b", "name": "c?d"}, "spec": {"containers": [{"name": "e f"}]}}
    assert log_target(strange, {}).startswith("/containerLogs/a%2Fb/c%3Fd/e%20f?")
