"""State files: whatever happens to them, loading gives the last good state or None, and logs it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.edges.host.fs.checkpoint import Checkpoint, CheckpointError, decode, encode


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(str(tmp_path / "state"))


def test_round_trip_and_private_mode(checkpoint: Checkpoint) -> None:
    assert checkpoint.load() is None
    checkpoint.save(b'{"a": 1}\n\0')
    assert checkpoint.load() == b'{"a": 1}\n\0'
    assert os.stat(checkpoint.path).st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"garbage",
        b"pykubelet-checkpoint 1 5 00\nhello",
        b"pykubelet-checkpoint %s 5 00\nhello" % (b"9" * 5000),
        b"pykubelet-checkpoint 1 %s 00\nhello" % (b"9" * 5000),
    ],
    ids=["empty", "garbage", "digest", "version", "length"],
)
def test_bad_file_is_set_aside_and_the_copy_used(
    checkpoint: Checkpoint, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint.save(b"old")
    checkpoint.save(b"new")
    Path(checkpoint.path).write_bytes(damage)
    assert checkpoint.load() == b"old"
    assert Path(f"{checkpoint.path}.corrupt-0").read_bytes() == damage
    assert not os.path.exists(checkpoint.path)
    assert "a state file cannot be used" in caplog.text
    checkpoint.save(b"newer")
    assert checkpoint.load() == b"newer"


def test_truncated_at_any_length_is_noticed(checkpoint: Checkpoint) -> None:
    whole = encode(b"payload", 1)
    for length in range(len(whole)):
        with pytest.raises(CheckpointError):
            decode(whole[:length], 1)


def test_both_bad_gives_none_and_keeps_both_for_people(checkpoint: Checkpoint) -> None:
    checkpoint.save(b"old")
    checkpoint.save(b"new")
    for suffix in ("", ".bak"):
        Path(checkpoint.path + suffix).write_bytes(b"\xff")
    assert checkpoint.load() is None
    assert sorted(os.listdir(os.path.dirname(checkpoint.path))) == ["state.corrupt-0", "state.corrupt-1"]
    checkpoint.save(b"fresh")
    assert checkpoint.load() == b"fresh"


def test_a_bad_file_never_becomes_the_good_copy(checkpoint: Checkpoint) -> None:
    checkpoint.save(b"old")
    checkpoint.save(b"new")
    Path(checkpoint.path).write_bytes(b"garbage")
    checkpoint.save(b"newest")
    Path(checkpoint.path).unlink()
    assert checkpoint.load() == b"old"


def test_other_version_is_set_aside(checkpoint: Checkpoint) -> None:
    Checkpoint(checkpoint.path, version=2).save(b"from the future")
    assert checkpoint.load() is None


def test_set_aside_files_stay_bounded(checkpoint: Checkpoint) -> None:
    for _ in range(30):
        Path(checkpoint.path).write_bytes(b"bad")
        assert checkpoint.load() is None
    assert len(os.listdir(os.path.dirname(checkpoint.path))) == 20


def test_directory_in_the_place_of_the_file(checkpoint: Checkpoint) -> None:
    os.mkdir(checkpoint.path)
    assert checkpoint.load() is None
    checkpoint.save(b"x")
    assert checkpoint.load() == b"x"


@given(st.binary(), st.binary(max_size=200))
def test_nothing_but_the_real_content_is_accepted(payload: bytes, noise: bytes) -> None:
    whole = encode(payload, 1)
    assert decode(whole, 1) == payload
    if noise:
        with pytest.raises(CheckpointError):
            decode(whole + noise, 1)


def test_nothing_is_left_of_a_removed_file(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path / "state"))
    checkpoint.save(b"1")
    checkpoint.save(b"2")
    (tmp_path / "state.bak.tmp").touch()  # the agent was killed while it made a copy
    checkpoint.remove()
    assert list(tmp_path.iterdir()) == []


def test_the_start_removes_what_a_killed_agent_left_of_a_copy(checkpoint: Checkpoint, tmp_path: Path) -> None:
    checkpoint.save(b"1")
    (tmp_path / "state.bak.tmp").touch()
    assert checkpoint.load() == b"1"
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_a_copy_that_a_killed_agent_has_finished_is_made_again(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """The file and its copy are one file then, which rename(2) leaves under both names."""
    checkpoint.save(b"1")
    os.link(checkpoint.path, f"{checkpoint.path}.bak")
    checkpoint.save(b"2")
    assert {path.name: decode(path.read_bytes(), 1) for path in tmp_path.iterdir()} == {
        "state": b"2",
        "state.bak": b"1",
    }


def test_a_file_that_can_be_done_without_has_no_copy(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path / "state"), keeps_copy=False)
    checkpoint.save(b"one")
    checkpoint.save(b"two")
    assert checkpoint.load() == b"two"
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
