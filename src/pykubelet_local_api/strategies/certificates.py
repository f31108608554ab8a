"""CertificateSigningRequests: who asks, for what, and who may change which condition. Pure.

Source: the Kubernetes documentation "Certificates and Certificate Signing Requests".
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as Base64Error

from pykubelet.base.manifests.validation.errors import (
    Errors,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required,
    too_many,
)
from pykubelet_local_api.access.admission import admit_write
from pykubelet_local_api.objects import Json, timestamp
from pykubelet_local_api.strategies.common import ObjectStrategy, keep
from pykubelet_local_api.strategies.strategy import Context
from pykubelet_local_api.view import CONTROL

USAGES = (
    *("any", "cert sign", "client auth", "code signing", "content commitment", "crl sign", "data encipherment"),
    *("decipher only", "digital signature", "email protection", "encipher only", "ipsec end system", "ipsec tunnel"),
    *("ipsec user", "key agreement", "key encipherment", "microsoft sgc", "netscape sgc", "ocsp signing", "s/mime"),
    *("server auth", "signing", "timestamping"),
)
MIN_SECONDS = 600
#: More than there are. An API server has no such limit, but refuses duplicates.
MAX_USAGES = 64
_SIGNER = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[^/\s]+", re.ASCII)
_FROM_USER = ("username", "uid", "groups", "extra")
_APPROVAL = ("Approved", "Denied")
_PERMANENT = ("Approved", "Denied", "Failed")
_STATUSES = ("False", "True", "Unknown")


class SigningRequestStrategy(ObjectStrategy):
    """The strategy of CertificateSigningRequests."""

    def default(self, new: Json, old: Json | None, context: Context) -> None:
        if old is not None:
            keep(new, old, "spec")
            return
        spec = new["spec"] = new.get("spec") or {}
        for field in _FROM_USER:
            spec.pop(field, None)
        user = context.user
        spec["username"] = user.name
        if user.uid:
            spec["uid"] = user.uid
        spec["groups"] = list(user.groups)
        if user.extra:
            spec["extra"] = {key: list(texts) for key, texts in user.extra.items()}

    def admit(self, new: Json, old: Json | None, context: Context) -> None:
        """Who may ask for this certificate, or approve it, is a matter of access."""
        admit_write(self.kind, new, old, context.subresource, context.user, context.view)

    def prepare_subresource(self, new: Json, old: Json, context: Context) -> None:
        super().prepare_subresource(new, old, context)
        self.admit(new, old, context)
        status, before = new.setdefault("status", {}), old.get("status") or {}
        if context.subresource == "approval":
            new["status"] = {**before, "conditions": status.get("conditions") or []}
            if not new["status"]["conditions"]:
                del new["status"]["conditions"]
        _stamp_conditions(new["status"], before, timestamp(context.view.now))

    def validate(self, new: Json, context: Context) -> Errors:
        spec = new["spec"]
        errors: Errors = []
        if not _is_request(spec.get("request")):
            errors.append(invalid("spec.request", spec.get("request"), "PEM block type must be CERTIFICATE REQUEST"))
        usages = spec.get("usages") or []
        if not usages:
            errors.append(required("spec.usages"))
        seen: set[object] = set()
        for i, usage in enumerate(usages[:MAX_USAGES]):
            if usage not in USAGES:
                errors.append(not_supported(f"spec.usages[{i}]", usage, USAGES))
            elif usage in seen:
                errors.append(duplicate(f"spec.usages[{i}]", usage))
            seen.add(usage)
        if len(usages) > MAX_USAGES:
            errors.append(too_many("spec.usages", len(usages), MAX_USAGES))
        signer = str(spec.get("signerName") or "")
        if not signer:
            errors.append(required("spec.signerName"))
        elif signer == "kubernetes.io/legacy-unknown":
            detail = "the legacy signerName is not allowed via this API version"
            errors.append(invalid("spec.signerName", signer, detail))
        elif not _SIGNER.fullmatch(signer):
            detail = "must be a fully qualified domain and path of the form 'example.com/signer-name'"
            errors.append(invalid("spec.signerName", signer, detail))
        seconds = spec.get("expirationSeconds")
        if seconds is not None and seconds < MIN_SECONDS:
            detail = f"may not specify a duration less than {MIN_SECONDS} seconds (10 minutes)"
            errors.append(invalid("spec.expirationSeconds", seconds, detail))
        return errors

    def validate_change(self, new: Json, old: Json, context: Context) -> Errors:
        return []

    def validate_subresource(self, new: Json, old: Json, context: Context) -> Errors:
        now, before = ((item.get("status") or {}).get("conditions") or [] for item in (new, old))
        errors = _condition_errors(now)
        kinds, were = ([item.get("type") for item in listed] for listed in (now, before))
        errors += [
            forbidden("status.conditions", f'updates may not remove a condition of type "{kind}"')
            for kind in _PERMANENT
            if kind in were and kind not in kinds
        ]
        if context.subresource == "status":
            errors += [
                forbidden("status.conditions", f'updates may not add a condition of type "{kind}"')
                for kind in _APPROVAL
                if kind in kinds and kind not in were and context.user != CONTROL  # it approves and signs at once
            ]
            errors += _certificate_errors(new, old)
        return errors


def _stamp_conditions(status: Json, before: Json, now: str) -> None:
    """Give new and changed conditions their times."""
    old = {item.get("type"): item for item in before.get("conditions") or ()}
    for condition in status.get("conditions") or ():
        was = old.get(condition.get("type")) or {}
        if not condition.get("lastUpdateTime"):
            condition["lastUpdateTime"] = now
        if not condition.get("lastTransitionTime"):
            is_same = was.get("status") == condition.get("status")
            condition["lastTransitionTime"] = (
                was["lastTransitionTime"] if is_same and "lastTransitionTime" in was else now
            )


def _condition_errors(conditions: list[Json]) -> Errors:
    errors: Errors = []
    seen: set[object] = set()
    for i, condition in enumerate(conditions):
        kind, state, at = condition.get("type"), condition.get("status") or "", f"status.conditions[{i}]"
        if not kind:
            errors.append(required(f"{at}.type"))
        if kind in _PERMANENT and state != "True":
            errors.append(not_supported(f"{at}.status", state, ("True",)) if state else required(f"{at}.status"))
        elif state not in _STATUSES:
            errors.append(not_supported(f"{at}.status", state, _STATUSES) if state else required(f"{at}.status"))
        if kind in seen:
            errors.append(duplicate(f"{at}.type", kind))
        seen.add(kind)
        if kind in _APPROVAL and set(_APPROVAL) <= seen:
            detail = "Approved and Denied conditions are mutually exclusive"
            errors.append(invalid("status.conditions", kind, detail))
    return errors


def _certificate_errors(new: Json, old: Json) -> Errors:
    now, before = ((item.get("status") or {}).get("certificate") or "" for item in (new, old))
    if now == before or not now:
        return []
    path, shown = "status.certificate", '"<certificate data>"'
    if before:
        return [forbidden(path, "updates may not set certificate content if existing certificate is present")]
    if b"-----BEGIN CERTIFICATE-----" not in _decoded(now):
        return [invalid(path, shown.strip('"'), "must contain at least one CERTIFICATE PEM block")]
    return []


def _decoded(text: object) -> bytes:
    try:
        return b64decode(text, validate=True) if isinstance(text, str) else b""
    except (Base64Error, ValueError):
        return b""


def _is_request(text: object) -> bool:
    return b"-----BEGIN CERTIFICATE REQUEST-----" in _decoded(text)
