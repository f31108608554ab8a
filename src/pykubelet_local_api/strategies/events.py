"""Events of both groups, which are stored in the form of the core group. Pure.

Source: the API references of Event in v1 and events.k8s.io/v1; KEP-383.
"""

from __future__ import annotations

from pykubelet.base.api import labels as names
from pykubelet.base.manifests.validation.errors import Errors, invalid, invalids, required
from pykubelet_local_api.objects import Json
from pykubelet_local_api.strategies.common import ObjectStrategy, immutable_errors
from pykubelet_local_api.strategies.strategy import Context

MAX_TEXT = 128
MAX_NOTE = 1024
#: Fields that are stored also if they have no value, with what stands for none.
_ALWAYS: Json = {
    "source": {},
    "firstTimestamp": None,
    "lastTimestamp": None,
    "eventTime": None,
    "reportingComponent": "",
    "reportingInstance": "",
}
#: Fields that a change in the newer group may not change, with the names that messages have.
_FIXED = (
    *(("involvedObject", "involvedObject"), ("reason", "reason"), ("message", "message"), ("source", "source")),
    *(("firstTimestamp", "firstTimestamp"), ("lastTimestamp", "lastTimestamp"), ("count", "count")),
    *(("reportingComponent", "reportingController"), ("reportingInstance", "reportingInstance"), ("type", "type")),
    *(("action", "action"), ("related", "related"), ("eventTime", "eventTime")),
)


class EventStrategy(ObjectStrategy):
    """The strategy of Events."""

    allows_create_on_update = True

    def default(self, new: Json, old: Json | None, context: Context) -> None:
        new.setdefault("involvedObject", {})
        for field, nothing in _ALWAYS.items():
            if new.get(field) is None:
                new[field] = {} if field == "source" else nothing

    def validate(self, new: Json, context: Context) -> Errors:
        errors = _namespace_errors(new)
        if not self.kind.group and not new.get("eventTime"):
            return errors
        return errors + _new_errors(new, is_strict=bool(self.kind.group))

    def validate_change(self, new: Json, old: Json, context: Context) -> Errors:
        errors = _namespace_errors(new)
        if not self.kind.group:
            return errors
        for field, shown in _FIXED:
            errors += immutable_errors(new.get(field), old.get(field), shown)
        return errors


def _namespace_errors(new: Json) -> Errors:
    """An Event is in the namespace of its object, or in `default` if that has none."""
    wanted = str((new.get("involvedObject") or {}).get("namespace") or "")
    namespace = str(new["metadata"].get("namespace") or "")
    if wanted == namespace or (not wanted and namespace in ("", "default")):
        return []
    return [invalid("involvedObject.namespace", wanted, "does not match event.namespace")]


def _new_errors(new: Json, *, is_strict: bool) -> Errors:
    """The rules of Events with an `eventTime`, and more for those of the newer group."""
    errors: Errors = []
    if not new.get("eventTime"):
        errors.append(required("eventTime"))
    controller = str(new.get("reportingComponent") or "")
    shown = "reportingController" if is_strict else "reportingComponent"
    if not (is_strict and errors):
        if not controller:
            errors.append(required(shown))
        errors += invalids(shown, controller, names.qualified_name_errors(controller))
        errors += _text_errors(new, "reportingInstance") + _text_errors(new, "action")
        if is_strict or len(str(new.get("reason") or "")) > MAX_TEXT:
            errors += _text_errors(new, "reason")
        if len(str(new.get("message") or "").encode()) > MAX_NOTE:
            errors.append(invalid("message", "", f"can have at most {MAX_NOTE} characters"))
    if not is_strict:
        return errors
    series = new.get("series")
    if series is not None:
        if int(series.get("count") or 0) < 2:
            errors.append(invalid("series.count", "", "should be at least 2"))
        if not series.get("lastObservedTime"):
            errors.append(required("series.lastObservedTime"))
    if new.get("type") not in ("Normal", "Warning"):
        errors.append(invalid("type", "", f"has invalid value: {new.get('type') or ''}"))
    errors += [
        invalid(field, "", "needs to be unset")
        for field in ("firstTimestamp", "lastTimestamp", "count")
        if new.get(field)
    ]
    if any((new.get("source") or {}).values()):
        errors.append(invalid("source", "", "needs to be unset"))
    return errors


def _text_errors(new: Json, field: str) -> Errors:
    text = str(new.get(field) or "")
    if not text:
        return [required(field)]
    return [invalid(field, "", f"can have at most {MAX_TEXT} characters")] if len(text) > MAX_TEXT else []
