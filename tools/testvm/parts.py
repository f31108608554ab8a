"""The parts of `make test-vm`: what each one runs. Read by the host, which checks names, and inside the machine."""

from __future__ import annotations

from collections.abc import Mapping

#: In place of a file of tests: the machine reboots, and the part goes on after it.
REBOOT = "reboot"
#: The same, but at once and without warning: what was not on the disk is lost.
POWER_CUT = "power cut"

#: Arguments for pytest; a part with several steps runs pytest once for each.
PARTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "life": (("tests/vm/test_life.py",),),
    "groups": (("tests/vm/test_groups.py",),),
    "tests": (("tests/edges/host", "tests/provide/cgroups", "tests/agent/test_resize.py"),),
    "dbus": (("tests/edges/host/test_systemd_for_real.py", "tests/vm/test_reload.py"),),
    "shutdown": (("tests/vm/test_shutdown.py",),),
    "watchdog": (("tests/vm/test_watchdog.py",),),
    "pressure": (("tests/vm/test_pressure.py", "tests/vm/test_evictions.py", "tests/vm/test_reserved.py"),),
    "extensions": (("tests/vm/test_extensions.py", "tests/agent/test_extensions_cgroup.py"),),
    "placement": (("tests/vm/test_placement.py",),),
    "storage": (
        ("tests/vm/test_csi_local.py", "tests/vm/test_storage.py", "tests/vm/test_iscsi.py", "tests/vm/test_growth.py"),
    ),
    "commands": (("tests/vm/test_commands.py",),),
    "packages": (("tests/vm/test_packages.py",),),
    "monitors": (("tests/vm/test_monitors.py",),),
    "docker": (("tests/vm/test_docker.py",),),
    "kubeadm": (("tests/vm/test_kubeadm.py",),),
    "ten": (("tests/ten",),),
    "rootless": (("tests/vm/test_rootless.py", "tests/agent/test_rootless.py"),),
    "takeover": (("tests/agent/test_takeover.py",),),
    "reboot": (("tests/vm/test_before_reboot.py",), (REBOOT,), ("tests/vm/test_after_reboot.py",)),
    "local-api": (
        *(("tests/vm/test_local_api.py",), (REBOOT,), ("tests/vm/test_local_api_after.py",)),
        *((POWER_CUT,), ("tests/vm/test_local_api_after.py",)),
    ),
}

#: Seconds that a part may take, ten times what two idle cores need: a machine may be slow, but a hang must end.
LIMITS_S: Mapping[str, int] = {
    "life": 1800,
    "groups": 3600,
    "tests": 3600,
    "dbus": 1800,
    "shutdown": 1800,
    "watchdog": 1800,
    "pressure": 3600,
    "extensions": 3600,
    "placement": 1800,
    "storage": 3600,
    "commands": 2400,
    "packages": 5400,
    "monitors": 3600,
    "docker": 3600,
    "kubeadm": 7200,
    "ten": 7200,
    "rootless": 2400,
    "takeover": 7200,
    "reboot": 1800,
    "local-api": 3600,
}
BOOT_LIMIT_S = 600

#: Variables that a part's tests see.
ENVIRONMENT: Mapping[str, Mapping[str, str]] = {
    "ten": {"KUBEBUILDER_ASSETS": "/share/built/programs", "TEN_REPLICAS": "60"},
}
