"""What the HTTP interface asks about clients. `access` has the implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pykubelet.net.http.wire import Request
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.objects import Json
from pykubelet_local_api.rest.paths import Target
from pykubelet_local_api.view import RequestUser


class ClientAccess(Protocol):
    """Authentication, authorization, tokens and reviews. All methods raise StatusError."""

    def authenticate(
        self,
        request: Request,
        certificate: Mapping[str, Any] | None,
        fingerprint: str = "",
        verb: str = "",
        target: Target | None = None,
    ) -> RequestUser:
        """The client, after impersonation. Raises 401 for a wrong credential; a client without one is anonymous.

        `fingerprint`: of the certificate, SHA-256 in hexadecimal digits. `verb`, `target`: what the request wants to do.
        """

    def check_resource(self, user: RequestUser, verb: str, target: Target, field_selector: str = "") -> None:
        """Raises 403 unless the client may do this to a resource. `field_selector`: that of a list or a watch."""

    def check_path(self, user: RequestUser, verb: str, path: str) -> None:
        """Raises 403 unless the client may do this to a path that is no resource's. `verb`: in lower case."""

    def review(self, kind: ResourceKind, body: Json, user: RequestUser, namespace: str) -> Json:
        """The answer to an object that is answered and not stored, such as a TokenReview."""

    def token(self, namespace: str, name: str, body: Json, user: RequestUser) -> Json:
        """The answer to a TokenRequest for a service account. `body`: decoded."""

    def document(self, path: str) -> Json | None:
        """The documents about tokens: `/.well-known/openid-configuration` and the keys; None for another path."""
