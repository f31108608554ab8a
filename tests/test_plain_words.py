"""Words with a private meaning stay out of code and documents; Kubernetes and plain technical English have others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Each with the plain words for it, in singular and plural.
BANNED = {
    "room": "capacity, limit", "floor": "baseline, minimum", "house": "agent", "door": "port", "stranger": "unauthenticated client",
    "lobby": "connection queue", "guest": "client", "happening": "event", "tell": "report", "told": "reported", "said": "sent",
    "says": "states, reports", "lookout": "watcher", "turn": "iteration, slot", "tally": "count", "tallies": "counts",
    "story": "history", "stories": "histories", "newcomer": "new pod", "somebody": "name the party", "nobody": "no caller",
    "anybody": "any client",
}  # fmt: skip
ALLOWED = re.compile(r"\bin turn\b|\bturns? (?:on|off)\b|\bnobody:[x/]|User nobody", re.IGNORECASE)
#: Folders and documents that are held to this.
CHECKED = (
    "src", "tests", "bench", "tools", "debian", "docs", "examples", "Makefile",
    "README.md", "ARCHITECTURE.md", "SCOPE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md",
)  # fmt: skip
#: This module lists the words.
EXEMPT = ("tests/test_plain_words.py",)
SUFFIXES = {".py", ".md", ".js", ".css", ".html", ".yaml", ".yml", ".toml", ".sh", ""}
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
#: Only lines with one of these letter sequences are split into words, which are a hundredth of all.
HINT = re.compile("|".join(BANNED), re.IGNORECASE)


def banned(word: str) -> bool:
    """Whether the word, or its singular, is in the list."""
    lower = word.lower()
    return lower in BANNED or lower.removesuffix("s") in BANNED


def found_in(text: str) -> Iterator[tuple[int, str]]:
    """Line numbers and banned words; identifiers are split at underscores and capitals."""
    for number, line in enumerate(text.splitlines(), 1):
        if HINT.search(line) is None:
            continue
        for word in WORD.findall(ALLOWED.sub("", line)):
            if banned(word):
                yield number, word


def files() -> Iterator[Path]:
    """The files to check, without generated ones."""
    for name in CHECKED:
        path = ROOT / name
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if (
                file.is_file()
                and file.suffix in SUFFIXES
                and not file.name.endswith("_pb2.py")
                and str(file.relative_to(ROOT)) not in EXEMPT
            ):
                yield file


def test_no_private_words() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{number}: {word} (write: {BANNED.get(word.lower()) or BANNED[word.lower().removesuffix('s')]})"
        for file in files()
        for number, word in found_in(file.read_text())
    ]
    assert not found, "\n".join(found)


def test_identifiers_are_split() -> None:
    assert list(found_in("has_room = NextTurn.TOLD\nin turn: floors")) == [
        (1, "room"), (1, "Turn"), (1, "TOLD"), (2, "floors"),
    ]  # fmt: skip
