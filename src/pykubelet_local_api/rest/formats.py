"""The forms of answers: objects, Tables and metadata alone, as JSON or YAML; and the reading of bodies. Pure.

Source: Kubernetes documentation, "Kubernetes API Concepts", "Alternate representations of resources", "Receiving resources as Tables".
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

from pykubelet.base.api.document import DocumentError
from pykubelet.base.api.documents import read_document
from pykubelet.base.kit.values import Value
from pykubelet.base.manifests.validation.errors import show
from pykubelet.net.http.server import Response
from pykubelet.net.http.wire import Request
from pykubelet_local_api.errors import StatusError, bad_request, unsupported_media_type
from pykubelet_local_api.kinds.columns import table
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.protobuf import ProtobufDecodeError, decode_object
from pykubelet_local_api.objects import Json
from pykubelet_local_api.rest.json_errors import json_error

JSON, YAML, PROTOBUF = "application/json", "application/yaml", "application/vnd.kubernetes.protobuf"
APPLY_YAML = "application/apply-patch+yaml"
#: How messages about bodies that are no JSON begin.
NOT_JSON = "couldn't get version/kind; json parse error: "
#: The media types of objects in bodies.
OBJECTS = (JSON, YAML, PROTOBUF)
META = "meta.k8s.io/v1"
_ENCODE = msgspec.json.encode


class Form(StrEnum):
    """What an answer contains of each object."""

    OBJECT = ""
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"
    METADATA_LIST = "PartialObjectMetadataList"


class Accepted(Value):
    """The form that a client gets, always JSON. `include`: which part of objects the rows of a Table have.

    `drops_managed`: whether `metadata.managedFields` is left out (KEP-5958).
    """

    form: Form = Form.OBJECT
    include: str = "Metadata"
    drops_managed: bool = False


def negotiate(request: Request, kind: ResourceKind, verb: str) -> Accepted:
    """The first form of the header Accept that is served. Raises StatusError 400 or 406."""
    header = request.headers.get("accept", "")
    is_json = False
    for clause in header.split(",") if header else ("*/*",):
        media_type, *parameters = (part.strip() for part in clause.split(";"))
        if media_type in ("*/*", "application/*", ""):
            media_type = JSON
        if media_type != JSON:
            continue
        is_json = True
        values = dict(parameter.partition("=")[::2] for parameter in parameters)
        form = values.get("as", "")
        if form and not (form in set(Form) and values.get("g") == "meta.k8s.io" and values.get("v") == "v1"):
            continue
        is_list = verb in ("list", "deletecollection")
        if verb != "watch" and form == (Form.METADATA if is_list else Form.METADATA_LIST):
            internal = f"*{kind.definition.split('.')[3]}.{kind.list_name if is_list else kind.name}"
            what = "is a list" if is_list else "is not a list"
            raise StatusError(
                406, "NotAcceptable", f"you requested {form}, but the requested object {what} ({internal})"
            )
        include = request.first("includeObject") or "Metadata"
        if form == Form.TABLE and include not in ("Metadata", "Object", "None"):
            why = f"includeObject: Invalid value: {show(include)}: must be 'Metadata', 'Object', 'None', or empty"
            raise bad_request(f"Unable to convert to Table as requested: {why}")
        drops = "metadata.managedFields" in values.get("drop", "")
        return Accepted(Form(form), include, drops)
    if is_json:
        raise StatusError(406, "NotAcceptable", f"only the following media types are accepted: {JSON}")
    message = f"406: Not Acceptable\n\nAvailable representations: {JSON}"
    raise StatusError(406, "NotAcceptable", message, {})


def shown_object(accepted: Accepted, kind: ResourceKind, found: Json, now: float) -> Json:
    """One object in its form."""
    match accepted.form:
        case Form.OBJECT:
            return _dropped(accepted, found)
        case Form.TABLE:
            return table(
                kind, [found], now, accepted.include, {"resourceVersion": found["metadata"].get("resourceVersion", "")}
            )
        case _:
            return _metadata_of(_dropped(accepted, found))


def shown_list(accepted: Accepted, kind: ResourceKind, items: Sequence[Json], metadata: Json, now: float) -> Json:
    """A list in its form. `metadata`: that of the list."""
    match accepted.form:
        case Form.TABLE:
            return table(kind, items, now, accepted.include, metadata)
        case Form.OBJECT:
            shown: list[Json] | None
            name, api_version, shown = (
                kind.list_name,
                kind.api_version,
                [_listed(_dropped(accepted, item)) for item in items],
            )
        case _:
            name, api_version, shown = (
                Form.METADATA_LIST.value,
                META,
                [_metadata_of(_dropped(accepted, item)) for item in items],
            )
    if accepted.form is not Form.OBJECT and not shown:
        shown = None  # as in the answer of an API server
    return {"kind": name, "apiVersion": api_version, "metadata": metadata, "items": shown}


def _listed(found: Json) -> Json:
    """An item of a list, which has the type of all items already."""
    return {name: value for name, value in found.items() if name not in ("kind", "apiVersion")}


def _metadata_of(found: Json) -> Json:
    return {"kind": Form.METADATA.value, "apiVersion": META, "metadata": found["metadata"]}


def _dropped(accepted: Accepted, found: Json) -> Json:
    if not accepted.drops_managed or "managedFields" not in found.get("metadata", ()):
        return found
    return {**found, "metadata": {name: value for name, value in found["metadata"].items() if name != "managedFields"}}


def answer(body: Json, code: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A whole answer."""
    return Response(code, _ENCODE(body) + b"\n", JSON, headers or {})


