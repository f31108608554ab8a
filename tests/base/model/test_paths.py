"""Where things lie: the layout that tools know from the reference."""

from __future__ import annotations

from pykubelet.base.model.ids import PodRef, PodUID
from pykubelet.base.model.paths import Paths

PATHS = Paths("/var/lib/kubelet", "/var/log/pods")
UID = PodUID("u-1")
REF = PodRef("shop", "web", UID)


def test_below_the_root_directory() -> None:
    assert PATHS.pods == "/var/lib/kubelet/pods"
    assert PATHS.pod(UID) == "/var/lib/kubelet/pods/u-1"
    assert PATHS.pod_volumes(UID) == "/var/lib/kubelet/pods/u-1/volumes"
    assert PATHS.volume(UID, "kubernetes.io/empty-dir", "data") == (
        "/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~empty-dir/data"
    )
    assert PATHS.pod_plugins(UID) == "/var/lib/kubelet/pods/u-1/plugins"
    assert PATHS.subpath(UID, "data", "app", 2) == "/var/lib/kubelet/pods/u-1/volume-subpaths/data/app/2"
    assert PATHS.container(UID, "app") == "/var/lib/kubelet/pods/u-1/containers/app"
    assert PATHS.etc_hosts(UID) == "/var/lib/kubelet/pods/u-1/etc-hosts"
    assert PATHS.seccomp == "/var/lib/kubelet/seccomp"


def test_logs() -> None:
    assert PATHS.pod_logs(REF) == "/var/log/pods/shop_web_u-1"
    assert PATHS.container_logs(REF, "app") == "/var/log/pods/shop_web_u-1/app"
    assert PATHS.log_link(REF, "app", "abc") == "/var/log/containers/web_shop_app-abc.log"


def test_a_long_link_name_is_cut_to_what_a_file_system_takes() -> None:
    link = PATHS.log_link(PodRef("n" * 63, "p" * 200, UID), "app", "c" * 64)
    name = link.rpartition("/")[2]
    assert len(name) == 255
    assert name.startswith("p" * 200)
    assert name.endswith(".log")


def test_links_of_a_pod_are_found_by_their_names_however_long() -> None:
    for ref in (REF, PodRef("n" * 63, "p" * 186, UID), PodRef("n" * 63, "p" * 200, UID)):
        name = PATHS.log_link(ref, "app", "c" * 64).rpartition("/")[2]
        assert PATHS.may_be_log_link(name, ref)
    assert not PATHS.may_be_log_link("web_shop_app-abc.log", PodRef("shop", "we", UID))
