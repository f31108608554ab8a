"""HPACK, the header compression of HTTP/2: reading all of it, writing the simplest of it.

Owns: `HeaderReader`, which follows the peer's dynamic table, and `literal`, which uses none. Answers to calls are the same
few blocks again and again, so a block that was read is known until the table changes.

Source: RFC 7541.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

#: Ours to grant; this is what HTTP/2 starts with (SETTINGS_HEADER_TABLE_SIZE).
TABLE_BYTES = 4096
_ENTRY_OVERHEAD = 32
_KNOWN_BLOCKS = 256

Headers = tuple[tuple[str, str], ...]

# RFC 7541, appendix A.
_VALUELESS = (
    "accept-language accept-ranges accept access-control-allow-origin age allow authorization cache-control "
    "content-disposition content-encoding content-language content-length content-location content-range "
    "content-type cookie date etag expect expires from host if-match if-modified-since if-none-match if-range "
    "if-unmodified-since last-modified link location max-forwards proxy-authenticate proxy-authorization range "
    "referer refresh retry-after server set-cookie strict-transport-security transfer-encoding user-agent vary "
    "via www-authenticate"
)
_STATIC: Headers = (
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    *((":status", code) for code in ("200", "204", "206", "304", "400", "404", "500")),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    *((name, "") for name in _VALUELESS.split()),
)

# RFC 7541, appendix B: the symbols of each length of code. The code is canonical: within a length and from one length
# to the next, codes just count up. The end-of-string code (30 bits) is never sent, so it stands for nothing.
_SYMBOLS = {
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b'!"()?',
    11: b"'+|",
    12: b"#>",
    13: b"\x00$@[]~",
    14: b"^}",
    15: b"<`{",
    19: b"\\\xc3\xd0",
    20: bytes.fromhex("80 82 83 a2 b8 c2 e0 e2"),
    21: bytes.fromhex("99 a1 a7 ac b0 b1 b3 d1 d8 d9 e3 e5 e6"),
    22: bytes.fromhex("81 84 85 86 88 92 9a 9c a0 a3 a4 a9 aa ad b2 b5 b9 ba bb bd be c4 c6 e4 e8 e9"),
    23: bytes.fromhex("01 87 89 8a 8b 8c 8d 8f 93 95 96 97 98 9b 9d 9e a5 a6 a8 ae af b4 b6 b7 bc bf c5 e7 ef"),
    24: bytes.fromhex("09 8e 90 91 94 9f ab ce d7 e1 ec ed"),
    25: bytes.fromhex("c7 cf ea eb"),
    26: bytes.fromhex("c0 c1 c8 c9 ca cd d2 d5 da db ee f0 f2 f3 ff"),
    27: bytes.fromhex("cb cc d3 d4 d6 dd de df f1 f4 f5 f6 f7 f8 fa fb fc fd fe"),
    28: bytes.fromhex("02 03 04 05 06 07 08 0b 0c 0e 0f 10 11 12 13 14 15 17 18 19 1a 1b 1c 1d 1e 1f 7f dc f9"),
    30: b"\n\r\x16",
}


class HpackError(Exception):
    """The peer's header block cannot be understood; the connection cannot go on."""


def _canonical() -> tuple[tuple[int, int, bytes], ...]:
    """Length of code, first code of that length, its symbols."""
    codes, code, before = [], 0, 0
    for length, symbols in _SYMBOLS.items():
        code <<= length - before
        codes.append((length, code, symbols))
        code, before = code + len(symbols), length
    return tuple(codes)


_CODES = _canonical()


def huffman_decoded(data: bytes) -> bytes:
    """Raises HpackError for a code that stands for nothing, and for wrong padding."""
    out = bytearray()
    bits = held = 0
    for byte in data:
        bits, held = bits << 8 | byte, held + 8
        while found := _first_symbol(bits, held):
            symbol, length = found
            out.append(symbol)
            held -= length
            bits &= (1 << held) - 1
    if held > 7 or bits != (1 << held) - 1:
        raise HpackError("a Huffman string ends in the middle of a code, or in one that stands for nothing")
    return bytes(out)


