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


def read_field_selector(text: str) -> Iterator[tuple[str, bool, str]]:
    """The requirements of a selector: the path of a field, whether it must have the value or must not, and the value."""
    for part in _split(text):
        path, mark, value = part.partition("=")
        is_negated = path.endswith("!")
        if path or mark:
            yield path.removesuffix("!"), not is_negated, _unescaped(value if is_negated else value.removeprefix("="))


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
        is_escaped = char == "\\" and not is_escaped
        if not is_escaped:
            found.append(char)
    return "".join(found)
