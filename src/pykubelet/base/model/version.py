"""The versions of Kubernetes that this agent can be, and its own as build metadata of them. Cheap to import."""

from __future__ import annotations

from enum import StrEnum

from pykubelet import __version__


class Release(StrEnum):
    """A minor release of Kubernetes."""

    V1_36 = "1.36"
    V1_37 = "1.37"
    V1_38 = "1.38"

    @property
    def previous(self) -> str:
        """The minor release before this one, such as "1.36"."""
        major, minor = self.value.split(".")
        return f"{major}.{int(minor) - 1}"

    def has(self, since: Release) -> bool:
        """Whether a change of `since` is in this release."""
        return list(Release).index(self) >= list(Release).index(since)


#: The version that the agent reports, for each release that it can be. 1.38 is prepared and not out yet.
VERSIONS: dict[Release, str] = {Release.V1_36: "v1.36.2", Release.V1_37: "v1.37.2"}
#: The release that the agent is, unless `--emulated-version` names another.
CURRENT = Release.V1_37
KUBERNETES = VERSIONS[CURRENT]
FULL = f"{KUBERNETES}+pykubelet.{__version__}"


def full_version(release: Release) -> str:
    """The version that an agent reports that emulates `release`. Raises KeyError for one that it cannot be."""
    return f"{VERSIONS[release]}+pykubelet.{__version__}"


def find_release(text: str) -> Release | None:
    """The release that a value of `--emulated-version` names: `1.36`, `v1.36` or `kube=1.36`; None if the agent cannot be it."""
    bare = text.strip().removeprefix("kube=").removeprefix("v")
    return next((release for release in VERSIONS if release.value == bare), None)
