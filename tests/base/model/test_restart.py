"""Which containers run again after they ended: rules before own policy before the pod's."""

from __future__ import annotations

from typing import Any

import pytest
from act.pods.scenes import container, created, exited, pod, rule, running, sidecar, unknown

from pykubelet.base.model.restart import (
    AfterExit,
    after_exit,
    has_restart_all_rule,
    is_sidecar,
    may_ever_restart,
    should_restart,
)

RESTART, STAY, ALL = AfterExit.RESTART, AfterExit.STAY, AfterExit.RESTART_ALL


@pytest.mark.parametrize(
    ("pods", "own", "code", "expected"),
    [
        ("Always", {}, 0, RESTART),
        ("Always", {}, 1, RESTART),
        ("OnFailure", {}, 0, STAY),
        ("OnFailure", {}, 255, RESTART),
        ("Never", {}, 1, STAY),
        ("", {}, 0, RESTART),
        ("Never", {"restartPolicy": "Always"}, 0, RESTART),
        ("Always", {"restartPolicy": "Never"}, 1, STAY),
        ("Always", {"restartPolicy": "OnFailure"}, 0, STAY),
        ("Never", {"restartPolicyRules": [rule("Restart", 1, 2)]}, 2, RESTART),
        ("Never", {"restartPolicyRules": [rule("Restart", 1, 2)]}, 3, STAY),
        ("Never", {"restartPolicyRules": [rule("Restart", 0, operator="NotIn")]}, 3, RESTART),
        ("Never", {"restartPolicyRules": [rule("Restart", 0, operator="NotIn")]}, 0, STAY),
        ("Never", {"restartPolicyRules": [rule("RestartAllContainers", 9)]}, 9, ALL),
        ("Never", {"restartPolicyRules": [rule("Restart", 9), rule("RestartAllContainers", 9)]}, 9, RESTART),
        ("Always", {"restartPolicyRules": [{"action": "Restart"}], "restartPolicy": "Never"}, 1, STAY),
    ],
)
def test_what_an_exit_code_leads_to(pods: str, own: dict[str, Any], code: int, expected: AfterExit) -> None:
    assert after_exit(pod(restart=pods), container("app", **own), code) is expected


def test_states_that_are_no_end() -> None:
    of, app = pod(restart="Never"), container("app")
    assert should_restart(of, app, None)
    assert should_restart(of, app, created())
    assert should_restart(of, app, unknown())
    assert not should_restart(of, app, running())
    assert not should_restart(of, app, exited(code=1))


def test_nothing_of_a_deleted_pod_is_started_again() -> None:
    gone = pod(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    for newest in (None, created(), unknown(), exited(code=1)):
        assert not should_restart(gone, container("app"), newest)


def test_whether_a_failed_probe_restarts_or_ends_a_container() -> None:
    assert may_ever_restart(pod(restart="OnFailure"), container("app"))
    assert not may_ever_restart(pod(restart="Never"), container("app"))
    assert may_ever_restart(pod(restart="Never"), container("app", restartPolicy="Always"))
    assert not may_ever_restart(pod(restart="Always"), container("app", restartPolicy="Never"))
    ruled = container("app", restartPolicy="Never", restartPolicyRules=[rule("Restart", 137)])
    assert not may_ever_restart(pod(), ruled), "rules ask for an exit code, and there is none yet"


def test_sidecars() -> None:
    assert is_sidecar(sidecar())
    assert not is_sidecar(container("i1"))
    assert not is_sidecar(container("i1", restartPolicy="OnFailure"))


def test_pods_that_may_restart_all_their_containers() -> None:
    marked = container("x", restartPolicyRules=[rule("RestartAllContainers", 1)])
    assert has_restart_all_rule(pod(marked))
    assert has_restart_all_rule(pod(init=(marked,)))
    assert not has_restart_all_rule(pod(container("x", restartPolicyRules=[rule("Restart", 1)])))
