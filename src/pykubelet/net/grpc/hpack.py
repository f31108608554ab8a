"""HPACK, the header compression of HTTP/2: decoding with the `hpack` library, and the simplest form of encoding.

Owns: `HeaderReader`, which follows the peer's dynamic table within limits, and `literal`, which uses no table. The answers to
calls consist of the same few blocks, so decoded blocks are cached until the table changes.

Source: RFC 7541.
"""

from __future__ import annotations

from hpack import Decoder, HPACKError, OversizedHeaderListError
from hpack.hpack import encode_integer
from hpack.table import HeaderTable

#: The number and size of cached blocks: the headers of an answer have about 100 bytes, its trailers 20.
_KNOWN_BLOCKS = 64
_KNOWN_FIELDS = 16
_KNOWN_BYTES = 1024
#: RFC 7541, section 4.2: between two blocks, the table may change to the smallest size, then to the final one.
_MAX_RESIZES = 2

Headers = tuple[tuple[str, str], ...]


class HpackError(Exception):
    """The peer's header block cannot be decoded. The connection must end."""


class HeadersTooLarge(HpackError):
    """A header block is larger than allowed. The connection must end."""


def literal(name: str, value: str) -> bytes:
    """Encode a header field without adding it to the peer's table."""
    raw = name.encode()
    index, _ = HeaderTable.STATIC_TABLE_MAPPING.get(raw, (0, None))
    start = bytes(encode_integer(index, 4)) if index else b"\x00" + _string(raw)
    return start + _string(value.encode())


def indexed(name: str, value: str) -> bytes:
    """Encode a header field that is in the static table with its value. Raises ValueError if it is not."""
    index = HeaderTable.STATIC_TABLE.index((name.encode(), value.encode())) + 1
    return bytes((0x80 | index,))


def _string(data: bytes) -> bytes:
    return bytes(encode_integer(len(data), 7)) + data


class HeaderReader:
    """Decodes the header blocks of one connection, which must be passed in the order of their arrival.

    `limit`: the most bytes of a block, encoded and decoded. Decoded, each field counts 32 bytes more than its name and value.
    """

    def __init__(self, limit: int) -> None:
        self._decoder = Decoder(limit)
        self._limit = limit
        self._known: dict[bytes, Headers] = {}

    def read(self, block: bytes) -> Headers:
        """Decode the fields of a whole block, in their order. Raises HpackError."""
        known = self._known.get(block)
        if known is not None:
            return known
        if len(block) > self._limit:
            raise HeadersTooLarge(f"a header block of {len(block)} bytes")
        _check_resizes(block)
        table = self._decoder.header_table
        newest, count, size = self._newest, len(table.dynamic_entries), table.maxsize
        try:
            fields = self._decoder.decode(block, raw=True)
        except OversizedHeaderListError as error:
            raise HeadersTooLarge(str(error)) from error
        except HPACKError as error:
            raise HpackError(f"a header block that cannot be decoded: {str(error)[:100]}") from error
        # gRPC's own fields are ASCII; other bytes are kept by decoding as Latin-1
        headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in fields)
        is_changed = newest is not self._newest or (count, size) != (len(table.dynamic_entries), table.maxsize)
        if is_changed or len(self._known) >= _KNOWN_BLOCKS:
            self._known.clear()
        if not is_changed and _is_small(block, headers):
            self._known[block] = headers
        return headers

    @property
    def _newest(self) -> tuple[bytes, bytes] | None:
        """The newest entry of the dynamic table. It is another object after each addition."""
        entries = self._decoder.header_table.dynamic_entries
        return entries[0] if entries else None


def _is_small(block: bytes, headers: Headers) -> bool:
    size = len(block) + sum(len(name) + len(value) for name, value in headers)
    return len(headers) <= _KNOWN_FIELDS and size <= _KNOWN_BYTES


def _check_resizes(block: bytes) -> None:
    """Refuse too many changes of the table's size before the first field, because the library accepts any number."""
    position = resizes = 0
    while position < len(block) and block[position] & 0xE0 == 0x20:
        resizes += 1
        if resizes > _MAX_RESIZES:
            raise HpackError(f"more than {_MAX_RESIZES} changes of the header table's size in one block")
        is_longer = block[position] & 0x1F == 0x1F
        position += 1
        while is_longer and position < len(block):
            is_longer = bool(block[position] & 0x80)
            position += 1
