"""What is wrong with a text that is no JSON, in the words of the API server. Pure; the cost is linear in the text."""

from __future__ import annotations

import json
import re

#: Of the body of a request, messages show so many bytes.
SUMMARY_BYTES = 30
_STRUCTURE = re.compile(r'[][{}"]|\\.', re.DOTALL)
_WHERE = {
    "Expecting value": "looking for beginning of value",
    "Extra data": "after top-level value",
    "Expecting property name enclosed in double quotes": "looking for beginning of object key string",
    "Expecting ':' delimiter": "after object key",
    "Invalid control character at": "in string literal",
}


def json_error(data: bytes) -> str:
    """Why this is no JSON; "" if it is."""
    text = data.decode(errors="replace") if _is_text(data) else data.decode("latin-1")
    try:
        json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        found, at = error.msg, error.pos
        if found == "Expecting ',' delimiter":
            where = f"after {_container(text, at)}"
        elif found.startswith("Invalid \\"):
            where, at = "in string escape code", at + 1
        else:
            where = _WHERE.get(found, "")
        if at >= len(text) or not where:
            return "unexpected end of JSON input"
        return f"invalid character {_quoted(text[at])} {where}"
    except RecursionError:
        return "exceeded max depth"
    except ValueError as error:
        return str(error)
    return ""


def summary(data: bytes) -> str:
    """The beginning of a body, as messages show it."""
    if not data:
        return "<empty>"
    shown = data[:SUMMARY_BYTES]
    text = shown.decode(errors="replace") if data[:1] == b"{" else shown.hex()
    return text + (" ..." if len(data) > SUMMARY_BYTES else "")


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _refuse(name: str) -> None:
    raise ValueError(f"invalid character {_quoted(name[0])} looking for beginning of value")


def _container(text: str, end: int) -> str:
    """What the value before this place belongs to."""
    opened: list[str] = []
    is_in_string = False
    for match in _STRUCTURE.finditer(text, 0, end):
        if match[0] == '"':
            is_in_string = not is_in_string
        elif not is_in_string and match[0] in "[{":
            opened.append(match[0])
        elif not is_in_string and match[0] in "]}":
            del opened[-1:]
    return "object key:value pair" if opened[-1:] == ["{"] else "array element"


def _quoted(char: str) -> str:
    return {"'": "'\\''", '"': "'\"'"}.get(char) or (
        f"'{char}'" if char.isprintable() else f"'{json.dumps(char)[1:-1]}'"
    )
