"""exec over SPDY, with real processes."""

from __future__ import annotations

import hashlib
import json
import os

import pytest
from cri_docker.streaming.doubles import Local, command, opened, serving, shell, spdy_peer

from pykubelet_cri_docker.streaming.backend import StreamSet

MIB = 1 << 20


async def test_input_to_its_end_output_errors_and_the_exit_code() -> None:
    data = os.urandom(3 * MIB)
    async with (
        serving(Local()) as server,
        spdy_peer(server.exec_url(shell("sha256sum; echo oops >&2; exit 7"))) as peer,
    ):
        error, stdin, stdout, stderr = opened(peer, "error", "stdin", "stdout", "stderr")
        await peer.until(lambda: len(peer.replied) == 4)
        for at in range(0, len(data), 32768):
            peer.send(stdin, data[at : at + 32768])
            await peer.writer.drain()
        peer.send(stdin, b"", last=True)
        await peer.until_end()
    assert peer.data[stdout] == f"{hashlib.sha256(data).hexdigest()}  -\n".encode() and peer.data[stderr] == b"oops\n"
    assert peer.finished == {error, stdout, stderr}
    assert json.loads(peer.data[error]) == {
        "metadata": {},
        "status": "Failure",
        "message": "command terminated with non-zero exit code: exit status 7",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": "7"}]},
    }


async def test_all_output_comes_before_the_result() -> None:
    script = f"head -c {8 * MIB} /dev/zero; echo done >&2"
    async with serving(Local()) as server, spdy_peer(server.exec_url(shell(script))) as peer:
        error, _, stdout, stderr = opened(peer, "error", "stdin", "stdout", "stderr")
        await peer.until(lambda: error in peer.data)
        assert len(peer.data[stdout]) == 8 * MIB and peer.data[stderr] == b"done\n"
        assert {stdout, stderr} <= peer.finished
        assert json.loads(peer.data[error]) == {"metadata": {}, "status": "Success"}


@pytest.mark.parametrize("version", ["v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"])
async def test_older_clients_get_the_result_as_text(version: str) -> None:
    only_output = StreamSet(stdout=True)
    async with serving(Local()) as server:
        for script, result in (("exit 3", b"command terminated with non-zero exit code: exit status 3"), ("true", b"")):
            async with spdy_peer(server.exec_url(shell(script, only_output)), version) as peer:
                error, _ = opened(peer, "error", "stdout")
                await peer.until_end()
            assert peer.data.get(error, b"") == result and error in peer.finished


async def test_a_command_that_is_not_found_is_reported() -> None:
    async with serving(Local()) as server, spdy_peer(server.exec_url(command("/no/such/program"))) as peer:
        error, *_ = opened(peer, "error", "stdin", "stdout", "stderr")
        await peer.until_end()
    assert "No such file or directory: '/no/such/program'" in json.loads(peer.data[error])["message"]


async def test_a_process_that_takes_no_more_input_may_still_write() -> None:
    async with serving(Local()) as server, spdy_peer(server.exec_url(shell("exec <&-; sleep 0.05; echo bye"))) as peer:
        error, stdin, stdout, _ = opened(peer, "error", "stdin", "stdout", "stderr")
        for _ in range(16):
            peer.send(stdin, bytes(65536))
        await peer.until(lambda: error in peer.finished)
    assert peer.data[stdout] == b"bye\n" and json.loads(peer.data[error])["status"] == "Success"
