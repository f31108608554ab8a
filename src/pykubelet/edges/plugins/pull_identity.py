"""The service account data for credential providers: a pod's ServiceAccount, and a token for the plugin's audience.

Owns: those tokens, which are bound to the pod and kept for most of their lifetime. ServiceAccounts are read for each request,
because a plugin may depend on their annotations. Used by provide/images, only if a plugin's configuration asks for it.
Source: KEP-4412 (projected service account tokens for kubelet image credential providers).
"""

from __future__ import annotations

from pykubelet.base.api.core import ObjectMeta
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.values import Value
from pykubelet.base.model.content import TokenKey
from pykubelet.base.model.ids import PodRef, is_object_name
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.tokens import HeldToken, read_account, request_token
from pykubelet.edges.plugins.credential_provider import ProviderError


class _Held(Value):
    held: HeldToken
    account_uid: str


class PullIdentity:
    """Provides ServiceAccounts and tokens for credential providers. Raises only ProviderError."""

    def __init__(self, client: ApiClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._held: dict[TokenKey, _Held] = {}

    async def account(self, namespace: str, name: str) -> ObjectMeta:
        """Read the metadata of the ServiceAccount."""
        if not is_object_name(name):
            raise ProviderError(f"{namespace}/{name} is no service account")
        try:
            return await read_account(self._client, namespace, name)
        except ApiError as error:
            raise ProviderError(f"failed to get service account {namespace}/{name}: {error.message}") from error

    async def pull_token(self, pod: PodRef, account: str, account_uid: str, audience: str) -> str:
        """A token of the account in the pod's namespace. A token of a deleted account with the same name is not reused."""
        self._drop_old()
        key = TokenKey(pod.uid, pod.namespace, pod.name, account, audience, 0)
        known = self._held.get(key)
        if known is None or known.account_uid != account_uid:
            try:
                known = _Held(await request_token(self._client, key, self._clock), account_uid)
            except ApiError as error:
                text = f"failed to get service account token for {pod.namespace}/{account}: {error.message}"
                raise ProviderError(text) from error
            self._held[key] = known
        return known.held.token.token

    def _drop_old(self) -> None:
        now, wall = self._clock.monotonic(), self._clock.wall()
        self._held = {
            key: known for key, known in self._held.items() if known.held.age_s(now, wall) < known.held.refresh_s
        }
