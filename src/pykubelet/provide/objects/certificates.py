"""Requests the certificates of pods, and replaces them in time: one PodCertificateRequest for each podCertificate source.

Owns: one list-watch of the node's requests, and the state of each source (`decide_certificates.py`). Nothing is kept over a restart: all
certificates are requested again. No request is sent before a pod has such a source.
Source: KEP-4317 (pod certificates).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import aclosing
from math import inf

from pykubelet.base.api.certificates import PodCertificateRequest, PodCertificateRequestSpec
from pykubelet.base.api.core import ObjectMeta, OwnerReference, Pod, PodCertificateProjection
from pykubelet.base.api.key_types import KEY_TYPES
from pykubelet.base.api.selectors import field_selector
from pykubelet.base.kit.cells import Cell, Post
from pykubelet.base.kit.clock import Moment, moment_of
from pykubelet.base.kit.log import Log
from pykubelet.base.kit.supervise import Supervisor
from pykubelet.base.kit.values import Value, changed_keys
from pykubelet.base.model.content import Absent, CertificateKey, CertificateRecord, Found, Pending, Present, wait_label
from pykubelet.base.model.ids import PodRef
from pykubelet.base.model.kube_events import KubeEvent, warning
from pykubelet.base.model.needs import certificate_source
from pykubelet.base.model.node import ApiNode
from pykubelet.base.model.waits import Owner, Wait
from pykubelet.edges.identity.keys import KeysError, StubRequest
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.listwatch import Listed, follow
from pykubelet.edges.kubeapi.tokens import read_account
from pykubelet.provide.objects.certificate_keys import CertificateKeys, MakeStubs
from pykubelet.provide.objects.decide import retry_delay_s
from pykubelet.provide.objects.decide_certificates import (
    CertificateState,
    Initial,
    RequestRefused,
    asked_of,
    certificate_of,
    created,
    look_in_s,
    observe,
    refusal_text,
    stage_of,
    wants_request,
)
from pykubelet.provide.objects.discovery import CERTIFICATES, served_version
from pykubelet.provide.objects.model import Answered
from pykubelet.provide.objects.objects import KeeperTools

log = Log("content")
VERSIONS = ("v1", "v1beta1")
PLURAL = "podcertificaterequests"
#: Seconds until an API server without this API is asked again, and between two failed requests at first and at most.
RECHECK_S, RETRY_S, RETRY_CAP_S = 300.0, 0.05, 60.0
#: So many requests for certificates are sent at once.
SENT_AT_ONCE = 4
#: The answer while the gate PodCertificateRequest is off, and the error of a volume while there is no certificate.
NO_MANAGER, NOT_ISSUED = "unimplemented", "credential bundle is not issued yet"
NOT_SERVED = "the API server serves no PodCertificateRequests (certificates.k8s.io/v1 or v1beta1)"
NODE_UNKNOWN = "the Node of this node is not known yet"


class CertificateTools(Value):
    """`events`: takes the Events about pods. `make_stubs`: makes keys with signing requests; raises KeysError."""

    events: Post[KubeEvent]
    make_stubs: MakeStubs


class _Source:
    """One podCertificate source of a pod. `since`: wall seconds; `since_mono`, `retry_at`: monotonic ones. `problem`: why the
    newest request could not be sent."""

    def __init__(self, key: CertificateKey, pod: Pod, projection: PodCertificateProjection, now: Moment) -> None:
        self.key = key
        self.account = pod.spec.serviceAccountName
        self.projection = projection
        self.state: CertificateState = Initial()
        self.since, self.since_mono = now.wall, now.mono
        self.failures, self.retry_at = 0, -inf
        self.problem = ""
        self.answered: CertificateRecord | None = None
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None


class PodCertificates:
    """Answers the keys that are wanted. `is_on`: the gate PodCertificateRequest; while it is off, nothing is requested."""

    def __init__(
        self, tools: KeeperTools, issuing: CertificateTools, node: Cell[ApiNode], tasks: Supervisor, *, is_on: bool
    ) -> None:
        self._is_on = is_on
        self._client, self._clock, self._answers = tools.client, tools.clock, tools.answers
        self._settings = tools.settings
        self._events = issuing.events
        self._keys = CertificateKeys(issuing.make_stubs, tasks)
        self._node = node
        self._tasks = tasks
        self._sources: dict[CertificateKey, _Source] = {}
        self._by_request: dict[str, _Source] = {}
        self._requests: Mapping[str, PodCertificateRequest] = {}
        self._is_current = False
        self._version = ""
        self._problem = ""
        self._wanted = asyncio.Event()
        self._slots = asyncio.Semaphore(SENT_AT_ONCE)

    def __contains__(self, key: object) -> bool:
        return key in self._sources

    def want(self, key: CertificateKey, pod: Pod) -> None:
        """Begin to answer a key of the pod."""
        projection = certificate_source(pod, key)
        assert projection is not None  # the key was made from it
        source = self._sources[key] = _Source(key, pod, projection, moment_of(self._clock))
        self._wanted.set()
        self._look(source)

    def drop(self, key: CertificateKey) -> None:
        """Forget a key that is wanted no more. The API server's garbage collection removes its requests."""
        source = self._sources.pop(key)
        self._forget_request(source)
        if source.task is not None:
            source.task.cancel()
            source.task = None
        self._stop_timer(source)

    def cancel(self) -> None:
        """End all timers."""
        for source in self._sources.values():
            self._stop_timer(source)

    def clock_jumped(self) -> None:
        """Look at all certificates, because the wall clock has jumped."""
        self._look_at_all()

    # The watch

    async def run(self) -> None:
        """Watch the node's requests while pods have certificates. Never returns."""
        failures = 0
        while True:
            await self._wanted.wait()
            if not self._is_on:
                return
            try:
                version = await served_version(self._client, CERTIFICATES, VERSIONS, PLURAL)
            except ApiError as error:
                failures += 1
                self._cannot_begin(error.message)
                await asyncio.sleep(retry_delay_s(failures, RETRY_S, RETRY_CAP_S, random.random(), error.retry_after_s))
                continue
            failures = 0
            if not version:
                self._cannot_begin(NOT_SERVED)
                await asyncio.sleep(RECHECK_S)
                continue
            self._version, self._problem = version, ""
            self._look_at_all()
            await self._follow(f"{CERTIFICATES}/{version}/{PLURAL}")
            self._cannot_begin(NOT_SERVED)
            await asyncio.sleep(retry_delay_s(1, RETRY_S, RETRY_CAP_S, random.random()))

    def _cannot_begin(self, problem: str) -> None:
        self._version, self._problem, self._is_current = "", problem, False
        self._look_at_all()

    async def _follow(self, path: str) -> None:
        """Watch the requests until this version of the API is no longer served."""
        selector, periods = field_selector(("spec.nodeName", self._settings.node)), self._settings.watch
        changes = follow(
            self._client, path, PodCertificateRequest, self._clock, field_selector=selector, periods=periods
        )
        async with aclosing(changes) as listings:
            async for listed in listings:
                if listed.error is not None and listed.error.is_not_found:
                    return
                self._take(listed)

    def _take(self, listed: Listed[PodCertificateRequest]) -> None:
        """Look at the sources with changed requests; at all with requests if it changes whether the newest state is known."""
        before, was_current = self._requests, self._is_current
        self._requests, self._is_current = listed.items, listed.synced and listed.error is None
        names = changed_keys(before, self._requests)
        problem = listed.error.message if listed.error is not None else ""
        if self._is_current is not was_current or problem != self._problem:
            self._problem = problem
            names = list(self._by_request)
        for name in names:
            if name in self._by_request:
                self._look(self._by_request[name])

    # The sources

    def _look_at_all(self) -> None:
        for source in list(self._sources.values()):
            self._look(source)

    def _look(self, source: _Source) -> None:
        """Take up what has changed, and begin what is due."""
        now = moment_of(self._clock)
        asked = asked_of(source.state)
        request = self._requests.get(f"{source.key.namespace}/{asked.name}") if asked is not None else None
        step = observe(source.state, request, now, random.random(), is_current=self._is_current)
        source.state = step.state
        if asked is not None and asked_of(source.state) is not asked:
            self._forget_request(source, asked.name)
        for event in step.events:
            pod = PodRef(source.key.namespace, source.key.pod_name, source.key.pod)
            self._events.post(warning(event.reason, event.message, pod))
        if source.task is None and self._version and now.mono >= source.retry_at and wants_request(source.state, now):
            source.task = self._tasks.start_root(" ".join(("content", *wait_label(source.key))), self._request(source))
        self._publish(source, now)
        self._set_timer(source, now)

    def _set_timer(self, source: _Source, now: Moment) -> None:
        self._stop_timer(source)
        times = [look_in_s(source.state, now), source.retry_at - now.mono]
        times.append(source.since_mono + self._settings.answer_timeout_s - now.mono)
        left_s = min((left for left in times if left > 0), default=inf)
        if left_s < inf:
            source.timer = asyncio.get_running_loop().call_later(left_s, self._look, source)

    def _stop_timer(self, source: _Source) -> None:
        if source.timer is not None:
            source.timer.cancel()
            source.timer = None

    def _forget_request(self, source: _Source, name: str = "") -> None:
        asked = asked_of(source.state)
        name = name or (asked.name if asked is not None else "")
        self._by_request.pop(f"{source.key.namespace}/{name}", None)

    # Requests

    async def _request(self, source: _Source) -> None:
        """Send a request with a new key."""
        try:
            name, stub = await self._send(source)
        except (ApiError, KeysError) as error:
            source.failures += 1
            source.problem = str(error)
            asked_s = error.retry_after_s if isinstance(error, ApiError) else None
            delay_s = retry_delay_s(source.failures, RETRY_S, RETRY_CAP_S, random.random(), asked_s)
            source.retry_at = self._clock.monotonic() + delay_s
            if source.failures == 1:
                key = source.key
                log.warning(
                    "a certificate cannot be requested; trying again",
                    pod=key.pod_name,
                    uid=key.pod,
                    volume=key.volume,
                    signer=key.signer_name,
                    error=error,
                )
        else:
            source.failures, source.problem = 0, ""
            source.state = created(source.state, name, stub.key, moment_of(self._clock), random.random())
            self._by_request[f"{source.key.namespace}/{name}"] = source
        source.task = None
        self._look(source)

    async def _send(self, source: _Source) -> tuple[str, StubRequest]:
        """The name of a new PodCertificateRequest, and the key in it. Raises ApiError or KeysError."""
        key, projection = source.key, source.projection
        if projection.keyType not in KEY_TYPES:
            raise KeysError(f'while generating keypair: unknown key type "{projection.keyType}"')
        async with self._slots:
            try:
                account = await read_account(self._client, key.namespace, source.account)
            except ApiError as error:
                raise _with_step("while fetching service account", error) from error
        if not self._node.get().uid:
            source.problem = NODE_UNKNOWN
            self._publish(source, moment_of(self._clock))
        node = await self._node.wait_for(lambda node: bool(node.uid))
        stub = await self._keys.key(projection.keyType, key.pod)
        owner = OwnerReference(apiVersion="v1", kind="Pod", name=key.pod_name, uid=key.pod)
        spec = PodCertificateRequestSpec(
            signerName=projection.signerName,
            podName=key.pod_name,
            podUID=key.pod,
            serviceAccountName=source.account,
            serviceAccountUID=account.uid,
            nodeName=self._settings.node,
            nodeUID=node.uid,
            maxExpirationSeconds=projection.maxExpirationSeconds,
            stubPKCS10Request=stub.request,
            unverifiedUserAnnotations=projection.userAnnotations,
        )
        version = self._version or VERSIONS[0]
        body = PodCertificateRequest(
            apiVersion=f"{CERTIFICATES.removeprefix('/apis/')}/{version}",
            kind="PodCertificateRequest",
            metadata=ObjectMeta(generateName="req-", namespace=key.namespace, ownerReferences=(owner,)),
            spec=spec,
        )
        path = f"{CERTIFICATES}/{version}/namespaces/{key.namespace}/{PLURAL}"
        async with self._slots:
            try:
                made = await self._client.create(path, body, PodCertificateRequest)
            except ApiError as error:
                raise _with_step("while creating PodCertificateRequest", error) from error
        return made.metadata.name, stub

    # Answers

    def _publish(self, source: _Source, now: Moment) -> None:
        record = CertificateRecord(stage_of(source.state), self._found(source, now))
        if record != source.answered:
            source.answered = record
            self._answers.post(Answered(source.key, record))

    def _found(self, source: _Source, now: Moment) -> Found | None:
        if not self._is_on:
            return Absent(NO_MANAGER)
        certificate = certificate_of(source.state)
        if certificate is not None:
            return Present(certificate)
        if isinstance(source.state, RequestRefused):
            return Absent(refusal_text(source.state))
        if now.mono < source.since_mono + self._settings.answer_timeout_s:
            return None
        return Pending(NOT_ISSUED, self._wait(source))

    def _wait(self, source: _Source) -> Wait:
        """The wait for the certificate, as users see it."""
        what, subject = wait_label(source.key)
        used = f'volume "{source.key.volume}", source {source.key.source}'
        asked, problem = asked_of(source.state), source.problem or self._problem
        if asked is not None:
            name = f"PodCertificateRequest {source.key.namespace}/{asked.name}"
            if problem:
                detail, step = f"{problem}; {name} cannot be read; for {used}", "read it again"
                return Wait(what, Owner.OBJECT_CACHE, asked.since, subject, detail=detail, next_step=step)
            detail, step = f"{name} is not answered; for {used}", "write it into the volume"
            return Wait(what, Owner.SIGNER, asked.since, subject, detail=detail, next_step=step)
        detail = f"{problem}; for {used}" if problem else f"being requested for {used}"
        return Wait(what, Owner.OBJECT_CACHE, source.since, subject, detail=detail, next_step="request it")


def _with_step(step: str, error: ApiError) -> ApiError:
    return ApiError(error.status, error.reason, f"{step}: {error.message}", error.retry_after_s)
