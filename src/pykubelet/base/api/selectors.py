"""Makes and reads field selectors, the text by which a request to the API server chooses objects. Pure.

Source: the Kubernetes documentation "Field Selectors"; the escapes are those of apimachinery's package fields: a backslash
before `\\`, `,` and `=`.
"""

from __future__ import annotations

from collections.abc import Iterator

_ESCAPES = str.maketrans({"\\": "\\\\", ",": "\\,", "=": "\\="})


def field_selector(*wanted: tuple[str, str]) -> str:
    """The selector of objects whose fields have these values. `wanted`: paths such as `metadata.name`, with their values."""
    return ",".join(f"{path}={value.translate(_ESCAPES)}" for path, value in wanted)


def read_field_selector(text: str) -> list[tuple[str, bool, str]]:
    """The requirements of a selector: the path of a field, whether it must have the value or must not, and the value.

    Raises ValueError with the API server's text.
    """
    return [_requirement(text, part) for part in _split(text) if part]


def _requirement(text: str, part: str) -> tuple[str, bool, str]:
    path, mark, value = part.partition("=")
    if not mark:
        raise ValueError(f"invalid selector: '{text}'; can't understand '{part}'")
    is_negated = path.endswith("!")
    return path.removesuffix("!"), not is_negated, _unescaped(value if is_negated else value.removeprefix("="))


def _split(text: str) -> Iterator[str]:
    """The text between commas without a backslash before them."""
    part: list[str] = []
    is_escaped = False
    for char in text:
        if char == "," and not is_escaped:
            yield "".join(part)
            part = []
            continue
        part.append(char)
        is_escaped = char == "\\" and not is_escaped
    yield "".join(part)


def _unescaped(value: str) -> str:
    found: list[str] = []
    is_escaped = False
    for char in value:
        if is_escaped and char not in "\\,=":
            raise ValueError(f"invalid field selector: invalid escape sequence: \\{char}")
        if not is_escaped and char in ",=":
            raise ValueError(f"invalid field selector: unescaped character in value: {ord(char)}")
        is_escaped = char == "\\" and not is_escaped
        if not is_escaped:
            found.append(char)
    if is_escaped:
        raise ValueError("invalid field selector: invalid escape sequence: \\")
    return "".join(found)
