"""The subresources that are acts: binding and eviction of pods, and tokens of service accounts."""

from __future__ import annotations

from typing import Any

from pykubelet.net.http.server import Response
from pykubelet_local_api.errors import bad_request, method_not_allowed
from pykubelet_local_api.kinds.decode import WrongType, decode
from pykubelet_local_api.kinds.schema import schema_of
from pykubelet_local_api.kinds.table import STORED
from pykubelet_local_api.objects import Json
from pykubelet_local_api.registry import ObjectRegistry
from pykubelet_local_api.rest.access import ClientAccess
from pykubelet_local_api.rest.delete_options import decode_delete_options, read_delete_options
from pykubelet_local_api.rest.formats import answer, read_body
from pykubelet_local_api.rest.options import is_dry_run, read_manager
from pykubelet_local_api.rest.writes import Write
from pykubelet_local_api.store.store import ObjectStore
from pykubelet_local_api.strategies.pod_binding import bound, check_eviction, marked_for_eviction
from pykubelet_local_api.strategies.strategy import Context
from pykubelet_local_api.write_options import WriteOptions

PODS = STORED["pods"]
#: What bodies are, by subresource; of others, a Binding.
_DEFINITIONS = {"eviction": "io.k8s.api.policy.v1.Eviction", "token": "io.k8s.api.authentication.v1.TokenRequest"}
_SUCCESS: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


def _decoded(body: Any, definition: str) -> Json:
    """The body, with values of the types that the definition states. Raises StatusError 400."""
    if not isinstance(body, dict):
        raise bad_request("the body is not an object")
    try:
        return decode(schema_of(definition), body, remark=False).object
    except WrongType as error:
        version, kind = definition.split(".")[-2:]
        raise bad_request(f'{kind} in version "{version}" cannot be handled as a {kind}: {error}') from error


class Acts:
    """POST of those subresources. All methods raise StatusError."""

    def __init__(self, store: ObjectStore, registry: ObjectRegistry, access: ClientAccess) -> None:
        self._store = store
        self._registry = registry
        self._access = access

    async def post(self, write: Write) -> Response:
        """Carry out the act that the target names. Raises StatusError 405 for a subresource that is none."""
        definition = _DEFINITIONS.get(write.target.subresource, "io.k8s.api.core.v1.Binding")
        body = _decoded(read_body(write.request, write.body, definition).value, definition)
        match write.kind.plural, write.target.subresource:
            case "pods", "binding":
                return await self._bind(write, write.target.name, body)
            case "bindings", "":
                return await self._bind(write, str((body.get("metadata") or {}).get("name") or ""), body)
            case "pods", "eviction":
                return await self._evict(write, body)
            case "serviceaccounts", "token":
                found = self._access.token(write.target.namespace, write.target.name, body, write.user)
                return answer(found, 201)
        raise method_not_allowed()

    async def _bind(self, write: Write, name: str, body: Json) -> Response:
        """Bind a pod to a node, once. Source: the API reference, Binding."""

        def edit(pod: Json | None) -> Json:
            return bound(pod, body, name, Context(self._store, write.user))

        options = WriteOptions(
            write.user,
            read_manager(write.request, "CreateOptions"),
            is_dry_run=is_dry_run(write.request.query.get("dryRun", []), "CreateOptions"),
        )
        await self._registry.update(PODS, write.target.namespace, name, edit, options, "binding")
        return answer({**_SUCCESS, "code": 201}, 201)

    async def _evict(self, write: Write, body: Json) -> Response:
        """Delete a pod. There are no disruption budgets here, so nothing refuses it."""
        target = write.target
        pod = self._store.get("pods", target.namespace, target.name)
        asked = decode_delete_options(check_eviction(pod, body, target.name))
        options = read_delete_options(write.request, asked, write.user)
        if not options.is_dry_run:
            await self._registry.update(
                PODS,
                target.namespace,
                target.name,
                lambda found: marked_for_eviction(found or {}, self._store.now),
                WriteOptions(write.user, read_manager(write.request, "CreateOptions")),
                "status",
            )
        await self._registry.delete(PODS, target.namespace, target.name, options)
        return answer({**_SUCCESS, "code": 201}, 201)
