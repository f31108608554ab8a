"""Keeps the trust bundles that pods refer to: watches all ClusterTrustBundles and makes the texts that pods get.

Owns: the discovery of the served API version, one list-watch, and the texts by name or by signer and selector. No request
is sent before a pod refers to a bundle.
Source: KEP-3257 (trust anchor sets).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import aclosing

from pykubelet.base.api.certificates import ClusterTrustBundle
from pykubelet.base.api.labels import matches_selector
from pykubelet.base.kit.cells import Post
from pykubelet.base.kit.clock import Clock
from pykubelet.base.model.content import Absent, Found, ObjectKey, Present, TrustBundle, Unreadable
from pykubelet.base.model.needs import read_signer_name
from pykubelet.edges.kubeapi.client import ApiClient
from pykubelet.edges.kubeapi.errors import ApiError
from pykubelet.edges.kubeapi.listwatch import follow
from pykubelet.provide.objects.decide import pem_text, retry_delay_s, trust_anchors
from pykubelet.provide.objects.discovery import CERTIFICATES, served_version
from pykubelet.provide.objects.model import Answered

#: The last is served only by API servers up to 1.36.
VERSIONS = ("v1", "v1beta1", "v1alpha1")
PLURAL = "clustertrustbundles"
RECHECK_S = 300.0
RETRY_S = 0.5
RETRY_CAP_S = 30.0
NOT_SERVED = "ClusterTrustBundle projection is not supported in static kubelet mode"


class TrustBundles:
    """Answers the keys that were passed to `want`. `run` never returns. `is_on`: the gate ClusterTrustBundleProjection; while it
    is off, nothing is requested and every answer is that bundles are not supported."""

    def __init__(self, client: ApiClient, clock: Clock, answers: Post[Answered], *, is_on: bool) -> None:
        self._is_on = is_on
        self._client = client
        self._clock = clock
        self._answers = answers
        self.keys: frozenset[ObjectKey] = frozenset()
        self._answered: dict[ObjectKey, Found] = {}
        self._bundles: Mapping[str, ClusterTrustBundle] | None = None
        self._problem = ""
        self._wanted = asyncio.Event()

    def want(self, keys: frozenset[ObjectKey]) -> None:
        """Replace the set of keys to answer."""
        if keys == self.keys:
            return
        self.keys = keys
        self._answered = {key: found for key, found in self._answered.items() if key in keys}
        self._wanted.set()
        self._answer_all()

    async def run(self) -> None:
        """Watch the bundles while pods refer to any, and post answers. Never returns."""
        failures = 0
        while True:
            while not self.keys:
                self._wanted.clear()
                await self._wanted.wait()
            try:
                version = await served_version(self._client, CERTIFICATES, VERSIONS, PLURAL) if self._is_on else ""
            except ApiError as error:
                failures += 1
                self._answer_unreadable(f"failed to ensure informer manager for ClusterTrustBundles: {error.message}")
                await asyncio.sleep(retry_delay_s(failures, RETRY_S, RETRY_CAP_S, random.random(), error.retry_after_s))
                continue
            failures = 0
            if version:
                await self._follow(f"{CERTIFICATES}/{version}/{PLURAL}")
                await asyncio.sleep(RETRY_S)
            else:
                self._answer_unreadable(NOT_SERVED)
                await asyncio.sleep(RECHECK_S)

    async def _follow(self, path: str) -> None:
        """Watch the bundles until this version of the API is no longer served."""
        async with aclosing(follow(self._client, path, ClusterTrustBundle, self._clock)) as listings:
            async for listed in listings:
                if listed.error is not None and listed.error.is_not_found:
                    self._bundles = None
                    return
                if listed.synced:
                    self._bundles, self._problem = listed.items, ""
                    self._answer_all()
                elif listed.error is not None:
                    self._answer_unreadable(listed.error.message)

    # Answers

    def _answer_all(self) -> None:
        if self._problem:
            self._answer_unreadable(self._problem)
        elif self._bundles is not None:
            for key in sorted(self.keys):
                self._answer(key, _chosen(key.name, self._bundles))

    def _answer_unreadable(self, message: str) -> None:
        self._problem = message
        for key in sorted(self.keys):
            before = self._answered.get(key)
            since = before.since if isinstance(before, Unreadable) else self._clock.wall()
            self._answer(key, Unreadable(message, since))

    def _answer(self, key: ObjectKey, found: Found) -> None:
        if self._answered.get(key) != found:
            self._answered[key] = found
            self._answers.post(Answered(key, found))


def _chosen(name: str, bundles: Mapping[str, ClusterTrustBundle]) -> Found:
    """The answer for a key from all bundles: by name, or by signer and selector."""
    by_signer = read_signer_name(name)
    if by_signer is None:
        if name not in bundles:
            text = f'clustertrustbundle.certificates.k8s.io "{name}" not found'
            return Absent(f"while getting ClusterTrustBundle: {text}")
        chosen = [bundles[name]]
    else:
        signer, selector = by_signer
        chosen = [
            bundle
            for bundle in bundles.values()
            if bundle.spec.signerName == signer and matches_selector(selector, bundle.metadata.labels)
        ]
        if not chosen:
            return Absent("combination of signerName and labelSelector matched zero ClusterTrustBundles")
    return Present(TrustBundle(pem_text(trust_anchors(bundle.spec.trustBundle for bundle in chosen))))
