"""Arguments and variables of a program: their `$(NAME)` references, and how long Linux lets one and all of them be. Pure.

Rules (source: Kubernetes docs, "Define Dependent Environment Variables"): `$(NAME)` is replaced by the value of NAME;
`$$` is a literal `$`, so `$$(NAME)` stays `$(NAME)`; a reference to an unknown name, a `$` before anything else, and an
unclosed `$(` stay as they are. Inserted values are not expanded again. A text is read once, from left to right.

A container whose command, arguments or environment are larger cannot be started by any runtime, so they are refused
while they are built. Sizes are bytes. Source: execve(2), "Limits on size of arguments and environment".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence


class TooLongError(ValueError):
    """The expanded text is longer than it may be."""


def expand(text: str, *variables: Mapping[str, str], most: int) -> str:
    """`text` with its references resolved; the first mapping that has the name wins.

    Raises TooLongError as soon as the result has more than `most` characters.
    """

    def value(name: str) -> str:
        for mapping in variables:
            if name in mapping:
                return mapping[name]
        return f"$({name})"

    return _expand(text, value, most)


def expand_all_known(text: str, variables: Mapping[str, str], most: int) -> tuple[str, tuple[str, ...]]:
    """As `expand`, where every name must have a value. Returns the text, and the sorted names that are unknown or empty."""
    missing: set[str] = set()

    def value(name: str) -> str:
        found = variables.get(name, "")
        if not found:
            missing.add(name)
        return found

    return _expand(text, value, most), tuple(sorted(missing))


def _expand(text: str, value: Callable[[str], str], most: int) -> str:
    parts: list[str] = []
    size = at = 0
    last_end = text.rfind(")")
    while at < len(text):
        dollar = text.find("$", at)
        if dollar < 0:
            found, end = text[at:], len(text)
        elif dollar > at:
            found, end = text[at:dollar], dollar
        elif text.startswith("$", at + 1):
            found, end = "$", at + 2
        elif text.startswith("(", at + 1) and last_end > at:
            close = text.index(")", at)
            found, end = value(text[at + 2 : close]), close + 1
        else:
            found, end = "$", at + 1
        size += len(found)
        if size > most:
            raise TooLongError(f"it has more than {most} characters")
        parts.append(found)
        at = end
    return "".join(parts)


#: The longest argument, or `NAME=value` of a variable, without its terminating NUL.
MAX_STRING = (128 << 10) - 1
#: All of them with a NUL and a pointer each, for the usual stack limit of 8 MiB.
MAX_TOTAL = 2 << 20
_EACH = 1 + 8
#: Of command or args. Linux has no such limit, but each costs time at every start and probe.
MAX_ARGUMENTS = 10_000
_LIMIT = "the most that Linux passes to a program"


class ArgumentsTooLongError(ValueError):
    """An argument, a variable, or all of them together are too long, or too many. The message names the first that is."""


class ArgumentSpace:
    """The space that the arguments and variables of one program take."""

    def __init__(self) -> None:
        self._total = 0

    def take(self, field: str, key: str | int, text: str) -> None:
        """Take the entry `key` of `field`. ArgumentsTooLongError."""
        self._take(field, key, _bytes(text))

    def take_variable(self, name: str, value: str) -> None:
        """Take `NAME=value`. ArgumentsTooLongError."""
        size = len(name) + len(value) if name.isascii() and value.isascii() else _bytes(name) + _bytes(value)
        self._take("env", name, size + 1)

    def _take(self, field: str, key: str | int, size: int) -> None:
        if size > MAX_STRING:
            raise ArgumentsTooLongError(f"{field}[{key}] is longer than {MAX_STRING} bytes, {_LIMIT}")
        self._total += size + _EACH
        if self._total > MAX_TOTAL:
            raise ArgumentsTooLongError(
                f"with {field}[{key}], command, args and env together are longer than {MAX_TOTAL} bytes, {_LIMIT}"
            )

    def free_variable(self, name: str, value: str) -> None:
        """Give back the space of a variable that is replaced."""
        self._total -= _bytes(name) + _bytes(value) + 1 + _EACH

    def expand(self, field: str, key: str | int, text: str, *variables: Mapping[str, str]) -> str:
        """The text of an entry with its references resolved, as `expand`; it is not taken yet. ArgumentsTooLongError."""
        if "$" not in text:
            return text
        try:
            return expand(text, *variables, most=MAX_STRING)
        except TooLongError:
            raise ArgumentsTooLongError(f"{field}[{key}] is longer than {MAX_STRING} bytes, {_LIMIT}") from None

    def expand_all(self, field: str, texts: Sequence[str], variables: Mapping[str, str]) -> Sequence[str]:
        """The entries of `field` with their references resolved, all of which are taken. ArgumentsTooLongError."""
        if len(texts) > MAX_ARGUMENTS:
            raise ArgumentsTooLongError(f"{field} has {len(texts)} entries, more than {MAX_ARGUMENTS}")
        if self._take_plain(texts):
            return texts
        done: list[str] = []
        for index, text in enumerate(texts):
            done.append(self.expand(field, index, text, variables))
            self.take(field, index, done[-1])
        return done

    def _take_plain(self, texts: Sequence[str]) -> bool:
        """Take texts without references all at once, if there is space for them."""
        whole = "".join(texts)
        if "$" in whole or not whole.isascii() or max(map(len, texts), default=0) > MAX_STRING:
            return False
        total = self._total + len(whole) + len(texts) * _EACH
        if total > MAX_TOTAL:
            return False
        self._total = total
        return True


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))
