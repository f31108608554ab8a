"""Applies the folder: at the start, after each change of a file, and from time to time, and deletes what has left it.

Owns: the retries of what fails, and the report: the log, and the ConfigMap `pykubelet-directory` in `kube-system`, which names every file
with a problem.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from pykubelet.base.kit.backoff import BackoffPolicy
from pykubelet.base.kit.log import Log
from pykubelet_local_api.directory.folder import Folder, FolderError
from pykubelet_local_api.directory.manifests import FolderContent
from pykubelet_local_api.directory.plan import MANAGER, plan_prunes
from pykubelet_local_api.errors import StatusError
from pykubelet_local_api.kinds.kind import ResourceKind
from pykubelet_local_api.kinds.table import STORED
from pykubelet_local_api.objects import Json
from pykubelet_local_api.view import View

log = Log("directory")
#: All is applied again after this many seconds, so that fields that others have changed are set back.
RESYNC_S = 300.0
#: What failed is tried again.
RETRY = BackoffPolicy(1.0, 60.0)
#: The report, its manager, and the most bytes of its problems.
REPORT, REPORTER, REPORT_BYTES = "pykubelet-directory", "pykubelet-local-api", 32 * 1024


class Applier(Protocol):
    """Writes objects."""

    async def apply(self, kind: ResourceKind, namespace: str, body: Json, manager: str) -> Json:
        """Apply an object. Raises StatusError."""

    async def delete(self, kind: ResourceKind, namespace: str, name: str, uid: str) -> Json:
        """Delete an object. Raises StatusError."""


class DirectoryLoop:
    """Keeps the objects as the files of `folder` say. `view`: the objects, as they are now."""

    def __init__(self, folder: Folder, applier: Applier, view: View) -> None:
        self._folder = folder
        self._applier = applier
        self._view = view
        self._logged: tuple[str, ...] = ()
        self._reported = ""

    async def run(self) -> None:
        """Apply for ever."""
        failures = 0
        try:
            while True:
                problems = await self.step()
                failures = failures + 1 if problems else 0
                await self._folder.wait_changed(RETRY.delay_s(failures) if problems else RESYNC_S)
        finally:
            self._folder.close()

    async def step(self) -> tuple[str, ...]:
        """Apply all files once. Returns what failed."""
        try:
            manifests = await self._folder.read()
        except FolderError as error:
            problems: tuple[str, ...] = (str(error),)
            self._log(problems)
            await self._report(0, problems)
            return problems
        problems = (*manifests.problems, *await self._apply(manifests), *await self._prune(manifests))
        self._log(problems)
        await self._report(len(manifests.manifests), problems)
        return problems

    async def _apply(self, manifests: FolderContent) -> list[str]:
        problems = []
        for manifest in manifests.manifests:
            try:
                await self._applier.apply(manifest.kind, manifest.id.namespace, manifest.object, MANAGER)
            except StatusError as error:
                problems.append(f"{manifest.origin}: {manifest.id}: {error.message}")
            await asyncio.sleep(0)
        return problems

    async def _prune(self, manifests: FolderContent) -> list[str]:
        problems = []
        for prune in plan_prunes(manifests, self._view):
            try:
                await self._applier.delete(prune.kind, prune.id.namespace, prune.id.name, prune.uid)
                log.info("deleted, as it has left the directory", object=str(prune.id))
            except StatusError as error:
                if error.code != 404:
                    problems.append(f"{prune.id}: cannot be deleted: {error.message}")
        return problems

    def _log(self, problems: tuple[str, ...]) -> None:
        """Log each problem when it comes, and that none is left."""
        for problem in problems:
            if problem not in self._logged:
                log.error("cannot apply", directory=self._folder.path, problem=problem)
        if self._logged and not problems:
            log.info("all of the directory is applied", directory=self._folder.path)
        self._logged = problems

    async def _report(self, applied: int, problems: tuple[str, ...]) -> None:
        text = "\n".join(problems)
        cut = text if len(text) <= REPORT_BYTES else f"{text[:REPORT_BYTES]}..."
        status = f"{applied} objects, {len(problems)} problems"
        if status + cut == self._reported:
            return
        body: Json = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": REPORT, "namespace": "kube-system"},
            "data": {"directory": self._folder.path, "status": status, "problems": cut},
        }
        try:
            await self._applier.apply(STORED["configmaps"], "kube-system", body, REPORTER)
        except StatusError as error:
            log.warning("cannot write the report of the directory", error=error.message)
            return
        self._reported = status + cut
