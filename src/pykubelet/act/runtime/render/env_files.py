"""Environment files: what another container of the pod wrote into an emptyDir for `fileKeyRef` (KEP-3721). Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from pykubelet.base.kit.values import Value, field

_BLANK = " \t"


UNREADABLE = "couldn't parse env file"


class EnvFile(Value):
    """The variables of a file, as far as they are wanted. `problem`: why further ones cannot be read."""

    variables: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    def find(self, key: str) -> str | None:
        """The value of a wanted variable, "" if it is missing; None if it may be where the file cannot be read."""
        return self.variables.get(key, None if self.problem else "")


def parse_env_file(text: str, wanted: Collection[str]) -> EnvFile:
    """The `wanted` variables of lines `NAME='value'`; the first of a name counts. Values may span lines.

    Empty lines and comments are skipped. White space after the equals sign ends an empty value, as in a shell. Lines after
    one of another form are not read.
    """
    found: dict[str, str] = {}
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    for line in lines:
        line = line.lstrip(_BLANK)
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or name != name.rstrip(_BLANK) or not name:
            return EnvFile(found, UNREADABLE)
        text_of_value: str | None = ""
        if value == value.lstrip(_BLANK):
            text_of_value = _quoted(value, lines)
        if text_of_value is None:
            return EnvFile(found, UNREADABLE)
        if name in wanted:
            found.setdefault(name, text_of_value)
    return EnvFile(found)


def _quoted(value: str, more: Iterator[str]) -> str | None:
    """The text between single quotes; None if anything but a comment follows. `more`: the following lines."""
    if not value.startswith("'"):
        return None
    parts = [value[1:]]
    while "'" not in parts[-1]:
        line = next(more, None)
        if line is None:
            return None
        parts.append(line)
    parts[-1], _, rest = parts[-1].partition("'")
    rest = rest.lstrip(_BLANK)
    return "\n".join(parts) if not rest or rest.startswith("#") else None
