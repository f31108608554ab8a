"""What Docker writes, and what it does not, as lines of a CRI log."""

from __future__ import annotations

import json

import pytest
from cri_docker.logs.docker_file import entry
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.edges.cri.logs import parse_line
from pykubelet_cri_docker.logs.entries import render

TIME = "2026-01-02T03:04:05.123456789Z"
GOOD, LINE = entry("good\n"), f"{TIME} stdout F good\n".encode()


@pytest.mark.parametrize(
    ("entries", "lines"),
    [
        (entry("text\n"), "T stdout F text\n"),
        (entry("text\n", "stderr"), "T stderr F text\n"),
        (entry("\n"), "T stdout F \n"),
        (entry("a tty's\r\n"), "T stdout F a tty's\r\n"),
        (entry("be") + entry("er", "stderr") + entry("gin\n"), "T stdout P be\nT stderr P er\nT stdout F gin\n"),
        (entry("the end"), "T stdout P the end\n"),
        (entry("Grüße \u2028 \x00 <&>\n"), "T stdout F Grüße \u2028 \x00 <&>\n"),
        (entry("two\nlines\n"), "T stdout F two\nT stdout F lines\n"),
        (entry("two\nparts"), "T stdout F two\nT stdout P parts\n"),
        (b'{"log":"x\\n","stream":"stdout","attrs":{"tag":"a"},"time":"%s"}\n' % TIME.encode(), "T stdout F x\n"),
        (b'{"stream":"stdout","time":"%s"}\n' % TIME.encode(), "T stdout P \n"),
        (b"", ""),
    ],
)
def test_entries(entries: bytes, lines: str) -> None:
    assert render(entries).text.decode() == lines.replace("T ", f"{TIME} ")
    assert render(entries).skipped == 0


@pytest.mark.parametrize("time", ["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.1Z", "2026-01-02T03:04:05+00:00"])
def test_times_are_kept_as_docker_writes_them(time: str) -> None:
    assert render(entry("x\n", time=time)).text == f"{time} stdout F x\n".encode()


@pytest.mark.parametrize(
    "damaged",
    [
        b"no entry\n",
        b"{}\n",
        b"[" * 100_000 + b"\n",
        b'{"a":' * 100_000 + b"\n",
        b'{"log":"x\\n","stream":"stdin","time":"%s"}\n' % TIME.encode(),
        b'{"log":7,"stream":"stdout","time":"%s"}\n' % TIME.encode(),
        entry("x\n", time="yesterday"),
        entry("x\n", time=""),
        entry("x\n", time=f"{TIME}\n{TIME}"),
        entry("x\n", time="2026-01-02T03:04:05.1234567890Z"),
        b'{"log":"\xff\\n","stream":"stdout","time":"%s"}\n' % TIME.encode(),
        b'{"log":"\\ud800\\n","stream":"stdout","time":"%s"}\n' % TIME.encode(),
        b'{"log":"half an en\n',
        b"\0" * 100 + b"\n",
    ],
)
def test_a_damaged_entry_is_left_out_and_the_others_are_not(damaged: bytes) -> None:
    lines = render(GOOD + damaged + GOOD)
    assert (lines.text, lines.skipped) == (LINE * 2, 1)


@pytest.mark.parametrize("left", [b"\0" * 4096, b'{"log":"half an en', b'{"log":"a \\"b\\\\', b'{"lo'])
def test_an_entry_behind_the_rest_of_another_is_read(left: bytes) -> None:
    assert render(GOOD + left + GOOD).text == LINE * 2


@pytest.mark.parametrize("time", [TIME, "2026-01-02T03:04:05.123456789+01:00", "2026-01-02T03:04:05Z"])
def test_lines_of_podman_stay_as_they_are(time: str) -> None:
    podmans = f"{time} stderr P a\n{time} stderr F {json.dumps({'log': 'x', 'stream': 'stdout', 'time': TIME})}\n"
    lines = render(podmans.encode() + b"no line\n")
    assert (lines.text.decode(), lines.skipped) == (podmans, 1)


def test_no_text_is_taken_for_the_beginning_of_an_entry() -> None:
    text = json.dumps({"log": "x\n", "stream": "stderr", "time": TIME}) + "\n"
    assert render(b"\0" + entry(text)).text == f"{TIME} stdout F {text}".encode()


@given(st.lists(st.tuples(st.text(), st.sampled_from(["stdout", "stderr"]))))
def test_the_output_of_each_stream_is_the_same(pieces: list[tuple[str, str]]) -> None:
    text = render(b"".join(entry(piece, stream) for piece, stream in pieces)).text
    found = {"stdout": "", "stderr": ""}
    for line in text.split(b"\n")[:-1]:
        parsed = parse_line(line)
        assert parsed is not None
        found[parsed.stream] += parsed.content.decode() + ("" if parsed.is_partial else "\n")
    for name in found:
        assert found[name] == "".join(piece for piece, stream in pieces if stream == name)
