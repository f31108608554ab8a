"""The HTTP interface: who asks, what for, and which part answers.

Every request is authenticated and authorized before its body is read. Errors are answers of kind Status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import sha256

from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.values import Value
from pykubelet.net.http.server import Answer, ServedConnection, StreamedResponse
from pykubelet.net.http.wire import BadRequest, Request
from pykubelet_local_api.errors import StatusError, method_not_allowed, too_large
from pykubelet_local_api.objects import Json
from pykubelet_local_api.registry import ObjectRegistry
from pykubelet_local_api.rest.access import ClientAccess
from pykubelet_local_api.rest.fairness import RequestFairness, cost_of
from pykubelet_local_api.rest.formats import (
    JSON,
    Accepted,
    answer,
    failure,
    negotiate,
    read_body,
    shown_object,
)
from pykubelet_local_api.rest.lists import list_answer, list_parts
from pykubelet_local_api.rest.metrics import count_request
from pykubelet_local_api.rest.options import ListOptions, read_bool, read_list_options
from pykubelet_local_api.rest.other_paths import OtherPaths
from pykubelet_local_api.rest.parts import AnswerParts, PartsOfUsers
from pykubelet_local_api.rest.paths import Target, parse_target
from pykubelet_local_api.rest.reads import check_version_exists, read_list, read_object, selected
from pykubelet_local_api.rest.rounds import RequestRounds
from pykubelet_local_api.rest.shared_lines import SharedLines
from pykubelet_local_api.rest.subresources import Acts
from pykubelet_local_api.rest.watches import WatchRequest, WatchStream
from pykubelet_local_api.rest.writes import Write, Writes
from pykubelet_local_api.store.database import StoredKey
from pykubelet_local_api.store.sizes import LARGE_BYTES
from pykubelet_local_api.store.store import ObjectStore
from pykubelet_local_api.view import RequestUser

log = Log("local-api")
_VERBS = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
#: Groups of clients that do not wait for their other requests: administrators, and the node.
_NOT_LIMITED = frozenset({"system:masters", "system:nodes"})
#: The most bytes of a body that is no object: options, reviews, bindings. They are read on the event loop.
SMALL_BODY_BYTES = 64 << 10
#: The longest time that a write may take before the client is answered; the write may still be made.
WRITE_LIMIT_S = 60.0


class AskedRequest(Value):
    """One request: what it is about, and who asks."""

    request: Request
    connection: ServedConnection
    user: RequestUser
    target: Target


#: Answers requests for subresources that the agent serves: logs, exec and the like.
Streams = Callable[[AskedRequest], Awaitable[Answer]]


class ObjectsHandler:
    """Answers all requests. `version`: the body of `/version`; `problem`: what keeps the server from being ready, "" for nothing."""

    def __init__(
        self,
        store: ObjectStore,
        registry: ObjectRegistry,
        access: ClientAccess,
        streams: Streams,
        version: Json,
        problem: Callable[[], str],
        clock: Clock,
    ) -> None:
        self._store = store
        self._access = access
        self._streams = streams
        self._others = OtherPaths(store, access, version, problem)
        self._clock = clock
        self._kinds = registry.kinds
        self._lines = SharedLines()
        self._rounds = RequestRounds()
        self._parts = PartsOfUsers()
        self._writes = Writes(store, registry, access)
        self._acts = Acts(store, registry, access)
        self._fairness = RequestFairness()

    async def __call__(self, request: Request, connection: ServedConnection) -> Answer:
        """Answer one request."""
        target = parse_target(request.path, self._kinds)
        started = self._clock.monotonic()  # the event loop's time stands still during a request
        answered = await self._answered(request, connection, target)
        count_request(request, target, answered, self._clock.monotonic() - started)
        return answered

    async def _answered(self, request: Request, connection: ServedConnection, target: Target | None) -> Answer:
        try:
            user = self._access.authenticate(
                request, connection.certificate, _fingerprint(connection), _verb_of(request, target), target
            )
            if "system:unauthenticated" not in user.groups:
                await connection.admit()
            if _NOT_LIMITED.isdisjoint(user.groups):
                await self._rounds.begin((user.name, connection.address))
            objects = self._store.count(target.kind.storage) if target is not None and not target.name else 0
            await self._fairness.wait(user, cost_of(request, objects))
            if target is None:
                return self._others.answer(request, user, _verb_of(request, target))
            return await self._resource(AskedRequest(request, connection, user, target))
        except StatusError as error:
            return failure(error)
        except BadRequest as error:
            return failure(StatusError(error.status, "BadRequest", str(error)))

    # -- resources

    async def _resource(self, asked: AskedRequest) -> Answer:
        request, target = asked.request, asked.target
        if request.method not in _VERBS or request.method == "HEAD":
            raise method_not_allowed()
        verb = _verb_of(request, target)
        self._access.check_resource(asked.user, verb, target, request.first("fieldSelector"))
        if target.kind.name in ("Pod", "Node", "Service") and target.subresource in _STREAMED:
            return await self._fairness.opened(asked.user, lambda: self._streams(asked))
        accepted = negotiate(request, target.kind, verb)
        if verb in ("list", "watch"):
            if verb not in target.kind.verbs:
                raise method_not_allowed()
            return await self._collection(asked, read_list_options(request, is_watch=verb == "watch"), accepted)
        if target.is_watch or (target.kind.is_namespaced and not target.namespace):
            raise method_not_allowed()  # that path has objects of all namespaces
        if verb == "get":
            if target.kind.is_review or target.subresource in _NOT_READ:
                raise method_not_allowed()
            check_version_exists(self._store, request)
            return await self._object(asked, accepted)
        return await self._write(asked, verb, accepted)

    async def _object(self, asked: AskedRequest, accepted: Accepted) -> Answer:
        target = asked.target

        async def made() -> Answer:
            found = read_object(self._store, target.kind, target.namespace, target.name)
            return answer(shown_object(accepted, target.kind, found, self._store.now))

        return await (self._parts_of(asked).whole(made) if self._is_large(target) else made())

    def _is_large(self, target: Target) -> bool:
        return self._store.is_large(StoredKey(target.kind.storage, target.namespace, target.name))

    def _parts_of(self, asked: AskedRequest) -> AnswerParts:
        return AnswerParts(self._parts, asked.user.name, asked.connection.writer.transport.abort)

    async def _collection(self, asked: AskedRequest, options: ListOptions, accepted: Accepted) -> Answer:
        kind, namespace = asked.target.kind, asked.target.namespace
        if options.is_watch:
            wants = selected(kind, options)
            watched = WatchRequest(kind, namespace, asked.target.name, wants, options, accepted)
            stream = WatchStream(self._store, watched, self._parts_of(asked), self._lines)
            try:
                return self._fairness.long(asked.user, StreamedResponse(200, stream, JSON))
            except StatusError:
                stream.close()
                raise
        parts = self._parts_of(asked)

        async def listed() -> Answer:
            page = await read_list(self._store, kind, namespace, options, parts.next_round)
            found = list_parts(self._store, kind, page.items)
            return list_answer(accepted, kind, page, found, self._store.now, parts)

        return await (parts.former(listed) if options.token or options.match == "Exact" else listed())

    async def _write(self, asked: AskedRequest, verb: str, accepted: Accepted) -> Answer:
        async with self._fairness.body(asked.user, asked.request):
            body = await asked.connection.read_body()
            parts = self._parts_of(asked)
            write = Write(asked.request, body, asked.target, asked.user, accepted, parts)
            if len(body) > LARGE_BYTES or self._is_large(asked.target):
                return await parts.whole(lambda: self._done_in_time(write, verb))
            return await self._done_in_time(write, verb)

    async def _done_in_time(self, write: Write, verb: str) -> Answer:
        try:
            async with asyncio.timeout(WRITE_LIMIT_S):
                return await self._done(write, verb)
        except TimeoutError as error:
            message = "the write has not come to its end in time; it may still be made"
            raise StatusError(504, "Timeout", message, retry_after_s=1) from error

    async def _done(self, write: Write, verb: str) -> Answer:
        target = write.target
        is_object = (
            verb in ("create", "update", "patch") and not target.kind.is_review and target.subresource not in _ACTS
        )
        if not is_object and len(write.body) > SMALL_BODY_BYTES:
            raise too_large(SMALL_BODY_BYTES)
        if target.kind.is_review and target.kind.name != "Binding":
            if verb != "create":
                raise method_not_allowed()
            body = read_body(write.request, write.body, target.kind.definition).value
            found = self._access.review(
                target.kind, body if isinstance(body, dict) else {}, write.user, target.namespace
            )
            return answer(found, 201)
        match verb, bool(target.name), target.subresource:
            case "create", False, "" if target.kind.name != "Binding":
                return await self._writes.create(write)
            case "create", _, _:
                return await self._acts.post(write)
            case "update", True, sub if sub not in _ACTS:
                return await self._writes.update(write)
            case "patch", True, sub if sub not in _ACTS and sub != "finalize":
                return await self._writes.patch(write)
            case "delete", True, "":
                return await self._writes.delete(write)
            case "deletecollection", False, "" if "deletecollection" in target.kind.verbs:
                return await self._writes.delete_collection(write)
        raise method_not_allowed()


_STREAMED = frozenset({"attach", "exec", "log", "portforward", "proxy"})
_ACTS = frozenset({"binding", "eviction", "token"})
_NOT_READ = _ACTS | {"finalize"}


def _verb_of(request: Request, target: Target | None) -> str:
    """What a request wants to do, as RBAC names it."""
    verb = _VERBS.get(request.method, request.method.lower())
    if target is None or target.name:
        return "watch" if target is not None and target.is_watch and verb == "get" else verb
    if verb == "get":
        return "watch" if target.is_watch or read_bool(request, "watch") else "list"
    return "deletecollection" if verb == "delete" else verb


def _fingerprint(connection: ServedConnection) -> str:
    """SHA-256 of the client's certificate, in hexadecimal digits; "" without one."""
    if not connection.certificate:
        return ""
    tls = connection.writer.get_extra_info("ssl_object")
    return sha256(tls.getpeercert(binary_form=True) or b"").hexdigest() if tls is not None else ""
