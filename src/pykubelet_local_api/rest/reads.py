"""Answers to reads: one object, and lists with selectors, pages and versions.

A list is what was stored at one version. Its pages are all of that version: what has changed since is undone from the history.
Source: Kubernetes documentation, "Kubernetes API Concepts", "Retrieving large results sets in chunks", "Resource versions".
"""

from __future__ import annotations

import base64
import re
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from pykubelet.base.kit.text import parse_decimal
from pykubelet.base.kit.values import Value
from pykubelet.base.manifests.validation.errors import show
from pykubelet.net.http.wire import Request
from pykubelet_local_api.errors import StatusError, bad_request, expired, not_found
from pykubelet_local_api.kinds.conversion import to_served
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json
from pykubelet_local_api.rest.options import ListOptions
from pykubelet_local_api.rest.selectors import Wants, everything, read_selectors
from pykubelet_local_api.store.store import ObjectStore, let_others_run

_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue "
    "parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided "
    "token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was "
    "returned and now may show up in the list."
)
#: So many objects of a list are looked at before other tasks run.
OBJECTS_AT_ONCE = 50
_TOKEN_VERSION = "meta.k8s.io/v1"
_OTHER_THAN_BASE64 = re.compile(r"[^A-Za-z0-9_-]")


class Page(Value):
    """A list, or a part of one. `metadata`: that of the list."""

    items: Sequence[Json]
    metadata: Json


class _Token(msgspec.Struct):
    """Where a list continues: behind the key `start`, at version `rv`; -1: at the present one. `start`: namespace and name."""

    v: str = ""
    rv: int = 0
    start: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """The last key that was sent."""
        namespace, _, name = self.start.partition("/")
        return namespace, name


def read_object(store: ObjectStore, kind: ResourceKind, namespace: str, name: str) -> Json:
    """One object. Raises StatusError 404."""
    found = store.get(kind.storage, namespace, name)
    if found is None:
        raise not_found(kind, name)
    return to_served(kind, found)


async def read_list(
    store: ObjectStore,
    kind: ResourceKind,
    namespace: str,
    options: ListOptions,
    next_round: Callable[[], Awaitable[None]] = let_others_run,
) -> Page:
    """A list, or one page. Other tasks run while the objects of its version are looked at: `next_round` waits for them.

    Raises StatusError 400, 410, or 504 for a version that does not exist yet.
    """
    wants = read_selectors(kind, options.labels, options.fields)
    version, start = store.version, ("", "")
    if options.token:
        if options.version not in ("", "0"):
            raise bad_request("specifying resource version is not allowed when using continue")
        version, start = _continued(store, options.token)
    elif options.version not in ("", "0"):
        asked = parse_version(options.version)
        check_not_future(store, asked)
        if options.match == "Exact":
            if asked < store.history.oldest:
                raise expired(
                    f"The resourceVersion for the provided list is too old: {asked} ({store.history.oldest})."
                )
            version = asked
    wanted: list[tuple[tuple[str, str], Json]] = []
    for number, (key, item) in enumerate(await store.items(kind.storage, version, next_round)):
        if not number % OBJECTS_AT_ONCE:
            await next_round()
        if key > start and (not namespace or key[0] == namespace):
            served = to_served(kind, item)
            if wants is everything or wants(served):
                wanted.append((key, served))
    has_pages = options.limit and options.version != "0"  # a list from the cache has none
    metadata: Json = {"resourceVersion": str(version)}
    if has_pages and len(wanted) > options.limit:
        metadata["continue"] = _token_text(version, "/".join(wanted[options.limit - 1][0]))
        if wants is everything:
            metadata["remainingItemCount"] = len(wanted) - options.limit
        wanted = wanted[: options.limit]
    return Page([item for _, item in wanted], metadata)


def check_version_exists(store: ObjectStore, request: Request) -> None:
    """Refuse to read an object at a version that does not exist yet. Raises StatusError 400 or 504."""
    version = request.first("resourceVersion")
    if version not in ("", "0"):
        check_not_future(store, parse_version(version))


def parse_version(text: str) -> int:
    """A resource version of a request. Raises StatusError 400."""
    version = parse_decimal(text, 1 << 64)
    if version is None:
        why = "value out of range" if text.isascii() and text.isdigit() else "invalid syntax"
        where = f"invalid resource version: resourceVersion: Invalid value: {show(text)}"
        raise bad_request(f"{where}: strconv.ParseUint: parsing {show(text)}: {why}")
    return version


def check_not_future(store: ObjectStore, version: int) -> None:
    """Refuse a version that does not exist yet (504)."""
    if version > store.version:
        cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
        message = f"Timeout: Too large resource version: {version}, current: {store.version}"
        raise StatusError(504, "Timeout", message, {"causes": [cause]}, retry_after_s=1)


def selected(kind: ResourceKind, options: ListOptions) -> Wants:
    """The selector of a request. Raises StatusError 400."""
    return read_selectors(kind, options.labels, options.fields)


def _token_text(version: int, start: str) -> str:
    token = msgspec.json.encode(_Token(_TOKEN_VERSION, version, start))
    return base64.urlsafe_b64encode(token).decode().rstrip("=")


def _continued(store: ObjectStore, text: str) -> tuple[int, tuple[str, str]]:
    """The version and the place of a list that continues. Raises StatusError 400 or 410."""
    if wrong := _OTHER_THAN_BASE64.search(text) or len(text) % 4 == 1:
        at = len(text[: wrong.start()].encode()) if isinstance(wrong, re.Match) else len(text) - 1
        raise _wrong_token(f"illegal base64 data at input byte {at}")
    try:
        token = msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=_Token | None)
    except (ValueError, RecursionError) as error:  # so are all of its errors
        is_short = "truncated" in str(error)
        raise _wrong_token("unexpected end of JSON input" if is_short else f"{error}") from error
    if token is None or token.v != _TOKEN_VERSION:
        raise _wrong_token(f"server does not recognize this encoded version {token.v if token is not None else ''}")
    if token.rv == 0 or not token.start:
        raise _wrong_token("incorrect encoded start resourceVersion" if token.start else "encoded start key empty")
    if token.rv < 0:
        return store.version, token.key
    if not store.history.oldest <= token.rv <= store.version:
        refusal = expired(_TOO_OLD)
        refusal.metadata["continue"] = _token_text(-1, token.start)
        raise refusal
    return token.rv, token.key


def _wrong_token(why: str) -> StatusError:
    return bad_request(f"invalid continue token: continue key is not valid: {why}")
