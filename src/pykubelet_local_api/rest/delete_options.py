"""The options of a deletion, from the body or the query of a request. Pure. Source: the Kubernetes API reference, "DeleteOptions"."""

from __future__ import annotations

from typing import Any

from pykubelet.net.http.wire import Request
from pykubelet_local_api.errors import bad_request
from pykubelet_local_api.kinds.decode import WrongType, decode
from pykubelet_local_api.kinds.schema import schema_of
from pykubelet_local_api.objects import Json, json_type
from pykubelet_local_api.rest.formats import NOT_JSON
from pykubelet_local_api.rest.options import invalid_options, is_dry_run, read_bool, read_int
from pykubelet_local_api.view import RequestUser
from pykubelet_local_api.write_options import DeletionOptions

DELETE_OPTIONS = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"
_PROPAGATIONS = ("Background", "Foreground", "Orphan")


def decode_delete_options(value: Any) -> Json:
    """The body of a deletion. Raises StatusError 400."""
    if not isinstance(value, dict):
        wanted = '{ APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string "json:\\"kind,omitempty\\"" }'
        raise bad_request(f"{NOT_JSON}json: cannot unmarshal {json_type(value)} into Go value of type struct {wanted}")
    kind = value.get("kind")
    if kind not in (None, "", "DeleteOptions"):
        version = value.get("apiVersion")
        where = 'in scheme "pkg/apis/meta/internalversion/scheme/register.go:27"'
        raise bad_request(f'no kind "{kind}" is registered for version "{version}" {where}')
    try:
        return decode(schema_of(DELETE_OPTIONS), value, remark=False).object
    except WrongType as error:
        raise bad_request(str(error)) from error


def read_delete_options(request: Request, body: Json | None, user: RequestUser) -> DeletionOptions:
    """The options of a deletion: the body, as it was decoded, or else the query. Raises StatusError 400 or 422."""
    found: dict[str, Any] = dict(body or {})
    if body is None:
        if (grace := read_int(request, "gracePeriodSeconds")) is not None:
            found["gracePeriodSeconds"] = grace
        found["propagationPolicy"] = request.first("propagationPolicy")
        if "orphanDependents" in request.query:
            found["orphanDependents"] = read_bool(request, "orphanDependents")
    grace_s, propagation, orphan = (
        found.get("gracePeriodSeconds"),
        found.get("propagationPolicy") or "",
        found.get("orphanDependents"),
    )
    preconditions = found.get("preconditions") or {}
    if propagation and propagation not in _PROPAGATIONS:
        why = f'Unsupported value: "{propagation}": supported values: "Foreground", "Background", "Orphan", "nil"'
        raise invalid_options("DeleteOptions", ("propagationPolicy", why))
    if propagation and orphan is not None:
        why = f'Invalid value: "{propagation}": orphanDependents and deletionPropagation cannot be both set'
        raise invalid_options("DeleteOptions", ("propagationPolicy", why))
    if orphan is not None:
        propagation = "Orphan" if orphan else "Background"
    dry = found.get("dryRun") or []
    return DeletionOptions(
        user,
        grace_s,
        propagation,
        str(preconditions.get("uid") or ""),
        str(preconditions.get("resourceVersion") or ""),
        is_dry_run([*request.query.get("dryRun", ()), *dry], "DeleteOptions"),
    )
