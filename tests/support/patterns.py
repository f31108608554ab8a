"""Whether a regular expression reads any text in linear time, decided from the pattern.

Python tries the ways in which a text can match one after the other. The time grows faster than the text if there are many
ways: if a word leads from a place of the pattern back to it on two ways (exponential), or if a word leads from a place to
itself, from there to another, and from that to itself (quadratic or worse), and what follows may then fail. A search that
may begin anywhere is a pattern that begins with a place for any character.

Places and steps between them are Glushkov's automaton. Assertions count as empty, and possessive repetitions as others: both
only add ways. Repetitions with a bound count as few, which changes no answer: a bound on the number of ways stays one.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from re import _constants as c  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

#: Bounded repetitions are written out this often at most.
COPIES = 3
ANY = tuple(range(0x80)) + (0xE9, 0x2028, 0x1F600)


class Unsupported(Exception):
    """The pattern has something that is not analysed, such as a reference to a group."""


@dataclass
class _Part:
    """A piece of the pattern: the places that it may begin and end with, and whether it may be empty."""

    first: set[int]
    last: set[int]
    is_empty: bool


@dataclass
class Automaton:
    """`accepts`: the characters of each place, as codes. `next`: the places after each. `final`: where a match may end.
    `twice`: the steps that the pattern offers in two ways, such as the inner and the outer repetition of `(a+)+`.

    `is_whole`: the match has to end where the text ends, so that what follows a final place may still make it fail.
    `has_assertion`: a match may also fail for what is before or after a place.
    """

    accepts: list[frozenset[int]] = field(default_factory=list)
    next: list[set[int]] = field(default_factory=list)
    first: set[int] = field(default_factory=set)
    final: set[int] = field(default_factory=set)
    twice: set[tuple[int, int]] = field(default_factory=set)
    is_whole: bool = False
    has_assertion: bool = False


def automaton(pattern: str | bytes, flags: int, method: str) -> Automaton:
    """That of a pattern used with `fullmatch`, `match`, or a method that searches."""
    text = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
    tree = _parser.parse(text, flags & ~re.UNICODE if isinstance(pattern, bytes) else flags)
    build = _Builder(tree.state.flags)
    part = build.sequence(tree)
    built = build.automaton
    built.is_whole = method == "fullmatch" or built.has_assertion
    if method not in ("fullmatch", "match") and not _is_anchored(tree):
        start = build.place(frozenset(ANY))
        built.next[start] = {start, *part.first}
        part.first.add(start)
    built.first, built.final = part.first, part.last
    return built


def _is_anchored(tree: Any) -> bool:
    return (
        bool(len(tree))
        and tree[0] in ((c.AT, c.AT_BEGINNING), (c.AT, c.AT_BEGINNING_STRING))
        and not (tree.state.flags & re.MULTILINE)
    )


class _Builder:
    def __init__(self, flags: int) -> None:
        self.automaton = Automaton()
        self._flags = flags

    def place(self, accepts: frozenset[int]) -> int:
        self.automaton.accepts.append(accepts)
        self.automaton.next.append(set())
        return len(self.automaton.accepts) - 1

    def _step(self, places: set[int], following: set[int]) -> None:
        for place in places:
            self.automaton.twice |= {(place, after) for after in following & self.automaton.next[place]}
            self.automaton.next[place] |= following

    def sequence(self, items: Iterable[Any]) -> _Part:
        whole = _Part(set(), set(), True)
        for item in items:
            whole = self._then(whole, self._item(*item))
        return whole

    def _then(self, part: _Part, other: _Part) -> _Part:
        self._step(part.last, other.first)
        first = part.first | other.first if part.is_empty else part.first
        last = part.last | other.last if other.is_empty else other.last
        return _Part(set(first), set(last), part.is_empty and other.is_empty)

    def _either(self, parts: list[_Part]) -> _Part:
        if sum(part.is_empty for part in parts) > 1:
            raise Unsupported("two alternatives that may be empty")
        first = set().union(*(part.first for part in parts))
        last = set().union(*(part.last for part in parts))
        return _Part(first, last, any(part.is_empty for part in parts))

    def _item(self, kind: Any, value: Any) -> _Part:
        if kind in (c.LITERAL, c.NOT_LITERAL, c.ANY, c.IN):
            place = self.place(frozenset(code for code in ANY if self._matches(kind, value, code)))
            return _Part({place}, {place}, False)
        if kind is c.SUBPATTERN:
            _, added, removed, items = value
            before, self._flags = self._flags, (self._flags | added) & ~removed
            part = self.sequence(items)
            self._flags = before
            return part
        if kind is c.BRANCH:
            return self._either([self.sequence(items) for items in value[1]])
        if kind in (c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT):
            return self._repeat(*value)
        if kind is c.ATOMIC_GROUP:
            return self.sequence(value)
        if kind in (c.AT, c.ASSERT, c.ASSERT_NOT):
            self.automaton.has_assertion = True
            return _Part(set(), set(), True)
        raise Unsupported(str(kind))

    def _repeat(self, least: int, most: int, items: Any) -> _Part:
        is_endless = most is c.MAXREPEAT
        copies = min(max(least, 1) if is_endless else most, COPIES)
        least = min(least, copies)
        whole = _Part(set(), set(), True)
        for number in range(copies):
            part = self.sequence(items)
            if is_endless and number == copies - 1:
                self._step(part.last, part.first)
            if number >= least:
                part.is_empty = True
            whole = self._then(whole, part)
        return whole

    def _matches(self, kind: Any, value: Any, code: int) -> bool:
        text = chr(code)
        if kind is c.ANY:
            return bool(self._flags & re.DOTALL) or text != "\n"
        if kind is c.IN:
            return any(self._in(item[0], item[1], code) for item in value if item[0] is not c.NEGATE) is not (
                value[0][0] is c.NEGATE
            )
        forms = {text, text.lower(), text.upper()} if self._flags & re.IGNORECASE else {text}
        return (chr(value) in forms) is (kind is c.LITERAL)

    def _in(self, kind: Any, value: Any, code: int) -> bool:
        if kind is c.CATEGORY:
            name = {c.CATEGORY_DIGIT: r"\d", c.CATEGORY_SPACE: r"\s", c.CATEGORY_WORD: r"\w"}.get(value)
            found = (
                name or {c.CATEGORY_NOT_DIGIT: r"\D", c.CATEGORY_NOT_SPACE: r"\S", c.CATEGORY_NOT_WORD: r"\W"}[value]
            )
            return re.fullmatch(found, chr(code), self._flags & re.ASCII) is not None
        text = chr(code)
        codes = {ord(form) for form in (text, text.lower(), text.upper())} if self._flags & re.IGNORECASE else {code}
        return any(value[0] <= candidate <= value[1] if kind is c.RANGE else candidate == value for candidate in codes)


def problem(found: Automaton) -> str:
    """Why a text may take longer than in proportion to its length; "" if none does."""
    loops = _loops(found)
    if any(after in loops.get(place, ()) for place, after in found.twice):
        return "exponential: a repetition within a repetition"
    for place in sorted(loops):
        if _is_reached_twice(found, place, loops[place]):
            return "exponential: a part of a repetition can match in two ways"
    for place in sorted(loops):
        for other in sorted(loops):
            if place != other and _both_repeat(found, place, other, loops):
                return "quadratic: two repetitions can match the same text, one after the other"
    return ""


def _loops(found: Automaton) -> dict[int, set[int]]:
    """For each place from which steps lead back to it: the places on the way."""
    after = {place: _reachable(found, place) for place in range(len(found.next))}
    return {
        place: {other for other in after[place] if place in after[other]} for place in after if place in after[place]
    }


def _reachable(found: Automaton, start: int) -> set[int]:
    seen: set[int] = set()
    todo = [start]
    while todo:
        for place in found.next[todo.pop()] - seen:
            seen.add(place)
            todo.append(place)
    return seen


def _can_fail(found: Automaton, place: int) -> bool:
    """Whether a match that has come to `place` may still fail.

    One that may end there does not, unless it has to be whole and a character may follow that the place does not take.
    """
    takes_all = place in found.next[place] and found.accepts[place] == frozenset(ANY) and not found.has_assertion
    return place not in found.final or (found.is_whole and not takes_all)


def _is_reached_twice(found: Automaton, start: int, loop: set[int]) -> bool:
    """Whether one word leads from `start` to `start` on two ways that differ."""
    if not _can_fail(found, start):
        return False
    seen = {(start, start, False)}
    todo = deque(seen)
    while todo:
        left, right, differ = todo.popleft()
        for a in found.next[left] & loop:
            for b in found.next[right] & loop:
                if not found.accepts[a] & found.accepts[b]:
                    continue
                state = (a, b, differ or a != b)
                if state == (start, start, True):
                    return True
                if state not in seen:
                    seen.add(state)
                    todo.append(state)
    return False


def _both_repeat(found: Automaton, place: int, other: int, loops: dict[int, set[int]]) -> bool:
    """Whether one word leads from `place` to itself, from `place` to `other`, and from `other` to itself."""
    if not _can_fail(found, other) or other not in _reachable(found, place):
        return False
    seen = {(place, place, other)}
    todo = deque(seen)
    while todo:
        first, middle, last = todo.popleft()
        for a in found.next[first] & loops[place]:
            for e in found.next[last] & loops[other]:
                both = found.accepts[a] & found.accepts[e]
                if not both:
                    continue
                for b in found.next[middle]:
                    if not both & found.accepts[b]:
                        continue
                    if (a, b, e) == (place, other, other):
                        return True
                    if (a, b, e) not in seen:
                        seen.add((a, b, e))
                        todo.append((a, b, e))
    return False


def attacks(pattern: str | bytes, flags: int, size: int) -> Iterator[str]:
    """Texts of about `size` characters that repeat what the pattern may begin with, and end so that it fails.

    Each place of the pattern gives some: the shortest word that leads to it once, repeated; and that word, followed by
    the repeated shortest word that leads from the place back to it.
    """
    found = automaton(pattern, flags, "fullmatch")
    words = _shortest_words(found)
    seen = {""}
    for place, word in sorted(words.items()):
        again = _shortest_loop(found, place)
        for head, repeated in ((word, again), ("", word), (word, word)):
            if not repeated:
                continue
            text = head + repeated * ((size - len(head)) // len(repeated))
            if text not in seen:
                seen.add(text)
                for end in ("", "\0", "\n!"):
                    yield text + end


def _char(accepts: frozenset[int]) -> str:
    printable = [code for code in accepts if 0x20 < code < 0x7F]
    return chr(min(printable or accepts))


def _shortest_words(found: Automaton) -> dict[int, str]:
    words = {place: _char(found.accepts[place]) for place in found.first if found.accepts[place]}
    todo = deque(sorted(words))
    while todo:
        place = todo.popleft()
        for after in sorted(found.next[place] - words.keys()):
            if found.accepts[after]:
                words[after] = words[place] + _char(found.accepts[after])
                todo.append(after)
    return words


def _shortest_loop(found: Automaton, start: int) -> str:
    words = {start: ""}
    todo = deque([start])
    while todo:
        place = todo.popleft()
        for after in sorted(found.next[place]):
            if not found.accepts[after]:
                continue
            word = words[place] + _char(found.accepts[after])
            if after == start:
                return word
            if after not in words:
                words[after] = word
                todo.append(after)
    return ""
