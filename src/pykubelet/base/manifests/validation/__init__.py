"""Validation of objects at creation, as kube-apiserver 1.36 does it: pure functions, errors as values.

The entry points are `validate_pod`, and those of `storage.py` for persistent volumes, claims and CSI drivers; the other modules
hold rules by subject.
"""

from __future__ import annotations

from pykubelet.base.manifests.validation.errors import ErrorKind, Errors, FieldError
from pykubelet.base.manifests.validation.podspec import validate_pod

__all__ = ["ErrorKind", "Errors", "FieldError", "validate_pod"]
