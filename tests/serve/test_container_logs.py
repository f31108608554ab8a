"""`/containerLogs/...`: which instance's log is read and how much of it, from real files."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlencode

import pytest
from report.samples import UID, container, entry, exited, facts, lifecycle, make_pod, running, view
from support.opens import observed_opens

from pykubelet.base.kit.cells import make_cell
from pykubelet.base.kit.clock import ManualClock
from pykubelet.base.kit.flight import SingleFlight
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.observed import ContainerView, Observed
from pykubelet.base.model.roster import Roster
from pykubelet.base.model.statuses import Statuses
from pykubelet.edges.cri.log_reader import LogReader
from pykubelet.net.http.server import Request, Response, StreamedResponse
from pykubelet.report.status.project import project_status
from pykubelet.serve.endpoints.container_logs import ContainerLogs
from pykubelet.serve.endpoints.known_pods import KnownPods

NOW = 1_767_323_050.0  # 2026-01-02T03:04:10Z
OLD = b"2026-01-02T03:03:00Z stdout F the first life\n"
LOG = (
    b"2026-01-02T03:04:05.123456789Z stdout F one\n"
    b"2026-01-02T03:04:06.5Z stderr F two\n"
    b"2026-01-02T03:04:08Z stdout F three\n"
)


@pytest.fixture
def logs(tmp_path: Path) -> ContainerLogs:
    """A pod whose container runs for the second time."""
    (tmp_path / "0.log").write_bytes(OLD)
    (tmp_path / "1.log").write_bytes(LOG)
    return logs_of(
        running("app", number=1, log_path=str(tmp_path / "1.log")),
        exited("app", 1, number=0, log_path=str(tmp_path / "0.log")),
    )


def logs_of(*instances: ContainerView, is_there: bool = True) -> ContainerLogs:
    """`is_there`: the runtime still knows the container that was reported."""
    pod, seen = make_pod(container("app"), restartPolicy="Always"), view(*instances)
    life = lifecycle(pod)
    pods = KnownPods(
        make_cell("roster", Roster({UID: entry(pod)}))[0],
        make_cell("lifecycles", Lifecycles({UID: life}))[0],
        make_cell("observed", Observed({UID: seen} if is_there else {}))[0],
        make_cell("statuses", Statuses({UID: project_status(facts(pod, seen, lifecycle=life))}))[0],
    )
    return ContainerLogs(pods, LogReader(SingleFlight("test")), ManualClock(wall=NOW), split_streams=True)


async def ask(logs: ContainerLogs, **query: str) -> tuple[int, str]:
    given = {name: [value] for name, value in query.items()}
    answer = await logs.answer(Request("GET", "/containerLogs/default/web/app", urlencode(given, doseq=True)))
    if isinstance(answer, StreamedResponse):
        return answer.status, b"".join([chunk async for chunk in answer.chunks]).decode()
    assert isinstance(answer, Response)
    return answer.status, answer.body.decode()


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, "one\ntwo\nthree\n"),
        ({"previous": "true"}, "the first life\n"),
        ({"previous": "true", "timestamps": "1"}, "2026-01-02T03:03:00.000000000Z the first life\n"),
        ({"sinceSeconds": "4"}, "two\nthree\n"),
        ({"sinceTime": "2026-01-02T04:04:08+01:00"}, "three\n"),
        ({"limitBytes": "6"}, "one\ntw"),
        ({"limitBytes": "30", "timestamps": "true", "tailLines": "1"}, "2026-01-02T03:04:08.000000000Z"),
        ({"sinceSeconds": "5", "timestamps": "true", "limitBytes": "34"}, "2026-01-02T03:04:05.123456789Z one"),
        ({"tail": "1"}, "three\n"),
        ({"tail": "all"}, "one\ntwo\nthree\n"),
        ({"stream": "Stderr"}, "two\n"),
    ],
)
async def test_what_is_asked_for_is_given(logs: ContainerLogs, query: dict[str, str], expected: str) -> None:
    assert await ask(logs, **query) == (200, expected)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"sinceSeconds": "0"}, 422),
        ({"limitBytes": "0"}, 422),
        ({"sinceSeconds": "1", "sinceTime": "2026-01-02T03:04:06Z"}, 422),
        ({"sinceTime": "yesterday"}, 400),
        ({"previous": "perhaps"}, 400),
        ({"stream": "Stderr", "tailLines": "1"}, 422),
    ],
)
async def test_what_is_no_question_is_refused(logs: ContainerLogs, query: dict[str, str], status: int) -> None:
    assert (await ask(logs, **query))[0] == status


async def test_a_link_to_dockers_log_of_the_container_is_read(tmp_path: Path) -> None:
    """As a runtime over Docker makes it, which keeps logs elsewhere."""
    (tmp_path / "docker" / "app-0").mkdir(parents=True)
    (tmp_path / "docker" / "app-0" / "app-0-json.log").write_bytes(LOG)
    (tmp_path / "0.log").symlink_to(tmp_path / "docker" / "app-0" / "app-0-json.log")
    assert await ask(logs_of(running("app", log_path=str(tmp_path / "0.log"))), tailLines="1") == (200, "three\n")


@pytest.mark.parametrize("query", [{}, {"follow": "true"}])
async def test_no_other_link_in_place_of_a_log_is_followed(tmp_path: Path, query: dict[str, str]) -> None:
    (tmp_path / "other.log").write_bytes(LOG)
    (tmp_path / "0.log").symlink_to(tmp_path / "other.log")
    status, output = await ask(logs_of(running("app", log_path=str(tmp_path / "0.log"))), **query)
    refused = f"open {tmp_path}/0.log: a part of the path is a symbolic link, which is not followed"
    assert (status, output) == (200, f"unable to retrieve container logs: {refused}\n")


async def test_a_fifo_in_place_of_a_log_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "0.log")
    with observed_opens(tmp_path / "0.log") as was_opened:
        status, output = await ask(logs_of(running("app", log_path=str(tmp_path / "0.log"))))
        assert (status, was_opened()) == (200, False) and "not a regular file but a fifo" in output


async def test_a_link_that_leads_nowhere_is_reported(tmp_path: Path) -> None:
    (tmp_path / "0.log").symlink_to("nothing")
    status, output = await ask(logs_of(running("app", log_path=str(tmp_path / "0.log"))))
    assert status == 200 and output.startswith("unable to retrieve container logs: ")


async def test_a_long_log_is_streamed(tmp_path: Path) -> None:
    (tmp_path / "0.log").write_bytes(LOG * 2000)
    long = logs_of(running("app", log_path=str(tmp_path / "0.log")))
    assert await ask(long) == (200, "one\ntwo\nthree\n" * 2000)
    assert await ask(long, tailLines="4") == (200, "three\none\ntwo\nthree\n")


@pytest.mark.parametrize("query", ["", "follow=true"])
async def test_the_head_of_an_answer_needs_no_log(tmp_path: Path, query: str) -> None:
    (tmp_path / "0.log").write_bytes(LOG)
    logs = logs_of(running("app", log_path=str(tmp_path / "0.log")))
    with observed_opens(tmp_path / "0.log") as was_opened:
        answer = await logs.answer(Request("HEAD", "/containerLogs/default/web/app", query))
        assert isinstance(answer, StreamedResponse) and not was_opened()


async def test_a_container_that_the_runtime_has_forgotten_has_no_log() -> None:
    gone = logs_of(exited("app", 1, number=0), is_there=False)
    status, output = await ask(gone)
    assert status == 200 and output.startswith("unable to retrieve container logs for containerd://")


async def test_why_there_is_no_previous_one(tmp_path: Path) -> None:
    alone = logs_of(running("app", log_path=str(tmp_path / "0.log")))
    assert await ask(alone, previous="true") == (
        400,
        'previous terminated container "app" in pod "web" not found',
    )
