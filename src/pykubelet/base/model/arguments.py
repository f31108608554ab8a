"""What Linux passes to a program: how long an argument, a variable and all of them together may be. Pure.

A container whose command, arguments or environment are larger cannot be started by any runtime, so they are refused
while they are built. Sizes are bytes. Source: execve(2), "Limits on size of arguments and environment".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pykubelet.base.model.expansion import TooLongError, expand

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
