"""The command line of `pykubelet cri-docker`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from pykubelet.base.kit.values import Value
from pykubelet.net.grpc.channel import MAX_SOCKET_PATH
from pykubelet_cri_docker.cdi.spec_folders import DIRECTORIES
from pykubelet_cri_docker.network.pod_networks import CniDirectories

DOCKER_SOCKET, SOCKET = "/var/run/docker.sock", "/run/pykubelet-cri-docker/cri.sock"
STATE_DIR, NETNS_DIR = "/var/lib/pykubelet-cri-docker", "/run/pykubelet-cri-docker/netns"
PAUSE_IMAGE = "registry.k8s.io/pause:3.10"


class Options(Value):
    """The options of the command line."""

    socket: str
    docker_socket: str
    state_dir: str
    pause_image: str
    cni_conf_dir: str
    cni_bin_dir: str
    cni_cache_dir: str
    netns_dir: str
    cdi_spec_dirs: str
    restrict_oom_score_adj: bool = False
    verbosity: int = 0

    def problem(self) -> str:
        """What is wrong with the options; empty if nothing is."""
        paths = (
            ("--socket", self.socket),
            ("--docker-socket", self.docker_socket),
            ("--state-dir", self.state_dir),
            ("--cni-conf-dir", self.cni_conf_dir),
            ("--cni-cache-dir", self.cni_cache_dir),
            ("--netns-dir", self.netns_dir),
            *(("--cni-bin-dir", path) for path in self.cni_bin_dir.split(",")),
            *(("--cdi-spec-dirs", path) for path in self.cdi_spec_dirs.split(",")),
        )
        for name, path in paths:
            if not path.startswith("/"):
                return f"{name} must be an absolute path"
        for name, path in paths[:2]:
            if len(os.fsencode(path)) > MAX_SOCKET_PATH:
                return f"{name}: a socket's path has at most {MAX_SOCKET_PATH} bytes"
        return "" if self.pause_image else "--pause-image must not be empty"


def read_options(argv: Sequence[str]) -> Options:
    """What the command line gives. Raises SystemExit if it cannot be read, or asks for help."""
    parsed = build_parser().parse_args(argv)
    return Options(
        parsed.socket.removeprefix("unix://"),
        parsed.docker_socket.removeprefix("unix://"),
        parsed.state_dir.rstrip("/"),
        parsed.pause_image,
        parsed.cni_conf_dir,
        parsed.cni_bin_dir,
        parsed.cni_cache_dir,
        parsed.netns_dir.rstrip("/"),
        parsed.cdi_spec_dirs,
        parsed.restrict_oom_score_adj,
        parsed.v,
    )


def build_parser() -> argparse.ArgumentParser:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="pykubelet cri-docker",
        description="Serve the container runtime interface (CRI) over Docker Engine. Needs root.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--socket", metavar="PATH", default=SOCKET, help="where the CRI is served (default %(default)s)"
    )
    parser.add_argument(
        "--docker-socket", metavar="PATH", default=DOCKER_SOCKET, help="Docker Engine's socket (default %(default)s)"
    )
    parser.add_argument("--state-dir", metavar="DIR", default=STATE_DIR, help="positions in logs (default %(default)s)")
    parser.add_argument(
        "--pause-image",
        metavar="IMAGE",
        default=PAUSE_IMAGE,
        help="the image of the containers that hold the namespaces of pods (default %(default)s)",
    )
    cni = CniDirectories()
    parser.add_argument(
        "--cni-conf-dir", metavar="DIR", default=cni.configs, help="CNI's configurations (default %(default)s)"
    )
    parser.add_argument(
        "--cni-bin-dir",
        metavar="DIRS",
        default=",".join(cni.plugins),
        help="CNI's plugins, directories separated by commas (default %(default)s)",
    )
    parser.add_argument(
        "--cni-cache-dir", metavar="DIR", default=cni.kept, help="what is kept of networks (default %(default)s)"
    )
    parser.add_argument(
        "--netns-dir",
        metavar="DIR",
        default=NETNS_DIR,
        help="mounts of the pods' network namespaces; empty after a start of the machine (default %(default)s)",
    )
    parser.add_argument(
        "--cdi-spec-dirs",
        metavar="DIRS",
        default=",".join(DIRECTORIES),
        help="spec files of CDI devices, directories separated by commas; later ones count more (default %(default)s)",
    )
    parser.add_argument(
        "--restrict-oom-score-adj",
        action="store_true",
        help="give containers no lower oom_score_adj than this program has, where the machine allows no lower one",
    )
    parser.add_argument("-v", metavar="LEVEL", type=int, default=0, help="verbosity of the log")
    return parser
