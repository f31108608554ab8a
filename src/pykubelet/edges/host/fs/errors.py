"""The only error of `edges/host`. Every `OSError` is translated here, so callers need no errno numbers."""

from __future__ import annotations

import errno
import os
from typing import TypeGuard

#: A name that is too long for the file system was never made, so there is nothing to be read or removed.
_NOT_FOUND = ("ENOENT", "ENOTDIR", "ENAMETOOLONG")


class HostError(Exception):
    """An operation that the kernel or the file system refused.

    `op`: the operation (`open`, `mount`). `path`: its object. `errno_name`: the symbol (`ENOSPC`); empty if there is no errno.
    `message`: the reason in lower case. The text is, for example, `mkdir /a/b: no space left on device`, like in the
    reference's Events.
    """

    def __init__(self, op: str, path: str, errno_name: str, message: str) -> None:
        super().__init__(op, path, errno_name, message)
        self.op = op
        self.path = path
        self.errno_name = errno_name
        self.message = message

    def __str__(self) -> str:
        return f"{self.op} {self.path}: {self.message}" if self.path else f"{self.op}: {self.message}"

    @property
    def is_not_found(self) -> bool:
        """Whether the path does not exist, a parent of it is not a directory, or no file can have its name."""
        return self.errno_name in _NOT_FOUND

    @property
    def is_no_space(self) -> bool:
        """Whether the disk, its inodes or the quota are used up."""
        return self.errno_name in ("ENOSPC", "EDQUOT")

    @property
    def is_busy(self) -> bool:
        """Whether the object is in use: a mount point, or a cgroup with processes or children."""
        return self.errno_name in ("EBUSY", "ENOTEMPTY")

    @property
    def is_too_large(self) -> bool:
        """Whether the file is larger than the reader's limit, or than the file system allows."""
        return self.errno_name == "EFBIG"


class _SuppressNotFound:
    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        return isinstance(error, HostError) and error.is_not_found


#: `with` it, a block ends quietly if what it uses does not exist (`HostError.is_not_found`).
suppress_not_found = _SuppressNotFound()


def errno_name(number: int | None) -> str:
    """`ENOENT` for 2; empty for None."""
    return "" if number is None else errno.errorcode.get(number, str(number))


def is_not_found(error: OSError) -> bool:
    """As `HostError.is_not_found`, of an error that is not translated."""
    return errno_name(error.errno) in _NOT_FOUND


def reason_of(number: int) -> str:
    """The kernel's text for an errno, spelled as the reference prints it."""
    text = os.strerror(number)
    return text[:1].lower() + text[1:]


def host_error(op: str, path: str, number: int) -> HostError:
    """A `HostError` for an errno number."""
    return HostError(op, path, errno_name(number), reason_of(number))


def translated(op: str, path: str, error: OSError) -> HostError:
    """The `HostError` for a failed call. Raise it `from` the original error."""
    if error.errno is None:
        return HostError(op, path, "", str(error) or type(error).__name__)
    return host_error(op, path, error.errno)


def is_refusal(error: BaseException | None) -> TypeGuard[OSError | ValueError]:
    """Whether it is an error of the kernel, or about a name that Python does not pass on: with NUL, or that is no text."""
    if isinstance(error, ValueError):
        return isinstance(error, UnicodeEncodeError) or "embedded null" in str(error)
    return isinstance(error, OSError)


def refused(op: str, path: str, error: OSError | ValueError) -> HostError:
    """The `HostError` for an error of which `is_refusal` holds; EINVAL if it is about a name. Raise it `from` the original error."""
    return translated(op, path, error) if isinstance(error, OSError) else host_error(op, repr(path), errno.EINVAL)


class Translating:
    """A block: its errors are raised as a `HostError`, if they are refusals.

    It is a class because each operation on a file has one, and a generator costs three times as much.
    """

    __slots__ = ("_op", "_path")

    def __init__(self, op: str, path: str) -> None:
        self._op = op
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if is_refusal(error):
            raise refused(self._op, self._path, error) from error
