"""Validates file paths inside manifests. Pure: no file is accessed."""

from __future__ import annotations

from pykubelet.base.manifests.validation.errors import Errors, invalid


def backstep_errors(target: str, path: str) -> Errors:
    """No `..` element."""
    return [invalid(path, target, "must not contain '..'")] if ".." in target.split("/") else []


def descending_path_errors(target: str, path: str) -> Errors:
    """Relative, without `..` elements."""
    errors: Errors = [invalid(path, target, "must be a relative path")] if target.startswith("/") else []
    return errors + backstep_errors(target, path)


def local_path_errors(target: str, path: str) -> Errors:
    """Relative, without `..` elements, and not beginning with `..` (the volume writer uses such names itself)."""
    errors = descending_path_errors(target, path)
    if target.startswith("..") and not target.startswith("../"):
        errors.append(invalid(path, target, "must not start with '..'"))
    return errors


def mode_errors(mode: int | None, path: str) -> Errors:
    """A file mode with only the nine permission bits."""
    if mode is None or 0 <= mode <= 0o777:
        return []
    return [invalid(path, mode, "must be a number between 0 and 0777 (octal), both inclusive")]
