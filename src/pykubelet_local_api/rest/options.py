"""The parameters of requests, from their query and body. Pure.

Source: the Kubernetes API reference, "Common Parameters" and "DeleteOptions".
"""

from __future__ import annotations

import re

from pykubelet.base.kit.text import parse_integer
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.manifests.validation.errors import show
from pykubelet.net.http.wire import Request
from pykubelet_local_api.errors import StatusError, bad_request

MAX_MANAGER = 128
_DIGITS = re.compile(r"[-+]?[0-9]+")


_REASONS = {
    "Forbidden": "FieldValueForbidden",
    "Invalid value": "FieldValueInvalid",
    "Required value": "FieldValueRequired",
    "Too long": "FieldValueTooLong",
    "Unsupported value": "FieldValueNotSupported",
}


def invalid_options(options: str, *wrong: tuple[str, str]) -> StatusError:
    """422 for parameters. `options`: what messages call all of them, such as `CreateOptions`. `wrong`: the names of parameters, each with
    why it is wrong, which begins with the kind of error.
    """
    causes = [
        {"reason": _REASONS.get(why.partition(":")[0], "FieldValueInvalid"), "message": why, "field": field}
        for field, why in wrong
    ]
    texts = [f"{field}: {why}" for field, why in wrong]
    details = {"group": "meta.k8s.io", "kind": options, "causes": causes}
    text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    return StatusError(422, "Invalid", f'{options}.meta.k8s.io "" is invalid: {text}', details)


def read_bool(request: Request, name: str) -> bool:
    """A parameter that is true or false. Every text but `false` and `0` is true, as for an API server."""
    return name in request.query and request.first(name).lower() not in ("false", "0")


def read_int(request: Request, name: str) -> int | None:
    """A parameter that is a whole number of at most 64 bits; None without it. Raises StatusError 400."""
    if name not in request.query:
        return None
    text = request.first(name)
    number = parse_integer(text.removeprefix("+"))
    if number is None:
        why = "value out of range" if _DIGITS.fullmatch(text) else "invalid syntax"
        raise bad_request(f'strconv.ParseInt: parsing "{text}": {why}')
    return number


def is_dry_run(values: list[str], options: str) -> bool:
    """Whether nothing is to be stored. Raises StatusError 422."""
    for value in values:
        if value not in ("All", ""):
            raise invalid_options(options, ("dryRun", f'Unsupported value: {show(values)}: supported values: "All"'))
    return "All" in values


def read_manager(request: Request, options: str, *, is_apply: bool = False) -> str:
    """The field manager: the parameter, or else the program's name. Raises StatusError 422."""
    manager = request.first("fieldManager")
    if is_apply and not manager:
        raise invalid_options(options, ("fieldManager", "Required value: is required for apply patch"))
    if len(manager.encode()) > MAX_MANAGER:
        raise invalid_options(options, ("fieldManager", f"Too long: may not be more than {MAX_MANAGER} bytes"))
    if not manager.isprintable():
        why = f"Invalid value: {manager!r}: should only contain printable characters"
        raise invalid_options(options, ("fieldManager", why))
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


def read_list_options(request: Request, *, is_watch: bool) -> ListOptions:
    """The parameters of a list or a watch. Raises StatusError 400 or 422."""
    options = ListOptions(
        labels=request.first("labelSelector"),
        fields=request.first("fieldSelector"),
        version=request.first("resourceVersion"),
        match=request.first("resourceVersionMatch"),
        limit=max(0, read_int(request, "limit") or 0),
        token=request.first("continue"),
        is_watch=is_watch,
        timeout_s=read_int(request, "timeoutSeconds"),
        has_bookmarks=read_bool(request, "allowWatchBookmarks"),
        send_initial=read_bool(request, "sendInitialEvents") if "sendInitialEvents" in request.query else None,
    )
    if options.is_watch and options.version in ("", "0") and not options.match and options.send_initial is None:
        options = replace(options, send_initial=True, match=_NEWER)  # what a watch without a version always had
    if wrong := _wrong_for_watch(options) if options.is_watch else _wrong_for_list(options):
        raise invalid_options("ListOptions", *wrong)
    return options


_MATCH, _NEWER, _EXACT = "resourceVersionMatch", "NotOlderThan", "Exact"


def _wrong_for_list(options: ListOptions) -> list[tuple[str, str]]:
    match, wrong = options.match, []
    if match:
        if not options.version:
            wrong.append((_MATCH, f"Forbidden: {_MATCH} is forbidden unless resourceVersion is provided"))
        if options.token:
            wrong.append((_MATCH, f"Forbidden: {_MATCH} is forbidden when continue is provided"))
        if match not in (_EXACT, _NEWER):
            wrong.append((_MATCH, f'Unsupported value: "{match}": supported values: "{_EXACT}", "{_NEWER}", ""'))
        if match == _EXACT and options.version == "0":
            wrong.append((_MATCH, f'Forbidden: {_MATCH} "exact" is forbidden for resourceVersion "0"'))
    if options.send_initial is not None:
        wrong.append(("sendInitialEvents", "Forbidden: sendInitialEvents is forbidden for list"))
    return wrong


def _wrong_for_watch(options: ListOptions) -> list[tuple[str, str]]:
    match, wrong = options.match, []
    if options.send_initial is not None and match != _NEWER:
        wrong.append((_MATCH, f"Forbidden: sendInitialEvents requires setting {_MATCH} to {_NEWER}"))
    if match:
        if options.send_initial is None:
            wrong.append((_MATCH, f"Forbidden: {_MATCH} is forbidden for watch unless sendInitialEvents is provided"))
        if match != _NEWER:
            wrong.append((_MATCH, f'Unsupported value: "{match}": supported values: "{_NEWER}"'))
        if options.token:
            wrong.append((_MATCH, f"Forbidden: {_MATCH} is forbidden when continue is provided"))
    return wrong
