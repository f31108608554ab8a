"""What the live table shows."""

from __future__ import annotations

import io
import sys
from typing import Any

import live_table

NOW = 10_000.0


def pod(name: str, **changes: Any) -> dict[str, object]:
    base = {
        "namespace": "default",
        "name": name,
        "ready": "1/1",
        "status": "Running",
        "restarts": 0,
        "created": 9_900.0,
    }
    return base | {"waits": []} | changes


def test_a_row_shows_what_is_waited_for_since_when_and_the_owner() -> None:
    wait = {
        "what": "back-off",
        "subject": "main",
        "reason": "CrashLoopBackOff",
        "since": 9_980.0,
        "owner": "pod worker",
    }
    rows = live_table.render_rows({"pods": [pod("b", waits=[wait]), pod("a", created=None)]}, NOW)
    assert rows == [
        ("default", "a", "1/1", "Running", "0", "", "-"),
        ("default", "b", "1/1", "Running", "0", "1m40s", "back-off main: CrashLoopBackOff (20s, pod worker)"),
    ]


def test_the_table_has_columns_and_fits_the_terminal() -> None:
    rows = live_table.render_rows({"pods": [pod("long-name")]}, NOW)
    lines = live_table.render_table(rows, 200)
    assert lines[0].split("   ")[0] == "NAMESPACE"
    assert lines[0].index("STATUS") == lines[1].index("Running")
    assert all(len(line) <= 30 for line in live_table.render_table(rows, 30))


def test_what_is_waited_for_is_whole_on_a_narrow_terminal() -> None:
    wait = {
        "what": "image pull",
        "subject": "registry.example.com/team/application:1.2.3",
        "reason": "ImagePullBackOff: the registry answers 503 Service Unavailable",
        "since": 9_980.0,
        "owner": "image manager",
    }
    rows = live_table.render_rows({"pods": [pod("application-7d4b9c-x2x5z", waits=[wait]), pod("a")]}, NOW)
    lines = live_table.render_table(rows, 80)
    assert all(len(line) <= 80 for line in lines)
    assert "…" not in "".join(lines)
    text = " ".join(" ".join(lines).split())
    assert (
        "waiting for image pull registry.example.com/team/application:1.2.3: ImagePullBackOff: the registry answers "
        "503 Service Unavailable (20s, image manager)"
    ) in text
    assert lines[0].split() == ["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE"]


def test_an_agent_that_is_not_there_yet_is_starting() -> None:
    problem = "Error: cannot connect to /x/pykubelet.sock"
    assert live_table.render_silence(problem, 1.0, has_answered=False) == "starting ..."
    assert "cannot connect" in live_table.render_silence(problem, 60.0, has_answered=False)
    late = live_table.render_silence(problem, 60.0, has_answered=True)
    assert late == "the agent does not answer: cannot connect to /x/pykubelet.sock"


def test_ages_are_short() -> None:
    assert [live_table.render_age(s) for s in (-5, 42, 185, 7650, 360_000)] == ["0s", "42s", "3m5s", "2h7m", "4d4h"]


def test_without_a_terminal_only_changes_are_printed() -> None:
    old = live_table.render_rows({"pods": [pod("a"), pod("b"), pod("c")]}, NOW)
    new = live_table.render_rows({"pods": [pod("a"), pod("b", restarts=1), pod("d")]}, NOW + 5)
    assert live_table.changed_lines(old, new) == [
        "default/b Running ready 1/1 restarts 1",
        "default/d Running ready 1/1 restarts 0",
        "default/c gone",
    ]


def test_a_failing_agent_is_a_message_not_a_crash() -> None:
    answer, problem = live_table.ask([sys.executable, "-c", "import sys; sys.exit('cannot connect')"])
    assert (answer, problem) == (None, "cannot connect")
    assert live_table.ask([sys.executable, "-c", "print('{')"])[1].startswith("not JSON")
    assert live_table.ask(["/no/such/program"])[0] is None


def test_it_ends_with_the_agent() -> None:
    out = io.StringIO()
    answers = iter([True, False])
    command = [sys.executable, "-c", "print('{\"pods\": []}')"]
    live_table.watch(command, lambda: next(answers), out=out)
    assert out.getvalue() == ""
