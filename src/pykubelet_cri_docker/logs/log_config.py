"""How Docker keeps its own copy of a container's output. Pure.

Source: Docker's documentation, "JSON File logging driver".
"""

from __future__ import annotations

from typing import Final

from pykubelet_cri_docker.engine.messages import LogConfig

#: The `LogConfig` of each container. Docker's copy is a buffer: the log that the kubelet reads and rotates is the CRI log. It must last
#: while the adapter is restarted, or the disk of the CRI logs is full: the container may write 20 MiB meanwhile, and never waits for a
#: reader. It never takes more than 30 MiB. With a single file, Docker would cut off what is not copied yet. Compressed files would cost
#: CPU time twice. It is set for each container because the daemon's defaults may be another driver, or files without a bound.
#: Podman takes its own `k8s-file` for it, and the size.
LOG_CONFIG: Final = LogConfig("json-file", {"max-size": "10m", "max-file": "3", "compress": "false"})
#: The logging drivers that containers get with `LOG_CONFIG`, of which an engine has one.
LOG_DRIVERS: Final = frozenset({LOG_CONFIG.type, "k8s-file"})
