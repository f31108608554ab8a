"""What the CSI specification demands of the order of calls, checked in the calls that a driver has got. Pure.

An agent that was killed, and a driver that was, leave calls whose end is unknown: until the call that undoes them succeeds, the volume
may be staged, or published. Source: Container Storage Interface 1.9, "Node Service RPC".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
#: After a failure with another code nothing is staged or published.
UNCERTAIN = ("CANCELED", "DEADLINE_EXCEEDED", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "ABORTED", "UNKNOWN")
EPHEMERAL = "csi.storage.k8s.io/ephemeral"


@dataclass
class _Place:
    """A path where a volume is staged or published. `is_done`: certainly, else perhaps."""

    request: Json
    is_done: bool = False


@dataclass
class _Volume:
    """By path: where a volume may be staged, and where it may be published."""

    staged: dict[str, _Place] = field(default_factory=dict)
    published: dict[str, _Place] = field(default_factory=dict)


@dataclass
class CsiRules:
    """Reads calls in their order. `broken`: a line for each that is not allowed."""

    broken: list[str] = field(default_factory=list)
    _volumes: dict[str, _Volume] = field(default_factory=dict)
    _open: dict[str, Json] = field(default_factory=dict)

    def read(self, calls: Iterable[Json]) -> None:
        """Lines of the driver's file, as `support/csi_driver.py` writes them."""
        for line in calls:
            if line["is"] == "begun":
                self._open[line["id"]] = line
                self._begin(line["call"], line["request"])
            elif (begun := self._open.pop(line["id"], None)) is not None:
                self._end(begun["call"], begun["request"], "" if line["is"] == "done" else line["code"])

    def left(self) -> list[str]:
        """What may still be staged or published."""
        return [
            f"{volume} {what} {path}"
            for volume, found in self._volumes.items()
            for what, places in (("staged at", found.staged), ("published at", found.published))
            for path in places
        ]

    def _begin(self, call: str, request: Json) -> None:
        volume = self._volumes.setdefault(request.get("volume_id", ""), _Volume())
        match call:
            case "NodeStageVolume":
                self._repeat(call, request, volume.staged, request["staging_target_path"])
            case "NodePublishVolume":
                staged = volume.staged.get(request.get("staging_target_path", ""))
                is_own = request.get("volume_context", {}).get(EPHEMERAL) == "true"
                if not is_own and (staged is None or not staged.is_done):
                    self._break(call, request, "the volume is not staged at its staging_target_path")
                self._repeat(call, request, volume.published, request["target_path"])
            case "NodeUnpublishVolume":
                self._doubt(volume.published, request["target_path"])
            case "NodeUnstageVolume":
                if volume.published:
                    self._break(call, request, f"it may still be published at {', '.join(volume.published)}")
                self._doubt(volume.staged, request["staging_target_path"])
            case "NodeExpandVolume":
                places = {**volume.staged, **volume.published}
                if (place := places.get(request["volume_path"])) is None or not place.is_done:
                    self._break(call, request, "the volume is neither staged nor published at its volume_path")

    def _repeat(self, call: str, request: Json, places: dict[str, _Place], path: str) -> None:
        """A call for a path where the volume may already be has the same arguments."""
        place = places.setdefault(path, _Place(request))
        different = [key for key in {**place.request, **request} if place.request.get(key) != request.get(key)]
        if different:
            self._break(call, request, f"it is repeated with another {', '.join(different)}")

    @staticmethod
    def _doubt(places: dict[str, _Place], path: str) -> None:
        if path in places:
            places[path].is_done = False

    def _end(self, call: str, request: Json, code: str) -> None:
        """A call has ended; `code`: how it has failed."""
        volume = self._volumes[request.get("volume_id", "")]
        match call:
            case "NodeStageVolume":
                self._made(volume.staged, request["staging_target_path"], code)
            case "NodePublishVolume":
                self._made(volume.published, request["target_path"], code)
            case "NodeUnpublishVolume" if not code:
                volume.published.pop(request["target_path"], None)
            case "NodeUnstageVolume" if not code:
                volume.staged.pop(request["staging_target_path"], None)

    @staticmethod
    def _made(places: dict[str, _Place], path: str, code: str) -> None:
        if path not in places:
            return
        if not code:
            places[path].is_done = True
        elif code not in UNCERTAIN and not places[path].is_done:
            del places[path]

    def _break(self, call: str, request: Json, why: str) -> None:
        self.broken.append(f"{call} of {request.get('volume_id')}: {why}")
