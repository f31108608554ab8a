"""Ends of containers are counted once each."""

from __future__ import annotations

from report.samples import container, exited, facts, make_pod, running, view

from pykubelet.report.status.metrics import TERMINATED, count_ends
from pykubelet.report.status.project import project_status


def test_an_end_counts_once() -> None:
    pod = make_pod(init=(container("init"),), restartPolicy="Never")
    before = project_status(facts(pod, view(running(), exited("init"))))
    after = project_status(facts(pod, view(exited(code=139), exited("init")), old=before))
    ends = TERMINATED.value("container", "139", "Error")
    inits = TERMINATED.value("init_container", "0", "Completed")
    count_ends(None, before)
    count_ends(before, after)
    count_ends(after, after)
    assert TERMINATED.value("container", "139", "Error") == ends + 1
    assert TERMINATED.value("init_container", "0", "Completed") == inits + 1
