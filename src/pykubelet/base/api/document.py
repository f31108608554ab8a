"""What is read of a document, the error, and the limits of its readers (`documents.py`). Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

#: The most values of a document, with aliases and merge keys expanded. A manifest has a few hundred.
MAX_NODES = 500_000
#: The most nested levels of maps and lists. The deepest field of a Pod is at about level 15.
MAX_DEPTH = 100
#: The most characters of a key. Label and annotation keys have at most 317.
MAX_KEY = 1024
#: The most duplicate keys that are noted.
MAX_DUPLICATES = 20

TOO_DEEP = f"nested too deeply: at most {MAX_DEPTH} levels are allowed"
TOO_MANY = f"too many values: at most {MAX_NODES} are allowed, aliases and merge keys expanded"
LONG_KEY = f"a key is too long: at most {MAX_KEY} characters are allowed"


class DocumentError(ValueError):
    """The text is not a single valid YAML or JSON document. `path`: of the field; "" if the whole document is wrong."""

    def __init__(self, reason: str, line: int = 0, path: str = "") -> None:
        self.words, self.line, self.path = reason, line, path
        self.reason = f"{reason} (line {line})" if line else reason
        super().__init__(f"{path}: {self.reason}" if path else self.reason)

    def below(self, lines: int) -> DocumentError:
        """The error with the line in a text that has so many lines before the document."""
        return type(self)(self.words, self.line + lines if self.line else 0, self.path)


class Place(NamedTuple):
    """A place in a document. `line`: 0 if it is not known, as in JSON."""

    path: str
    line: int


def duplicate_error(place: Place) -> DocumentError:
    """The error about a duplicate key, where that is one."""
    return DocumentError("duplicate field: must be given once", place.line, place.path)


class Document(NamedTuple):
    """The value of a text. `duplicates`: the first keys that were given again in one map; `more`: the line of a second document, or 0.

    `nodes`: its values, with aliases and merge keys expanded. `is_json`: it was read as JSON.
    """

    value: Any
    duplicates: tuple[Place, ...] = ()
    more: int = 0
    nodes: int = 0
    is_json: bool = False

    def below(self, lines: int) -> Document:
        """The document with the lines in a text that has so many lines before it."""
        places = tuple(Place(path, line + lines if line else 0) for path, line in self.duplicates)
        return self._replace(duplicates=places)
