"""Finds all credentials that a pod has for an image: from its pull secrets, the node's docker config file and plugins, in this order.

The node's file is read for every lookup, so that a change by an administrator takes effect at once.
`keyring.py` defines the order within each kind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pykubelet.base.kit.flight import WORK, Done, Failed, SingleFlight
from pykubelet.base.kit.log import Log
from pykubelet.edges.plugins.pull_credentials import DockerConfigFile
from pykubelet.provide.images.keyring import (
    Auth,
    Credential,
    CredentialError,
    Keyring,
    node_entries,
    parse_config_json,
    parse_dockercfg,
    secret_keyring,
)
from pykubelet.provide.images.model import ImageRequest
from pykubelet.provide.images.providers import CredentialProviders

log = Log("images")
_READ_DEADLINE_S = 5.0


def choose_node_auths(found: tuple[DockerConfigFile, ...]) -> tuple[dict[str, Auth], tuple[str, ...]]:
    """The credentials of the first usable file, and the problems of the files before it."""
    problems: list[str] = []
    for file in found:
        if file.problem:
            problems.append(f"{file.path}: {file.problem}")
            continue
        try:
            return (parse_dockercfg if file.legacy else parse_config_json)(file.data), tuple(problems)
        except CredentialError as error:
            problems.append(f"{file.path}: {error}")
    return {}, tuple(problems)


class PullCredentials:
    """Looks up credentials. `read_node_files` (`edges.plugins.pull_credentials.read_docker_configs`) blocks and runs in a
    thread. While the disk does not answer, the credentials that were read last are used."""

    def __init__(
        self, read_node_files: Callable[[], tuple[DockerConfigFile, ...]], providers: CredentialProviders | None
    ) -> None:
        self._read_node_files = read_node_files
        self._providers = providers
        self._flight = SingleFlight("docker-config", workers=1)
        self._node = Keyring(())
        self._problems: tuple[str, ...] = ()
        self._reading = asyncio.Lock()

    async def lookup(self, request: ImageRequest, repository: str) -> tuple[Credential, ...]:
        """The credentials in the order they are to be tried; none: pull anonymously. CredentialError for a bad pull secret."""
        with WORK.on(request.pod.uid):
            found = list(secret_keyring(request.secrets).lookup(repository))
        found.extend((await self._node_keyring()).lookup(repository))
        if self._providers is not None:
            entries = await self._providers.entries(repository, request.pod, request.account)
            found.extend(Keyring(entries).lookup(repository))
        return tuple(found)

    async def stop(self) -> None:
        """Stop running plugins."""
        if self._providers is not None:
            await self._providers.stop()

    async def _node_keyring(self) -> Keyring:
        async with self._reading:
            outcome = await self._flight.run("read", self._read_node_files, _READ_DEADLINE_S)
            if isinstance(outcome, Failed):
                raise outcome.error
            if isinstance(outcome, Done):
                auths, problems = choose_node_auths(outcome.value)
                self._node = Keyring(node_entries(auths))
            else:
                problems = ("the disk with the node's docker config file does not answer",)
            self._log_problems(problems)
            return self._node

    def _log_problems(self, problems: tuple[str, ...]) -> None:
        if problems != self._problems:
            self._problems = problems
            for problem in problems:
                log.warning("a docker config file of the node cannot be used", problem=problem)
