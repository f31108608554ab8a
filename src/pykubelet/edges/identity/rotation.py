"""Keeps one certificate valid: requests it from the API server, waits for it, stores it, and renews it in time.

Owns: the certificate and key in its store, and its part of the cell `Credentials`. The API clients and the server read the
store's current file themselves. If a certificate is missing or expired, the agent keeps running and repeats the request.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, TypeVar

from pykubelet.base.api.certificates import CertificateSigningRequest, CertificateSigningRequestSpec
from pykubelet.base.api.core import ObjectMeta
from pykubelet.base.api.selectors import field_selector
from pykubelet.base.kit.cells import Cell, CellWriter, within
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import SingleFlight, value_of
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.metrics import Counter, Histogram
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.credentials import CertificateState, Credentials
from pykubelet.base.model.node import NodeView
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.identity.bootstrap import BootstrapClient, FirstPair
from pykubelet.edges.identity.decide import (
    BACKOFF,
    CLIENT_SIGNER,
    EARLIEST,
    LATEST,
    ORGANIZATION,
    WantedCertificate,
    names_of,
    refusal,
    renewal_at,
    request_name,
)
from pykubelet.edges.identity.keys import Description, KeysError, SigningRequest, describe_pair, make_request
from pykubelet.edges.identity.store import CertificateStore
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.listwatch import follow

T = TypeVar("T")
log = Log("identity")
RENEW_ERRORS = {
    "client": Counter(
        "kubelet_certificate_manager_client_expiration_renew_errors", "Counter of certificate renewal errors."
    ),
    "serving": Counter("kubelet_server_expiration_renew_errors", "Counter of certificate renewal errors."),
}
SERVED = Histogram(
    "kubelet_certificate_manager_server_rotation_seconds",
    "Histogram of the number of seconds the previous certificate lived before being rotated.",
    (),
    (60, 3600, 14400, 86400, 604800, 2592000, 7776000, 15552000, 31104000, 124416000),
)
REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
DISK_DEADLINE_S = 10.0
#: The seconds after which the certificate is read again, because the clock may be set and other programs may replace it.
LOOK_AGAIN_S = 60.0


class IssuePeriods(Value):
    """The seconds to wait until the `first` and a `later` certificate is issued. `look`: see LOOK_AGAIN_S.

    `rotates`: False for a certificate that is requested again only when it has expired.
    """

    first: float = 3600.0
    later: float = 900.0
    look: float = LOOK_AGAIN_S
    rotates: bool = True


class CertificateSigners(Value):
    """The clients that send requests: `node` once there is a valid certificate, before that `bootstrap` if there is one."""

    node: ApiClient
    bootstrap: BootstrapClient | None = None


class _Pending(Value):
    """A signing request for which no certificate was issued yet, and the certificate that it asks for."""

    wanted: WantedCertificate
    made: SigningRequest


class IdentityError(Exception):
    """No certificate was issued; the text has the reason."""


class RefusedError(IdentityError):
    """The signing request was denied, or its signer failed. Both are final for this request."""


class CertificateLoop:
    """Keeps one certificate valid. `run` never returns.

    `ends`: the cell to write, and for a serving certificate the cell of the node whose addresses it contains. `initial`: the
    pair of the kubeconfig, which is used while the store is empty. If the kubeconfig contains it, it is copied to the store,
    where kubeadm looks for it, and replaced at once: it may have been made elsewhere and handed over.
    """

    def __init__(
        self,
        wanted: WantedCertificate,
        store: CertificateStore,
        askers: CertificateSigners,
        ends: tuple[CellWriter[Credentials], Cell[NodeView] | None],
        tools: tuple[Clock, SingleFlight],
        periods: IssuePeriods | None = None,
        initial: FirstPair | None = None,
    ) -> None:
        self._use = wanted.use
        self._wanted = wanted
        self._store = store
        self._askers = askers
        self._credentials, self._node = ends
        self._clock, self._flight = tools
        self._periods = periods or IssuePeriods()
        self._share = self._random_share()
        self._pem = b""
        self._found: Description | None = None
        self._failures = 0
        self._initial = initial or FirstPair()
        self._is_stored = self._replaces_initial = False
        self._pending: _Pending | None = None

    async def run(self) -> None:
        """Wait until a certificate is due, request and store it, and repeat. Failures are published and retried with back-off."""
        while True:
            try:
                await self._read_current()
                await self._store_initial()
                await self._wait_due()
                await self._renew()
                await self._read_current()
                self._check_lasts()
                self._failures, self._replaces_initial = 0, False
            except (ApiError, KeysError, HostError, IdentityError) as error:
                await self._pause(error)

    # -- the current certificate

    async def _read_current(self) -> None:
        """Read the current certificate and key, if they have changed."""
        stored = await self._on_disk(self._store.read)
        pem, self._is_stored = stored or self._initial.pem, bool(stored)
        if pem == self._pem:
            return
        try:
            self._found = await describe_pair(pem) if pem else None
        except KeysError as error:
            self._found = None
            log.warning("a certificate cannot be used", file=self._store.current, error=error)
        self._pem = pem
        self._share = self._random_share()

    async def _store_initial(self) -> None:
        """Copy the pair that the kubeconfig contains to the store, unless that has a valid one."""
        initial, now = self._initial, self._clock.wall()
        if not initial.embedded or not self._periods.rotates or (self._is_stored and self._holds):
            return
        try:
            found = await describe_pair(initial.pem)
        except KeysError:
            return
        if now < found.not_after:
            self._initial = FirstPair()
            self._replaces_initial = True
            path = await self._on_disk(lambda: self._store.write(initial.certificate, initial.key, now))
            log.info("the kubeconfig's certificate is in use until there is a new one", use=self._use, file=path)
            await self._read_current()

    def _random_share(self) -> float:
        return random.uniform(EARLIEST, LATEST) if self._periods.rotates else 1.0

    async def _wait_due(self) -> None:
        """Wait until a new certificate is needed."""
        while True:
            wanted, now = self._target(), self._clock.wall()
            due = 0.0 if self._replaces_initial else renewal_at(self._found, wanted, self._share)
            if now >= due and not wanted.needs_address:
                return
            problem = "the node has no address yet" if wanted.needs_address else ""
            self._publish_state(problem=problem, next_at=None if wanted.needs_address else due)
            pause = self._periods.look if wanted.needs_address else min(self._periods.look, due - now)
            await self._sleep_until_node_changes(pause)
            await self._read_current()

    async def _sleep_until_node_changes(self, seconds: float) -> None:
        if self._node is None:
            await asyncio.sleep(max(0.01, seconds))
            return
        before = (self._node.get().registered, self._target())
        changed = self._node.wait_for(lambda view: (view.registered, self._target()) != before)
        await within(max(0.01, seconds), changed)

    def _target(self) -> WantedCertificate:
        if self._node is None:
            return self._wanted
        return self._wanted.at(*names_of(self._node.get()))

    @property
    def _holds(self) -> bool:
        return self._found is not None and self._clock.wall() < self._found.not_after

    def _check_lasts(self) -> None:
        """Raise IdentityError if the new certificate is already due for renewal, which would repeat without end."""
        if self._clock.wall() >= renewal_at(self._found, self._target(), self._share):
            raise IdentityError(
                "the new certificate is due again at once: check the node's clock and what the signer issued"
            )

    # -- a new certificate

    async def _renew(self) -> None:
        wanted, first = self._target(), not self._holds
        named = first and wanted.signer == CLIENT_SIGNER
        client = await self._asker(first)
        made = await self._made(wanted, named)
        self._pending = _Pending(wanted, made)
        try:
            sent = await self._sent(client, wanted, made, named)
            issued = await self._issued(client, sent, wanted, self._issue_timeout_s(first))
            key = made.key.encode()
            found = await describe_pair(issued.rstrip() + b"\n" + key)
        except (RefusedError, KeysError):
            if named:  # the same key means the same name, so the same request would be found, with its answer
                await self._forget_key()
            raise
        before, self._found = self._found, found
        now = self._clock.wall()
        path = await self._on_disk(lambda: self._store.write(issued, key, now))
        await self._forget_key()
        if before is not None and self._use == "serving":
            SERVED.observe(max(0.0, now - before.not_before))
        log.info("a new certificate is in use", use=self._use, file=path, days=round(self._days(), 1))

    async def _forget_key(self) -> None:
        self._pending = None
        await self._on_disk(self._store.forget_key)

    async def _made(self, wanted: WantedCertificate, named: bool) -> SigningRequest:
        """The signing request of the last attempt, or a new one with the same key. A key that cannot be used is replaced."""
        subject = (wanted.name, (ORGANIZATION,), wanted.dns, wanted.ips)
        if self._pending is not None:
            if self._pending.wanted == wanted:
                return self._pending.made
            return await make_request(*subject, self._pending.made.key)
        kept = await self._on_disk(self._store.read_key) if named else None
        if kept is not None:
            try:
                return await make_request(*subject, kept.decode("ascii", "replace"))
            except KeysError as error:
                log.warning("the key of the last signing request cannot be used", use=self._use, error=error)
        made = await make_request(*subject)
        if named:
            await self._on_disk(lambda: self._store.keep_key(made.key.encode()))
        return made

    def _issue_timeout_s(self, first: bool) -> float:
        """The seconds to wait for the certificate. With bootstrap credentials, at most until the current certificate expires,
        because the bootstrap credentials can be used then."""
        if first or self._found is None:
            return self._periods.first
        left = self._found.not_after - self._clock.wall()
        return min(self._periods.later, max(0.0, left)) if self._askers.bootstrap is not None else self._periods.later

    async def _asker(self, first: bool) -> ApiClient:
        bootstrap_client = self._askers.bootstrap
        if not first or bootstrap_client is None:
            return self._askers.node
        return await bootstrap_client.client(await self._on_disk(bootstrap_client.read))

    async def _sent(
        self, client: ApiClient, wanted: WantedCertificate, made: SigningRequest, named: bool
    ) -> CertificateSigningRequest:
        """Create the signing request at the API server, or find the one that was created before a restart."""
        name = request_name(made.public, wanted) if named else ""
        body = CertificateSigningRequest(
            apiVersion="certificates.k8s.io/v1",
            kind="CertificateSigningRequest",
            metadata=ObjectMeta(name=name, generateName="" if named else "csr-"),
            spec=CertificateSigningRequestSpec(
                request=made.request.encode(), signerName=wanted.signer, usages=wanted.usages
            ),
        )
        try:
            sent = await client.create(REQUESTS, body, CertificateSigningRequest)
        except ApiError as error:
            if not error.already_exists:
                raise
            sent = await client.get(f"{REQUESTS}/{name}", CertificateSigningRequest)
        log.info("a certificate was requested", use=self._use, request=sent.metadata.name)
        self._publish_state(request=sent.metadata.name)
        return sent

    async def _issued(
        self, client: ApiClient, sent: CertificateSigningRequest, wanted: WantedCertificate, within_s: float
    ) -> bytes:
        """Wait for the certificate. Raises IdentityError if the node's addresses change first, because a request with the old
        addresses may never be approved."""
        name = sent.metadata.name
        async with Supervisor(f"signing request {name}") as waiting:
            issued = waiting.start_child("the certificate", self._certificate(client, name))
            ends: set[asyncio.Task[Any]] = {issued}
            if self._node is not None:
                other = self._node.wait_for(lambda _: self._target() != wanted)
                ends.add(waiting.start_child("other addresses", other))
            ended, _ = await asyncio.wait(ends, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            if issued in ended:
                return issued.result()
        if ended:
            raise IdentityError(f"the node's addresses have changed before the signing request {name} was approved")
        raise IdentityError(f"the signing request {name} was not approved within {within_s:g} s")

    async def _certificate(self, client: ApiClient, name: str) -> bytes:
        """Wait until the certificate of a signing request is issued. Raises IdentityError if it never will be."""
        listing = follow(
            client,
            REQUESTS,
            CertificateSigningRequest,
            self._clock,
            field_selector=field_selector(("metadata.name", name)),
        )
        async with aclosing(listing):
            async for listed in listing:
                found = listed.items.get(name)
                if found is None:
                    if listed.synced and listed.error is None:
                        raise IdentityError(f"the signing request {name} was deleted")
                    continue
                if problem := refusal(found):
                    raise RefusedError(f"{name}: {problem}")
                if found.status is not None and found.status.certificate:
                    return found.status.certificate
        raise AssertionError("a listing does not end")

    # -- reporting

    async def _pause(self, error: Exception) -> None:
        self._failures += 1
        delay = BACKOFF.delay_s(self._failures)
        text = str(error)
        RENEW_ERRORS[self._use].inc()
        if self._failures == 1:
            log.warning("a certificate was not issued; trying again", use=self._use, error=text)
        self._publish_state(problem=text, next_at=self._clock.wall() + delay)
        await self._sleep_until_node_changes(delay)

    def _publish_state(self, *, request: str = "", problem: str = "", next_at: float | None = None) -> None:
        known = self._credentials.get()
        before = known.certificates.get(self._use)
        expires = self._found.not_after if self._found is not None else None
        same = before is not None and (before.request, before.problem) == (request, problem)
        since = before.since if before is not None and same else self._clock.wall()
        state = CertificateState(self._store.current, expires, request, problem, since, next_at)
        if state != before:
            self._credentials.publish(replace(known, certificates={**known.certificates, self._use: state}))

    def _days(self) -> float:
        return (self._found.not_after - self._clock.wall()) / 86400 if self._found is not None else 0.0

    async def _on_disk(self, work: Callable[[], T]) -> T:
        return value_of(
            await self._flight.run(f"certificates:{self._store.current}", work, DISK_DEADLINE_S),
            lambda _: HostError("read", self._store.current, "ETIMEDOUT", "the disk does not answer"),
        )
