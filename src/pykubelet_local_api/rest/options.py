"""The parameters of requests, from their query and body. Pure.

Source: the Kubernetes API reference, "Common Parameters" and "DeleteOptions".
"""

from __future__ import annotations

from typing import Any

from pykubelet.base.kit.text import parse_bool, parse_integer
from pykubelet.base.kit.values import Value
from pykubelet.net.http.wire import Request
from pykubelet_local_api.errors import StatusError, bad_request
from pykubelet_local_api.objects import Json
from pykubelet_local_api.view import RequestUser
from pykubelet_local_api.write_options import DeletionOptions

MAX_MANAGER = 128
_PROPAGATIONS = ("Background", "Foreground", "Orphan")


_REASONS = {
    "Forbidden": "FieldValueForbidden",
    "Invalid value": "FieldValueInvalid",
    "Required value": "FieldValueRequired",
    "Too long": "FieldValueTooLong",
    "Unsupported value": "FieldValueNotSupported",
}


def invalid_options(options: str, field: str, why: str) -> StatusError:
    """422 for a parameter. `options`: what messages call the parameters, such as `CreateOptions`. `why`: begins with the kind of error."""
    cause = {"reason": _REASONS.get(why.partition(":")[0], "FieldValueInvalid"), "message": why, "field": field}
    details = {"group": "meta.k8s.io", "kind": options, "causes": [cause]}
    return StatusError(422, "Invalid", f'{options}.meta.k8s.io "" is invalid: {field}: {why}', details)


def read_bool(request: Request, name: str) -> bool:
    """A parameter that is true or false. Raises StatusError 400."""
    text = request.first(name)
    try:
        return bool(text) and parse_bool(text)
    except ValueError as error:
        raise bad_request(f'strconv.ParseBool: parsing "{text}": invalid syntax') from error


def read_int(request: Request, name: str) -> int | None:
    """A parameter that is a whole number of at most 64 bits; None without it. Raises StatusError 400."""
    text = request.first(name)
    number = parse_integer(text.removeprefix("+"))
    if number is None and text:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return number


def is_dry_run(values: list[str], options: str) -> bool:
    """Whether nothing is to be stored. Raises StatusError 422."""
    for value in values:
        if value not in ("All", ""):
            raise invalid_options(options, "dryRun", f'Unsupported value: "{value}": supported values: "All"')
    return "All" in values


def read_manager(request: Request, options: str, *, is_apply: bool = False) -> str:
    """The field manager: the parameter, or else the program's name. Raises StatusError 422."""
    manager = request.first("fieldManager")
    if is_apply and not manager:
        raise invalid_options(options, "fieldManager", "Required value: is required for apply patch")
    if len(manager.encode()) > MAX_MANAGER:
        raise invalid_options(options, "fieldManager", f"Too long: may not be more than {MAX_MANAGER} bytes")
    if not manager.isprintable():
        raise invalid_options(
            options, "fieldManager", f"Invalid value: {manager!r}: should only contain printable characters"
        )
    return manager or request.headers.get("user-agent", "").partition("/")[0][:MAX_MANAGER] or "unknown"


class ListOptions(Value):
    """The parameters of a list or a watch. `limit` 0: no pages. `send_initial`: None: not stated."""

    labels: str
    fields: str
    version: str
    match: str
    limit: int
    token: str
    is_watch: bool
    timeout_s: int | None
    has_bookmarks: bool
    send_initial: bool | None


def read_list_options(request: Request) -> ListOptions:
    """Raises StatusError 400 or 422."""
    options = ListOptions(
        labels=request.first("labelSelector"),
        fields=request.first("fieldSelector"),
        version=request.first("resourceVersion"),
        match=request.first("resourceVersionMatch"),
        limit=max(0, read_int(request, "limit") or 0),
        token=request.first("continue"),
        is_watch=read_bool(request, "watch"),
        timeout_s=read_int(request, "timeoutSeconds"),
        has_bookmarks=read_bool(request, "allowWatchBookmarks"),
        send_initial=read_bool(request, "sendInitialEvents") if "sendInitialEvents" in request.query else None,
    )
    if options.match and options.match not in ("Exact", "NotOlderThan"):
        why = f'Unsupported value: "{options.match}": supported values: "Exact", "NotOlderThan", ""'
        raise invalid_options("ListOptions", "resourceVersionMatch", why)
    if options.match and not options.version and options.send_initial is None:
        why = "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"
        raise invalid_options("ListOptions", "resourceVersionMatch", why)
    if options.is_watch and options.match and options.send_initial is None:
        raise invalid_options(
            "ListOptions",
            "resourceVersionMatch",
            "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        )
    if options.send_initial is not None:
        if not options.is_watch:
            raise invalid_options(
                "ListOptions", "sendInitialEvents", "Forbidden: sendInitialEvents is forbidden for list"
            )
        if options.match != "NotOlderThan":
            why = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            raise invalid_options("ListOptions", "resourceVersionMatch", why)
    if options.match == "Exact" and options.version == "0":
        raise invalid_options(
            "ListOptions",
            "resourceVersionMatch",
            'Forbidden: resourceVersionMatch "Exact" is forbidden for resourceVersion "0"',
        )
    return options


def read_delete_options(request: Request, body: Json | None, user: RequestUser) -> DeletionOptions:
    """The options of a deletion: the body, or else the query. Raises StatusError 400 or 422."""
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
    if not (grace_s is None or (isinstance(grace_s, int) and not isinstance(grace_s, bool))):
        raise bad_request("gracePeriodSeconds is not a whole number")
    if not isinstance(preconditions, dict):
        raise bad_request("preconditions is not an object")
    if propagation and propagation not in _PROPAGATIONS:
        why = f'Unsupported value: "{propagation}": supported values: "Foreground", "Background", "Orphan", "nil"'
        raise invalid_options("DeleteOptions", "propagationPolicy", why)
    if propagation and orphan is not None:
        why = f'Invalid value: "{propagation}": orphanDependents and deletionPropagation cannot be both set'
        raise invalid_options("DeleteOptions", "propagationPolicy", why)
    if orphan is not None:
        propagation = "Orphan" if orphan else "Background"
    dry = found.get("dryRun") or []
    return DeletionOptions(
        user,
        grace_s,
        propagation,
        str(preconditions.get("uid") or ""),
        str(preconditions.get("resourceVersion") or ""),
        is_dry_run([*request.query.get("dryRun", ()), *(dry if isinstance(dry, list) else [])], "DeleteOptions"),
    )
