"""Servers that send what they like, in threads of their own: their CPU time is not the agent's."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Sends to a client of the server until the client has gone, or there is no more to send.
Script = Callable[[socket.socket], None]
LONGEST_S = 20.0


@contextmanager
def serving(script: Script, path: str = "") -> Iterator[int]:
    """The port of a server on loopback that treats each of its clients so, until the block ends. With `path`, on a unix socket."""
    if path:
        made = socket.socket(socket.AF_UNIX)
        made.bind(path)
        made.listen()
    else:
        made = socket.create_server(("127.0.0.1", 0))
    with made as listener:
        listener.settimeout(0.1)
        ended = threading.Event()

        def treat(client: socket.socket) -> None:
            with client, contextlib.suppress(OSError):
                client.settimeout(LONGEST_S)
                script(client)

        def accept() -> None:
            clients = []
            while not ended.is_set():
                with contextlib.suppress(TimeoutError):
                    client, _ = listener.accept()
                    clients.append(threading.Thread(target=treat, args=(client,), daemon=True))
                    clients[-1].start()
            for thread in clients:
                thread.join(LONGEST_S)

        acceptor = threading.Thread(target=accept)
        acceptor.start()
        try:
            yield 0 if path else listener.getsockname()[1]
        finally:
            ended.set()
            acceptor.join()


def sending(data: bytes) -> Script:
    """The same bytes to each, whatever it asks."""

    def script(client: socket.socket) -> None:
        client.recv(65536)
        client.sendall(data)

    return script


def repeating(first: bytes, again: bytes, most_bytes: int = 64 << 20) -> Script:
    """`first`, and then `again` as often as the client takes it."""

    def script(client: socket.socket) -> None:
        client.recv(65536)
        client.sendall(first)
        block = again * max(1, 65536 // len(again))
        for _ in range(most_bytes // len(block)):
            client.sendall(block)

    return script


def mutated(seed: int, data: bytes) -> bytes:
    """Some bytes flipped, removed, doubled or put in; the same for the same seed."""
    chance = random.Random(seed)
    found = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(found) + 1)
        match chance.randrange(5):
            case 0 if at < len(found):
                found[at] ^= 1 << chance.randrange(8)
            case 1:
                del found[at : at + chance.randint(1, 8)]
            case 2:
                found[at:at] = found[max(0, at - chance.randint(1, 64)) : at]
            case 3:
                found[at:at] = chance.randbytes(chance.randint(1, 16))
            case _:
                found[at:at] = bytes([chance.choice(b"\x00\x01\x7f\xff\r\n :;,\x1b")]) * chance.choice([1, 8, 1000])
    return bytes(found)
