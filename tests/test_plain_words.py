"""Words with a private meaning stay out of code and documents; Kubernetes and plain technical English have others."""

from __future__ import annotations

import ast
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
#: "A pod whose volumes are mounted" is plain, and shorter than any other way. Where a second clause is around it, or begins between it
#: and its noun, a reader has to sort out which belongs to which: two in one line, or one after a preposition.
TANGLED = re.compile(
    r"\bwhose\b.*\bwhose\b"
    r"|\b(?:of|in|on|at|to|for|by|with|after|before|from|under|below|through|against|into) whose\b",
    re.IGNORECASE,
)
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
#: Names of variables that do not name the thing: `one`, `_one`, `this_one`, `it`.
NAMELESS = re.compile(r"(?:\w*_)?ones?|_?(?:it|things?|stuff)")
#: Only modules with such a name before one of these, as where something is bound, are parsed.
NAMELESS_HINT = re.compile(rf"(?<![\w`\"'-])(?:{NAMELESS.pattern})(?: in\b| if\b| :?=|[,:)=\]}}])")


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


def bound_in(node: ast.AST) -> str:
    """The name that the node gives to a variable, an attribute or a parameter; empty if it is no such node."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
            return name
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.ExceptHandler(name=str(name)):
            return name
    return ""


def nameless_in(text: str) -> Iterator[tuple[int, str]]:
    """Line numbers and names of the variables of a module that do not name the thing."""
    if NAMELESS_HINT.search(text) is None:
        return
    for node in ast.walk(ast.parse(text)):
        if NAMELESS.fullmatch(name := bound_in(node)):
            yield getattr(node, "lineno", 0), name


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


def test_a_clause_with_whose_is_read_once() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{number}: {match[0]}"
        for file in files()
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if "whose" in line and (match := TANGLED.search(line)) is not None
    ]
    assert not found, "make two sentences, or use `with`, `of` or a name:\n" + "\n".join(found)


def test_identifiers_are_split() -> None:
    assert list(found_in("has_room = NextTurn.TOLD\nin turn: floors")) == [
        (1, "room"), (1, "Turn"), (1, "TOLD"), (2, "floors"),
    ]  # fmt: skip


def test_variables_name_the_thing() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{number}: {name} (write the word for the thing: pod, container, volume, line)"
        for file in files()
        if file.suffix == ".py"
        for number, name in nameless_in(file.read_text())
    ]
    assert not found, "\n".join(found)


def test_every_way_to_name_a_variable_is_seen() -> None:
    ways = (
        "one = 1", "ones: int = 1", "_one, b = c", "self.this_one = 1", "for one in a: ...", "[1 for _, one in a]",
        "if one := a(): ...", "with a as one: ...", "try: ...\nexcept E as one: ...", "def f(one): ...", "lambda *one: 1",
        "match a:\n    case [*one]: ...", "match a:\n    case {'a': one}: ...", "match a:\n    case 1 as one if b: ...",
    )  # fmt: skip
    assert [way for way in ways if not list(nameless_in(way))] == []
    assert list(nameless_in("one_pod = stone = f(one=1)  # for one in prose, one: two")) == []
