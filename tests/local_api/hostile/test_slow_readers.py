"""Clients that ask for much at once and do not read it: other clients are answered, and little is kept for those."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import msgspec
import pytest
from local_api.hostile.measured import MeasuredApi, measured_api
from local_api.hostile.test_pod_token import CORE, PodClient, may_read_config_maps
from support.cost import bytes_in_use, is_short

from pykubelet_local_api.kinds.schema import load_schemas

MAPS = f"{CORE}/configmaps"
MERGE = "application/merge-patch+json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
#: Connections of one client, and what they may have the server keep in all, beside the connections themselves.
MANY, KEPT_BYTES = 30, 8 << 20
#: A connection with TLS, on both sides in this process.
CONNECTION_BYTES = 256 << 10
LABELS = {"a": "x"} | {f"k{number}": f"value-{number}" for number in range(20_000)}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasuredApi]:
    load_schemas()
    with measured_api(tmp_path_factory.mktemp("api") / "data") as made:
        may_read_config_maps(made)
        assert made.ask("POST", MAPS, {"metadata": {"name": "big", "labels": LABELS}})[0] == 201
        yield made


def opened(pod: PodClient, path: str, accept: str) -> list[http.client.HTTPSConnection]:
    """Many connections of the pod, each with one request."""
    found = [pod.connect() for _ in range(MANY)]
    for connection in found:
        vars(connection)["_create_connection"] = with_small_buffer
        connection.request("GET", path, headers=pod.headers | {"Accept": accept})
    return found


def with_small_buffer(address: tuple[str, int], *_: object) -> socket.socket:
    """A connection for which the kernel keeps little, so that the server keeps what is not read."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.connect(address)
    return made


def version_of(api: MeasuredApi) -> str:
    return str(msgspec.json.decode(api.ask("GET", f"{MAPS}?labelSelector=none")[1])["metadata"]["resourceVersion"])


def answer_of(connection: http.client.HTTPSConnection) -> http.client.HTTPResponse:
    found = connection.getresponse()
    assert found.status == 200
    return found


def closed(connections: Sequence[http.client.HTTPSConnection]) -> None:
    for connection in connections:
        connection.close()


@pytest.mark.parametrize("accept", ["application/json", TABLE])
@pytest.mark.parametrize("selector", ["", "&labelSelector=a", "&fieldSelector=metadata.name%3Dbig"])
def test_many_watches_of_a_large_object_hold_nothing_up(api: MeasuredApi, selector: str, accept: str) -> None:
    pod = PodClient(api)
    watches = opened(pod, f"{MAPS}?watch=1&resourceVersion={version_of(api)}{selector}", accept)
    answers = [answer_of(connection) for connection in watches]
    api.loop.reset()
    assert api.ask("PATCH", f"{MAPS}/big", {"metadata": {"labels": {"b": version_of(api)}}}, MERGE)[0] == 200
    with ThreadPoolExecutor(MANY) as readers:
        lines = list(readers.map(lambda answer: answer.readline(), answers))
    assert {line[:18] for line in lines} == {b'{"type":"MODIFIED"'}
    assert is_short(api.loop.longest_s), f"{api.loop.longest_s * 1000:.0f} ms"
    closed(watches)


@pytest.mark.parametrize(
    "path",
    [
        f"{MAPS}/big",
        MAPS,
        f"{MAPS}?resourceVersion=VERSION&resourceVersionMatch=Exact",
        f"{MAPS}?watch=1",
        f"{MAPS}?watch=1&labelSelector=a",
        f"{MAPS}?watch=1&resourceVersion=VERSION&labelSelector=a",
    ],
)
def test_little_is_kept_for_clients_that_do_not_read(api: MeasuredApi, path: str) -> None:
    pod = PodClient(api)
    version = version_of(api)
    for number in range(2):  # fills caches
        api.ask("PATCH", f"{MAPS}/big", {"metadata": {"labels": {"c": f"{number}"}}}, MERGE)
    settled(api)
    before = bytes_in_use()
    connections = opened(pod, path.replace("VERSION", version), "application/json")
    settled(api)
    kept = bytes_in_use() - before
    assert kept <= KEPT_BYTES + MANY * CONNECTION_BYTES, f"{kept >> 10} KiB while they are connected"
    closed(connections)
    settled(api)
    assert bytes_in_use() - before <= KEPT_BYTES, f"{(bytes_in_use() - before) >> 10} KiB afterwards"


def settled(api: MeasuredApi) -> None:
    """Wait until the server has done what it can."""
    until = time.monotonic() + 30
    idle = 0
    while idle < 20 and time.monotonic() < until:
        api.loop.reset()
        api.ask("GET", "/livez")
        Event().wait(0.1)
        idle = idle + 1 if api.loop.longest_s < 0.005 else 0


def test_other_clients_are_answered_while_one_does_not_read(api: MeasuredApi) -> None:
    pod = PodClient(api)
    connections = opened(pod, f"{MAPS}/big", "application/json")
    settled(api)
    status, data = api.ask("GET", f"{MAPS}/big")
    assert (status, len(msgspec.json.decode(data)["metadata"]["labels"])) >= (200, len(LABELS))
    closed(connections)