def _first_symbol(bits: int, held: int) -> tuple[int, int] | None:
    """The symbol at the front of `held` bits and the length of its code; None when more bits are needed."""
    for length, first, symbols in _CODES:
        if length > held:
            return None
        place = (bits >> (held - length)) - first
        if place < len(symbols):
            return symbols[place], length
    raise HpackError("a Huffman code that stands for nothing")


def literal(name: str, value: str) -> bytes:
    """One header field that leaves no trace in the peer's table."""
    index = next((i for i, entry in enumerate(_STATIC, 1) if entry[0] == name), 0)
    start = _integer(index, 4) if index else b"\x00" + _string(name)
    return start + _string(value)


def indexed(name: str, value: str) -> bytes:
    """One header field that the static table has whole; ValueError when it has not."""
    return _integer(_STATIC.index((name, value)) + 1, 7, 0x80)


def _integer(value: int, prefix: int, first: int = 0) -> bytes:
    limit = (1 << prefix) - 1
    if value < limit:
        return bytes((first | value,))
    coded = bytearray((first | limit,))
    value -= limit
    while value > 0x7F:
        coded.append(value & 0x7F | 0x80)
        value >>= 7
    coded.append(value)
    return bytes(coded)


def _string(text: str) -> bytes:
    data = text.encode()
    return _integer(len(data), 7) + data


class HeaderReader:
    """Reads the header blocks of one connection, in the order in which they came."""

    def __init__(self) -> None:
        self._table: deque[tuple[str, str]] = deque()
        self._bytes = 0
        self._limit = TABLE_BYTES
        self._known: dict[bytes, Headers] = {}
        self._changed = False

    def read(self, block: bytes) -> Headers:
        """The fields of a whole block, in their order. Raises HpackError."""
        known = self._known.get(block)
        if known is not None:
            return known
        self._changed = False
        try:
            headers = tuple(self._fields(block))
        except IndexError as error:
            raise HpackError("a header block is cut short") from error
        if self._changed or len(self._known) >= _KNOWN_BLOCKS:
            self._known.clear()
        if not self._changed:
            self._known[block] = headers
        return headers

    def _fields(self, block: bytes) -> Iterator[tuple[str, str]]:
        position = 0
        while position < len(block):
            first = block[position]
            if first & 0x80:
                index, position = _read_integer(block, position, 7)
                yield self._entry(index)
            elif first & 0xE0 == 0x20:
                limit, position = _read_integer(block, position, 5)
                self._resize(limit)
            else:
                keeps = bool(first & 0x40)
                index, position = _read_integer(block, position, 6 if keeps else 4)
                if index:
                    name = self._entry(index)[0]
                else:
                    name, position = _read_string(block, position)
                value, position = _read_string(block, position)
                if keeps:
                    self._keep(name, value)
                yield name, value

    def _entry(self, index: int) -> tuple[str, str]:
        if 0 < index <= len(_STATIC):
            return _STATIC[index - 1]
        if 0 < index <= len(_STATIC) + len(self._table):
            return self._table[index - len(_STATIC) - 1]
        raise HpackError(f"there is no header field {index}")

    def _keep(self, name: str, value: str) -> None:
        self._changed = True
        self._table.appendleft((name, value))
        self._bytes += _size(name, value)
        self._evict()

    def _resize(self, limit: int) -> None:
        if limit > TABLE_BYTES:
            raise HpackError(f"a header table of {limit} bytes was not granted")
        self._changed = True
        self._limit = limit
        self._evict()

    def _evict(self) -> None:
        while self._bytes > self._limit:
            self._bytes -= _size(*self._table.pop())


def _size(name: str, value: str) -> int:
    return len(name) + len(value) + _ENTRY_OVERHEAD  # latin-1: one byte each


def _read_integer(block: bytes, position: int, prefix: int) -> tuple[int, int]:
    limit = (1 << prefix) - 1
    value = block[position] & limit
    position += 1
    if value < limit:
        return value, position
    for shift in range(0, 28, 7):
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise HpackError("a number in a header block is too large")


def _read_string(block: bytes, position: int) -> tuple[str, int]:
    is_huffman = bool(block[position] & 0x80)
    length, position = _read_integer(block, position, 7)
    data = block[position : position + length]
    if len(data) < length:
        raise HpackError("a header block is cut short")
    text = huffman_decoded(data) if is_huffman else data
    # gRPC's own fields are ASCII; what is not is shown as it came
    return text.decode("latin-1"), position + length
