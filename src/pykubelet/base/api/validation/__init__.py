"""Validation of pods at creation, as kube-apiserver 1.36 does it: pure functions, errors as values.

`validate_pod` is the only entry point; the other modules hold its rules by subject.
"""

from __future__ import annotations

from pykubelet.base.api.validation.errors import ErrorKind, Errors, FieldError
from pykubelet.base.api.validation.podspec import validate_pod

__all__ = ["ErrorKind", "Errors", "FieldError", "validate_pod"]
