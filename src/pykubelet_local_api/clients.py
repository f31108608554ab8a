"""What the HTTP interface asks about clients, answered from certificates, tokens and the objects of the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pykubelet.base.api.selectors import read_field_selector
from pykubelet.net.http.wire import Request
from pykubelet_local_api.access import tokens
from pykubelet_local_api.access.authenticate import authenticate
from pykubelet_local_api.access.authorize import check
from pykubelet_local_api.access.impersonate import impersonated
from pykubelet_local_api.access.rbac import AccessAttributes
from pykubelet_local_api.access.reviews import review
from pykubelet_local_api.access.token_requests import answer_token_request
from pykubelet_local_api.kinds.decode import FieldValidation, decode_body
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json
from pykubelet_local_api.rest.paths import Target
from pykubelet_local_api.view import RequestUser, View


class Clients:
    """Implements `rest.access.ClientAccess`."""

    def __init__(self, view: View, account_tokens: tokens.AccountTokens) -> None:
        self._view = view
        self._tokens = account_tokens

    def authenticate(
        self,
        request: Request,
        certificate: Mapping[str, Any] | None,
        fingerprint: str = "",
        verb: str = "",
        target: Target | None = None,
    ) -> RequestUser:
        """The client, after impersonation."""
        authorization = request.headers.get("authorization", "")
        user = authenticate(certificate, authorization, self._view, self._tokens, fingerprint)
        headers: Mapping[str, Sequence[str]] = {
            name: request.repeated.get(name, [value])
            for name, value in request.headers.items()
            if name.startswith("impersonate-")
        }
        if "impersonate-user" not in headers or not verb:
            return impersonated(user, headers, self._view)
        wanted = (
            AccessAttributes(user, verb, path=request.path)
            if target is None
            else _attributes(user, verb, target, request.first("fieldSelector"))
        )
        return impersonated(user, headers, self._view, wanted)

    def check_resource(self, user: RequestUser, verb: str, target: Target, field_selector: str = "") -> None:
        """Raises 403 unless the client may do this to a resource."""
        check(_attributes(user, verb, target, field_selector), self._view)

    def check_path(self, user: RequestUser, verb: str, path: str) -> None:
        """Raises 403 unless the client may do this to a path that is no resource's."""
        check(AccessAttributes(user, verb, path=path), self._view)

    def review(self, kind: ResourceKind, body: Json, user: RequestUser, namespace: str) -> Json:
        """The answer to an object that is answered and not stored."""
        decoded = decode_body(kind, body, FieldValidation.IGNORE)
        return review(kind, namespace, decoded.object, user, self._view, self._tokens)

    def token(self, namespace: str, name: str, body: Json, user: RequestUser) -> Json:
        """The answer to a TokenRequest for a service account."""
        return answer_token_request(self._tokens, namespace, name, body, user, self._view)

    def document(self, path: str) -> Json | None:
        """The documents about tokens; None for another path."""
        match path:
            case tokens.CONFIGURATION_PATH:
                return self._tokens.configuration()
            case tokens.KEYS_PATH:
                return self._tokens.keys()
        return None


def _attributes(user: RequestUser, verb: str, target: Target, field_selector: str) -> AccessAttributes:
    """What a request for a resource wants to do. `field_selector`: that of a list or a watch."""
    kind = target.kind
    try:
        wanted = read_field_selector(field_selector)
    except ValueError:  # refused later
        wanted = []
    equal = tuple((path, value) for path, is_equal, value in wanted if is_equal)
    name = target.name
    if not name and verb in ("list", "watch", "deletecollection"):
        name = next((value for path, value in equal if path == "metadata.name"), "")
    namespace = target.name if kind.plural == "namespaces" else target.namespace
    return AccessAttributes(user, verb, kind.group, kind.plural, target.subresource, namespace, name, "", equal)
