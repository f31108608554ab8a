"""Remarks about files that are used nevertheless: fields that are unknown or given twice, and further documents. Pure.

What is only remarked, and what is an error, is as in the reference kubelet: `docs/decisions/0037-unknown-fields-are-remarks.md`.
"""

from __future__ import annotations

from collections.abc import Collection

from pykubelet.base.api.document import Document
from pykubelet.base.kit.values import Value

#: Characters of a path and of a reason, because both may quote the file.
MAX_WORDS = 1024
#: The most known fields that are listed if none is like the unknown one.
MAX_KNOWN = 10


class Remark(Value):
    """Something to know about a file or the answer of a URL (`origin`). `uid`: of the pod that it is about, if it is one pod.

    `document`: which one of several it is about, as text.
    """

    origin: str
    field_path: str
    reason: str
    uid: str = ""
    document: str = ""

    @property
    def text(self) -> str:
        return f"{self.field_path}: {self.reason}" if self.field_path else self.reason

    @property
    def line(self) -> str:
        """`text` after the name of the file or URL."""
        return f"{place_of(self.origin, self.document)}: {self.text}"


def place_of(origin: str, document: str) -> str:
    """The file or URL, and the document in it."""
    return f"{origin} ({document})" if document else origin


def cut(words: str) -> str:
    """At most `MAX_WORDS` characters."""
    return words if len(words) <= MAX_WORDS else words[:MAX_WORDS] + "..."


def unknown_field(origin: str, path: str, near: str | None, known: Collection[str], uid: str = "") -> Remark:
    """The remark about an unknown field. `near`: the one that was probably meant. `known`: all that may be there."""
    if near:
        instead = f'; did you mean "{near}"?'
    else:
        instead = f"; known are {', '.join(known)}" if len(known) <= MAX_KNOWN else ""
    return Remark(origin, cut(path), cut(f"unknown field, ignored{instead}"), uid)


def document_remarks(origin: str, document: Document) -> list[Remark]:
    """The remarks about how a document is written."""
    found = [
        Remark(origin, cut(path), f"duplicate field{_line(line)}: the last value counts{'' if line else _MERGED}")
        for path, line in document.duplicates
    ]
    if document.more:
        found.append(Remark(origin, "", f"more than one document{_line(document.more)}: only the first one counts"))
    return found


#: Of JSON: the numbers of its lines are not known.
_MERGED = ", and objects are merged"


def _line(number: int) -> str:
    return f" (line {number})" if number else ""
