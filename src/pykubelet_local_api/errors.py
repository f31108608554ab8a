"""The only error of requests: a `metav1.Status` that is raised. Pure.

Owns the codes, reasons and messages. Messages are the API server's, because clients and people compare them.
Source: Kubernetes API conventions, "Response Status Kind".
"""

from __future__ import annotations

from collections.abc import Sequence

from pykubelet.base.kit.values import replace
from pykubelet.base.manifests.validation.errors import ErrorKind, Errors, FieldError
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json

_CAUSES = {
    ErrorKind.REQUIRED: "FieldValueRequired",
    ErrorKind.INVALID: "FieldValueInvalid",
    ErrorKind.NOT_SUPPORTED: "FieldValueNotSupported",
    ErrorKind.DUPLICATE: "FieldValueDuplicate",
    ErrorKind.FORBIDDEN: "FieldValueForbidden",
    ErrorKind.TOO_LONG: "FieldValueTooLong",
    ErrorKind.TOO_MANY: "FieldValueTooMany",
    ErrorKind.NOT_FOUND: "FieldValueNotFound",
}


#: Of the wrong fields of an object, so many are listed, each with a value of so many characters.
MAX_ERRORS, MAX_VALUE = 100, 8192


class StatusError(Exception):
    """A request that failed. `code`: the HTTP status. `reason`: "" if the API server gives none. `details`,
    `metadata`: those of the Status.

    `retry_after_s`: 0: not stated.
    """

    def __init__(
        self, code: int, reason: str, message: str, details: Json | None = None, retry_after_s: int = 0
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}
        self._has_details = details is not None
        self.retry_after_s = retry_after_s
        self.metadata: Json = {}

    def status(self) -> Json:
        """The body of the answer."""
        details = self.details | ({"retryAfterSeconds": self.retry_after_s} if self.retry_after_s else {})
        found: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.metadata,
            "status": "Failure",
            "message": self.message,
        }
        found |= {"reason": self.reason} if self.reason else {}
        return found | ({"details": details} if details or self._has_details else {}) | {"code": self.code}


def _short(error: FieldError) -> FieldError:
    """The error without most of a long value."""
    if len(error.value) + len(error.path) + len(error.detail) <= MAX_VALUE:
        return error
    value, path, detail = (
        text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}..." for text in (error.value, error.path, error.detail)
    )
    return replace(error, value=value, path=path, detail=detail)


def _details(kind: ResourceKind, name: str) -> Json:
    return ({"name": name} if name else {}) | ({"group": kind.group} if kind.group else {}) | {"kind": kind.plural}


def bad_request(message: str) -> StatusError:
    """400: the request itself cannot be understood."""
    return StatusError(400, "BadRequest", message)


def no_name(name: str) -> StatusError:
    """400: the object has no name. `name`: that of the URL."""
    return bad_request(f"the name of the object ({name} based on URL) was undeterminable: name must be provided")


def unauthorized() -> StatusError:
    """401: no valid credential."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def not_found(kind: ResourceKind, name: str) -> StatusError:
    """404: no such object."""
    return StatusError(404, "NotFound", f'{kind.resource} "{name}" not found', _details(kind, name))


def unknown_path() -> StatusError:
    """404: no such resource."""
    return StatusError(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(kind: ResourceKind, name: str, *, is_deleting: bool = False) -> StatusError:
    """409: the name is in use. `is_deleting`: by an object whose deletion has begun."""
    why = "object is being deleted: " if is_deleting else ""
    return StatusError(409, "AlreadyExists", f'{why}{kind.resource} "{name}" already exists', _details(kind, name))


def conflict(kind: ResourceKind, name: str, why: str) -> StatusError:
    """409: the object is not what the client took it for."""
    message = f'Operation cannot be fulfilled on {kind.resource} "{name}": {why}'
    return StatusError(409, "Conflict", message, _details(kind, name))


def precondition_failed(kind: ResourceKind, name: str, why: str) -> StatusError:
    """409: a precondition of a deletion does not hold. The message names the kind, not the resource."""
    shown = f"{kind.name}.{kind.group}" if kind.group else kind.name
    message = f'Operation cannot be fulfilled on {shown} "{name}": {why}'
    return StatusError(409, "Conflict", message, _details(kind, name) | {"kind": kind.name})


def was_modified(kind: ResourceKind, name: str) -> StatusError:
    """409: the resource version is not the current one."""
    return conflict(
        kind, name, "the object has been modified; please apply your changes to the latest version and try again"
    )


def needs_version(kind: ResourceKind, name: str) -> StatusError:
    """422: the kind is replaced only with the resource version that the client has seen."""
    body = "Invalid value: 0: must be specified for an update"
    cause = {"reason": "FieldValueInvalid", "message": body, "field": "metadata.resourceVersion"}
    message = f'{kind.resource} "{name}" is invalid: metadata.resourceVersion: {body}'
    return StatusError(422, "Invalid", message, _details(kind, name) | {"causes": [cause]})


def invalid(kind: ResourceKind, name: str, errors: Errors) -> StatusError:
    """422: fields with wrong values. `errors`: at least one. So many are listed that the answer stays small."""
    left = len(errors) - MAX_ERRORS
    errors = [_short(error) for error in errors[:MAX_ERRORS]]
    texts = [str(error) for error in errors]
    texts += [f"and {left} more"] if left > 0 else []
    message = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    shown = f"{kind.name}.{kind.group}" if kind.group else kind.name
    causes = [{"reason": _CAUSES[error.kind], "message": error.body, "field": error.path} for error in errors]
    details = (
        ({"name": name} if name else {})
        | ({"group": kind.group} if kind.group else {})
        | {"kind": kind.name, "causes": causes}
    )
    return StatusError(422, "Invalid", f'{shown} "{name}" is invalid: {message}', details)


def forbidden(kind: ResourceKind, name: str, why: str) -> StatusError:
    """403: the request is understood and refused."""
    return StatusError(403, "Forbidden", f'{kind.resource} "{name}" is forbidden: {why}', _details(kind, name))


def expired(message: str) -> StatusError:
    """410: the resource version is older than the history."""
    return StatusError(410, "Expired", message)


def method_not_allowed() -> StatusError:
    """405: the resource has no such verb."""
    return StatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


def unsupported_patch() -> StatusError:
    """415: the body is none of the patches."""
    return StatusError(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})


def unsupported_media_type(accepted: Sequence[str]) -> StatusError:
    """415: the format of the body is not one of `accepted`."""
    listed = ", ".join(accepted)
    return StatusError(
        415,
        "UnsupportedMediaType",
        f"the body of the request was in an unknown format - accepted media types include: {listed}",
    )


def too_large(most: int) -> StatusError:
    """413: the body has more than `most` bytes."""
    return StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {most}")


def unavailable(message: str, retry_after_s: int = 1) -> StatusError:
    """503: the request may succeed later."""
    return StatusError(503, "ServiceUnavailable", message, retry_after_s=retry_after_s)


def internal(message: str) -> StatusError:
    """500: a fault that the client cannot change."""
    return StatusError(500, "InternalError", f"Internal error occurred: {message}")
