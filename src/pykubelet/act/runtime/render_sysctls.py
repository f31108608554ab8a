"""Kernel parameters of a pod as its sandbox gets them: the rules are `base/model/sysctls.py`. Pure."""

from __future__ import annotations

from pykubelet.base.model.sysctls import forbidden_sysctl, normalized, sysctls_of

__all__ = ["forbidden_sysctl", "normalized", "sysctls_of"]
