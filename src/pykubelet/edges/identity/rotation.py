"""Keeps one certificate new: asks the API server for it, waits, stores it, and does so again in time.

Owns: the pair in its store, and its part of the cell `Credentials`. Whoever uses the pair reads the store's current file:
the API clients and the server look at it by themselves. Nothing ends because of a certificate: while there is none, or it
has expired, everything else goes on, and the tries go on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, TypeVar

from pykubelet.base.api.certificates import CertificateSigningRequest, CertificateSigningRequestSpec
from pykubelet.base.api.core import ObjectMeta
from pykubelet.base.kit.cells import Cell, CellWriter
from pykubelet.base.kit.clock import Clock
from pykubelet.base.kit.flight import Done, Failed, Flight
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.metrics import Counter, Histogram
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.credentials import CertificateState, Credentials
from pykubelet.base.model.node import NodeView
from pykubelet.edges.host.fs.errors import HostError
from pykubelet.edges.identity.bootstrap import BootstrapClient
from pykubelet.edges.identity.decide import (
    BACKOFF,
    CLIENT_SIGNER,
    EARLIEST,
    LATEST,
    ORGANIZATION,
    Wanted,
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
#: Clocks may be set, and certificates put in place by others: look at least so often.
LOOK_AGAIN_S = 60.0


class IssuePeriods(Value):
    """Seconds to wait for a certificate: for the first one, and for later ones. `look`: see LOOK_AGAIN_S.

    `rotates`: False for one that is asked for again only when it has expired.
    """

    first: float = 3600.0
    later: float = 900.0
    look: float = LOOK_AGAIN_S
    rotates: bool = True


class CertificateSigners(Value):
    """Who asks: as the node, once it has a certificate that holds; as `bootstrap` before, where there is one."""

    node: ApiClient
    bootstrap: BootstrapClient | None = None


class _Pending(Value):
    """A signing request that has brought no certificate yet, and what it asks for."""

    wanted: Wanted
    made: SigningRequest


class IdentityError(Exception):
    """A certificate did not come; the text says why."""


class RefusedError(IdentityError):
    """The signing request was denied, or its signer failed: it will never be answered otherwise."""


class CertificateLoop:
    """`run` never returns. `ends`: the cell to write, and for a serving certificate the node whose addresses it names.

    `initial`: a pair from elsewhere, PEM, that counts while the store is empty.
    """

    def __init__(
        self,
        wanted: Wanted,
        store: CertificateStore,
        askers: CertificateSigners,
        ends: tuple[CellWriter[Credentials], Cell[NodeView] | None],
        tools: tuple[Clock, Flight],
        periods: IssuePeriods | None = None,
        initial: bytes = b"",
    ) -> None:
        self._use = wanted.use
        self._wanted = wanted
        self._store = store
        self._askers = askers
        self._credentials, self._node = ends
        self._clock, self._flight = tools
        self._periods = periods or IssuePeriods()
        self._share = self._drawn_share()
        self._pem = b""
        self._found: Description | None = None
        self._failures = 0
        self._initial = initial
        self._pending: _Pending | None = None

    async def run(self) -> None:
        while True:
            try:
                await self._look()
                await self._wait_due()
                await self._renew()
                await self._look()
                self._check_lasts()
                self._failures = 0
            except (ApiError, KeysError, HostError, IdentityError) as error:
                await self._pause(error)

    # -- what is there

    async def _look(self) -> None:
        """Read the current pair, where it is another than the one we know."""
        pem = await self._on_disk(self._store.read) or self._initial
        if pem == self._pem:
            return
        try:
            self._found = await describe_pair(pem) if pem else None
        except KeysError as error:
            self._found = None
            log.warning("a certificate cannot be used", file=self._store.current, error=error)
        self._pem = pem
        self._share = self._drawn_share()

    def _drawn_share(self) -> float:
        return random.uniform(EARLIEST, LATEST) if self._periods.rotates else 1.0

    async def _wait_due(self) -> None:
        """Until a new certificate is wanted."""
        while True:
            wanted, now = self._target(), self._clock.wall()
            due = renewal_at(self._found, wanted, self._share)
            if now >= due and not wanted.needs_address:
                return
            problem = "the node has no address yet" if wanted.needs_address else ""
            self._tell(problem=problem, next_at=None if wanted.needs_address else due)
            pause = self._periods.look if wanted.needs_address else min(self._periods.look, due - now)
            await self._sleep_until_node_changes(pause)
            await self._look()

    async def _sleep_until_node_changes(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(0.01, seconds)):
                if self._node is None:
                    await asyncio.Event().wait()
                else:
                    before = (self._node.get().registered, self._target())
                    await self._node.wait_for(lambda view: (view.registered, self._target()) != before)
        except TimeoutError:
            return

    def _target(self) -> Wanted:
        if self._node is None:
            return self._wanted
        return self._wanted.at(*names_of(self._node.get()))

    @property
    def _holds(self) -> bool:
        return self._found is not None and self._clock.wall() < self._found.not_after

    def _check_lasts(self) -> None:
        """Raises IdentityError where what was issued just now would be asked for anew at once, and that for ever."""
        if self._clock.wall() >= renewal_at(self._found, self._target(), self._share):
            raise IdentityError(
                "the new certificate is due again at once: the node's clock is off, or it says other than was asked for"
            )

    # -- a new one

    async def _renew(self) -> None:
        wanted, first = self._target(), not self._holds
        named = first and wanted.signer == CLIENT_SIGNER
        client = await self._asker(first)
        made = await self._made(wanted, named)
        self._pending = _Pending(wanted, made)
        try:
            sent = await self._sent(client, wanted, made, named)
            issued = await self._issued(client, sent, wanted, self._patience(first))
            key = made.key.encode()
            found = await describe_pair(issued.rstrip() + b"\n" + key)
        except (RefusedError, KeysError):
            if named:  # its name is made of its key: the same request would be found again, with the same answer
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

    async def _made(self, wanted: Wanted, named: bool) -> SigningRequest:
        """The request that was made for the try before, or another with its key; one that cannot be used is replaced."""
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

    def _patience(self, first: bool) -> float:
        """Who can ask as a bootstrap_client, asks so as soon as the certificate has expired."""
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
        self, client: ApiClient, wanted: Wanted, made: SigningRequest, named: bool
    ) -> CertificateSigningRequest:
        """The signing request at the API server; one of an earlier life is found again."""
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
        log.info("a certificate is asked for", use=self._use, request=sent.metadata.name)
        self._tell(request=sent.metadata.name)
        return sent

    async def _issued(
        self, client: ApiClient, sent: CertificateSigningRequest, wanted: Wanted, within_s: float
    ) -> bytes:
        """The certificate, unless the node gets other addresses first: nobody may ever sign for those it had."""
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
            raise IdentityError(f"the node's addresses have changed while nobody approved the signing request {name}")
        raise IdentityError(f"nobody approved the signing request {name} within {within_s:g} s")

    async def _certificate(self, client: ApiClient, name: str) -> bytes:
        """Of a signing request, when it has been issued. IdentityError when it never will be."""
        listing = follow(
            client, REQUESTS, CertificateSigningRequest, self._clock, field_selector=f"metadata.name={name}"
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

    # -- telling

    async def _pause(self, error: Exception) -> None:
        self._failures += 1
        delay = BACKOFF.delay_s(self._failures)
        text = str(error)
        RENEW_ERRORS[self._use].inc()
        if self._failures == 1:
            log.warning("a certificate cannot be had; trying again", use=self._use, error=text)
        self._tell(problem=text, next_at=self._clock.wall() + delay)
        await self._sleep_until_node_changes(delay)

    def _tell(self, *, request: str = "", problem: str = "", next_at: float | None = None) -> None:
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
        outcome = await self._flight.run(f"certificates:{self._store.current}", work, DISK_DEADLINE_S)
        if isinstance(outcome, Done):
            return outcome.value
        if isinstance(outcome, Failed):
            raise outcome.error
        raise HostError("read", self._store.current, "ETIMEDOUT", "the disk does not answer")
