"""What clients and runtimes send, made by hand: the other half of what is tested."""

from __future__ import annotations

from collections.abc import Iterator


def masked(opcode: int, payload: bytes, *, mask: bytes = b"\x37\xfa\x21\x3d", final: bool = True) -> bytes:
    """A client's frame."""
    size = len(payload)
    if size < 126:
        length = bytes((0x80 | size,))
    elif size < 1 << 16:
        length = bytes((0xFE,)) + size.to_bytes(2, "big")
    else:
        length = bytes((0xFF,)) + size.to_bytes(8, "big")
    hidden = bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))
    return bytes((opcode | (0x80 if final else 0),)) + length + mask + hidden


def control(kind: int, payload: bytes = b"", flags: int = 0) -> bytes:
    """A runtime's control frame."""
    return bytes((0x80, 3)) + kind.to_bytes(2, "big") + bytes((flags,)) + len(payload).to_bytes(3, "big") + payload


def reply(*streams: int, flags: int = 0) -> bytes:
    return b"".join(control(2, stream.to_bytes(4, "big") + b"packed headers", flags) for stream in streams)


def reset(stream: int) -> bytes:
    return control(3, stream.to_bytes(4, "big") + bytes((0, 0, 0, 5)))


def data(stream: int, content: bytes, *, last: bool = False) -> bytes:
    return stream.to_bytes(4, "big") + bytes((1 if last else 0,)) + len(content).to_bytes(3, "big") + content


def cut(content: bytes, places: list[int]) -> Iterator[bytes]:
    """The content in pieces that end at these places."""
    ends = sorted({place % (len(content) + 1) for place in places})
    for start, end in zip([0, *ends], [*ends, len(content)], strict=True):
        yield content[start:end]


def messages(output: bytes) -> list[tuple[int, bytes]]:
    """Opcode and payload of a server's frames."""
    found = []
    while output:
        size, at = output[1], 2
        if size == 126:
            size, at = int.from_bytes(output[2:4], "big"), 4
        elif size == 127:
            size, at = int.from_bytes(output[2:10], "big"), 10
        found.append((output[0], output[at : at + size]))
        output = output[at + size :]
    return found