def failure(error: StatusError) -> Response:
    """The answer to a request that failed."""
    headers = {"Retry-After": str(error.retry_after_s)} if error.retry_after_s else {}
    return Response(error.code, _ENCODE(error.status()) + b"\n", JSON, headers)


class ReadBody(Value):
    """The body of a request: any JSON value, the paths of fields that a JSON text has twice, and remarks about those of a YAML text."""

    value: Any
    duplicates: tuple[str, ...] = ()
    yaml_remarks: tuple[str, ...] = ()


def read_body(request: Request, data: bytes, definition: str, accepted: Sequence[str] = OBJECTS) -> ReadBody:
    """Read the body of a request. `definition`: that of an object in protobuf form. Raises StatusError 400 or 415."""
    media_type = request.headers.get("content-type", JSON).partition(";")[0].strip() or JSON
    if media_type not in accepted:
        raise unsupported_media_type(accepted)
    if media_type == PROTOBUF:
        try:
            return ReadBody(decode_object(data, ".".join(definition.rsplit(".", 3)[1:])))
        except ProtobufDecodeError as error:
            raise bad_request(f"the body cannot be decoded: {error}") from error
    try:
        document = read_document(data)
        if media_type != YAML and media_type != APPLY_YAML and not document.is_json and (why := json_error(data)):
            raise bad_request(f"{NOT_JSON}{why}")
    except DocumentError as error:
        if media_type != YAML and media_type != APPLY_YAML and (why := json_error(data)):
            raise bad_request(f"{NOT_JSON}{why}") from error
        raise bad_request(f"{NOT_JSON}{error}") from error
    if document.more:
        raise bad_request("the body has more than one document")
    places = document.duplicates
    remarks = tuple(
        f'line {place.line}: key "{place.path.rpartition(".")[2]}" already set in map' for place in places if place.line
    )
    value = document.value
    if b"\\ud" in data or b"\\uD" in data:
        value = _with_whole_characters(value)
    return ReadBody(value, tuple(place.path for place in places if not place.line), remarks)


def _with_whole_characters(value: Any) -> Any:
    """The value without halves of surrogate pairs, which JSON can spell and UTF-8 cannot: a half becomes U+FFFD, as in Go."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [_with_whole_characters(item) for item in value]
    if isinstance(value, dict):
        return {_with_whole_characters(key): _with_whole_characters(item) for key, item in value.items()}
    return value
