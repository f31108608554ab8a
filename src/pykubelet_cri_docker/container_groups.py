"""The cgroups of containers, whatever cgroup driver Docker Engine has. Pure."""

from __future__ import annotations


def group_of(table: str, container_id: str, *controllers: str) -> str:
    """The cgroup of a container by /proc/PID/cgroup of its first process; empty if that is none of the container.

    Of the first of the controllers (empty: version 2) that is in a hierarchy. A process may have moved to a group below it. With systemd,
    the group is the scope `docker-ID.scope`. Podman's names begin with `libpod-`.
    """
    paths: dict[str, str] = {}
    for line in table.splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        paths |= dict.fromkeys(names.split(","), path)
    parts = next((paths[name] for name in controllers if name in paths), "").split("/")
    own = next((number for number, part in enumerate(parts) if _is_group(part, container_id)), None)
    return "" if own is None or ".." in parts else "/".join(parts[: own + 1])


def _is_group(name: str, container_id: str) -> bool:
    return name == container_id or name.removesuffix(".scope").endswith(f"-{container_id}")
