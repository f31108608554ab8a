"""The client of Docker Engine's API against a server that answers as the test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pykubelet.net.grpc.status import Code
from pykubelet_cri_docker.engine import messages as docker
from pykubelet_cri_docker.engine.client import MAX_LINE, Engine, agreed_version, lines_of
from pykubelet_cri_docker.engine.output import OutputReader
from pykubelet_cri_docker.engine.transport import EngineError
from pykubelet_cri_docker.errors import rpc_error

VERSION = b'{"Version":"20.10","ApiVersion":"1.41","MinAPIVersion":"1.12"}'
Answer = Callable[[bytes], bytes]


def ok(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


class Docker:
    """Answers each request with what `answers` has for the start of its target; of a list with one after the other."""

    def __init__(self, answers: Mapping[str, bytes | list[bytes]]) -> None:
        self.answers: dict[str, bytes | list[bytes]] = {"/version": ok(VERSION), **answers}
        self.requests: list[str] = []
        self.connections = 0
        self.close_after = False

    def answer(self, target: str) -> bytes:
        found = next((answer for part, answer in self.answers.items() if part in target), ok(b"{}"))
        return found.pop(0) if isinstance(found, list) else found

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                line = head.split(b"\r\n")[0].decode()
                length = next(
                    (int(f.split(b":")[1]) for f in head.split(b"\r\n") if f.startswith(b"Content-Length")), 0
                )
                body = await reader.readexactly(length)
                self.requests.append(f"{line.removesuffix(' HTTP/1.1')} {body.decode()}".strip())
                target = line.split(" ")[1]
                writer.write(self.answer(target))
                await writer.drain()
                if self.close_after:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(
    tmp_path: Path, answers: Mapping[str, bytes | list[bytes]] | Docker
) -> AsyncIterator[tuple[Docker, Engine]]:
    made, path = answers if isinstance(answers, Docker) else Docker(answers), str(tmp_path / "docker.sock")
    async with await asyncio.start_unix_server(made.serve, path):
        engine = Engine(path, 5.0)
        yield made, engine
        engine.close()


async def test_the_version_is_agreed_once_and_connections_are_used_again(tmp_path: Path) -> None:
    async with serving(tmp_path, {"/containers/json": ok(b'[{"Id":"a","State":"running","Labels":null,"New":1}]')}) as (
        made,
        engine,
    ):
        for _ in range(3):
            (found,) = await engine.list_containers(["x=y"])
            assert (found.id, found.state, found.labels) == ("a", "running", None)
        assert [request.split("?")[0] for request in made.requests] == ["GET /version"] + [
            "GET /v1.41/containers/json"
        ] * 3
        assert made.connections == 1


async def test_a_connection_that_the_server_has_closed_is_made_again(tmp_path: Path) -> None:
    async with serving(tmp_path, {}) as (made, engine):
        made.close_after = True
        for _ in range(3):
            await engine.start("c")
        assert [request for request in made.requests if "start" in request] == ["POST /v1.41/containers/c/start"] * 3


async def test_a_refusal_has_dockers_words_and_status(tmp_path: Path) -> None:
    answers = {"/json": ok(b'{"message":"No such container: c"}', "404 Not Found"), "/kill": ok(b"<html>", "500 Oh")}
    async with serving(tmp_path, answers) as (_, engine):
        with pytest.raises(EngineError, match=r"^No such container: c$") as caught:
            await engine.inspect("c")
        assert caught.value.is_not_found
        with pytest.raises(EngineError, match=r"^<html>$"):
            await engine.kill("c", "KILL")
        await engine.remove("c")


async def test_a_removal_that_another_call_has_begun_is_waited_for(tmp_path: Path) -> None:
    busy = ok(b'{"message":"removal of container c is already in progress"}', "409 Conflict")
    answers: dict[str, bytes | list[bytes]] = {"/containers/c": [busy, busy, ok(b"", "404 Not Found")]}
    async with serving(tmp_path, answers) as (made, engine):
        await engine.remove("c")
        assert [request for request in made.requests if "DELETE" in request] == [
            "DELETE /v1.41/containers/c?v=1&force=1"
        ] * 3
        assert not engine.lost.is_set()


async def test_a_call_without_an_answer_is_noted(tmp_path: Path) -> None:
    """What it has done is not known, so what there is has to be looked at again."""
    async with serving(tmp_path, {"/kill": b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n"}) as (made, engine):
        await engine.start("c")
        assert not engine.lost.is_set()
        made.close_after = True
        with pytest.raises(EngineError):
            await engine.kill("c", "KILL")
        assert engine.lost.is_set()


async def test_a_call_that_an_engine_lacks_is_no_missing_object(tmp_path: Path) -> None:
    async with serving(tmp_path, {"/update": ok(b"Not Found\n", "404 Not Found")}) as (_, engine):
        with pytest.raises(EngineError) as caught:
            await engine.update("c", docker.Resources())
        assert not caught.value.is_not_found
        assert rpc_error(caught.value).code is Code.UNIMPLEMENTED


async def test_a_daemon_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.sock"
    with pytest.raises(EngineError) as caught:
        await Engine(str(path)).version()
    assert (
        caught.value.message
        == f"Docker Engine cannot be reached at {path}: No such file or directory; is dockerd running?"
    )


async def test_an_answer_that_does_not_come_ends_in_time(tmp_path: Path) -> None:
    async with serving(tmp_path, {"/hang": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"}) as (_, engine):
        engine = Engine(engine.path, 0.2)
        with pytest.raises(
            EngineError, match=r"no answer of Docker Engine to GET /v1\.41/containers/hang/json within 0\.2 s"
        ):
            await engine.inspect("hang")


@pytest.mark.parametrize("body", [b"[]", b'{"Id":3}', b"{", b""])
async def test_an_answer_that_cannot_be_read_is_an_error(tmp_path: Path, body: bytes) -> None:
    async with serving(tmp_path, {"/containers/c/json": ok(body)}) as (_, engine):
        with pytest.raises(EngineError, match="cannot be read"):
            await engine.inspect("c")


async def test_a_pull_fails_with_the_words_in_its_progress(tmp_path: Path) -> None:
    lines = b'{"status":"Pulling"}\n{"error":"manifest unknown"}\n'
    async with serving(tmp_path, {"/images/create": ok(lines)}) as (made, engine):
        with pytest.raises(EngineError, match=r"^manifest unknown$"):
            await engine.pull("a/b:1", "")
        assert made.requests[-1] == "POST /v1.41/images/create?fromImage=a%2Fb%3A1"


async def test_shared_layers_are_counted_once_where_docker_can(tmp_path: Path) -> None:
    sizes = {
        "/images/json": ok(b'[{"Id":"a","Size":70},{"Id":"b","Size":80}]'),
        "/system/df?type=image": ok(b'{"LayersSize":90}'),
    }
    async with serving(tmp_path, sizes) as (_, engine):
        assert await engine.images_size() == 150
    newer = {"/version": ok(VERSION.replace(b"1.41", b"1.42")), **sizes}
    async with serving(tmp_path, newer) as (_, engine):
        assert await engine.images_size() == 90


async def test_a_pull_without_progress_ends(tmp_path: Path) -> None:
    begun = b'{"status":"Pulling"}\n'
    answers = {"/images/create": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + begun}
    async with serving(tmp_path, answers) as (_, engine):
        with pytest.raises(EngineError, match=r"^no progress within 0\.2 s$"):
            await engine.pull("busybox:1", "", idle_s=0.2)


async def test_a_taken_over_connection_carries_raw_bytes(tmp_path: Path) -> None:
    switched = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\nhello"
    answers = {"/exec/e/start": switched, "/exec/x/start": ok(b'{"message":"gone"}', "409 Conflict")}
    async with serving(tmp_path, answers) as (_, engine):
        stream = await engine.start_exec("e", tty=False)
        assert await stream.read() == b"hello"
        stream.close()
        with pytest.raises(EngineError, match=r"^gone$") as caught:
            await engine.start_exec("x", tty=False)
        assert caught.value.is_conflict


@pytest.mark.parametrize(
    ("newest", "oldest", "agreed"),
    [("1.41", "1.12", (1, 41)), ("1.52", "1.44", (1, 47)), ("1.44", "1.24", (1, 44))],
)
def test_the_newest_common_version_is_used(newest: str, oldest: str, agreed: tuple[int, int]) -> None:
    assert agreed_version(docker.EngineVersion("x", newest, oldest)) == agreed


@pytest.mark.parametrize(("newest", "oldest"), [("1.40", "1.12"), ("1.60", "1.48"), ("", ""), ("x.y", "1")])
def test_a_daemon_of_another_time_is_refused_with_both_ranges(newest: str, oldest: str) -> None:
    with pytest.raises(EngineError, match=r"this program needs 1\.41 to 1\.47"):
        agreed_version(docker.EngineVersion("x", newest, oldest))


async def test_lines_come_whole_and_have_a_bound() -> None:
    async def parts(*given: bytes) -> AsyncIterator[bytes]:
        for part in given:
            yield part

    assert [line async for line in lines_of(parts(b"a", b"b\nc\n\nd", b""))] == [b"ab", b"c", b"d"]
    long = [b"x" * 65536] * (MAX_LINE // 65536 + 2)
    assert [line async for line in lines_of(parts(b"a\n", *long, b"x\nb\n", b"c"))] == [b"a", b"b", b"c"]


def test_stdout_and_stderr_are_separated_however_it_is_cut() -> None:
    stream = (
        b"\x01\x00\x00\x00\x00\x00\x00\x03abc"
        + b"\x02\x00\x00\x00\x00\x00\x00\x02de"
        + b"\x01\x00\x00\x00\x00\x00\x00\x00"
    )
    for size in range(1, len(stream) + 1):
        reader, outputs = OutputReader(), {False: b"", True: b""}
        for at in range(0, len(stream), size):
            for is_stderr, piece in reader.feed(stream[at : at + size]):
                outputs[is_stderr] += piece
        assert outputs == {False: b"abc", True: b"de"}


async def test_a_container_of_others_is_not_found(tmp_path: Path) -> None:
    async with serving(tmp_path, {"/containers/c/json": ok(b'{"Id":"c","Config":{"Labels":{"a":"b"}}}')}) as (
        made,
        engine,
    ):
        assert await engine.find("c", "a=b") is not None
        assert await engine.find("c", "a=x") is None
        made.answers["/containers/c/json"] = ok(b'{"message":"No such container"}', "404 Not Found")
        assert await engine.find("c", "a=b") is None
