"""The few words of shell that fake containers understand."""

import pytest

from pykubelet.testing.cri.fake_script import Script, parse_script


@pytest.mark.parametrize(
    ("argv", "script"),
    [
        ([], Script()),
        (["nginx", "-g", "daemon off"], Script()),
        (["sleep", "infinity"], Script()),
        (["true"], Script(runs_s=0.0)),
        (["/bin/false"], Script(runs_s=0.0, exit_code=1)),
        (["sleep", "0.5"], Script(runs_s=0.5)),
        (["sh", "-c", "echo a b; sleep 1; sleep 2; exit 3"], Script(b"a b\n", 3.0, 3)),
        (["/bin/sh", "-c", "false; echo 'c'"], Script(b"c\n", 0.0)),
        (["sh", "-c", "trap 'exit 5' TERM; sleep 100 & wait"], Script(runs_s=100.0, term_exit_code=5)),
        (["sh", "-c", "trap '' TERM; serve"], Script(term_exit_code=None)),
    ],
)
def test_parse(argv: list[str], script: Script) -> None:
    assert parse_script(argv) == script
