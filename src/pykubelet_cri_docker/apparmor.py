"""The AppArmor profiles that the machine has loaded.

Docker looks for a container's profile at its start only, and drops it without an error where AppArmor is not enabled.
"""

from __future__ import annotations

from pykubelet.base.kit.values import Value
from pykubelet.edges.host.fs.files import read_text
from pykubelet.edges.host.fs.text_files import read_file
from pykubelet_cri_docker.errors import invalid


class AppArmorFiles(Value):
    """The kernel's files. `enabled`: `Y` where AppArmor is enabled. `profiles`: what is loaded, with its mode."""

    enabled: str = "/sys/module/apparmor/parameters/enabled"
    profiles: str = "/sys/kernel/security/apparmor/profiles"


KERNEL = AppArmorFiles()


def check_profile(name: str, kernel: AppArmorFiles) -> None:
    """Refuse a profile that is not loaded. Raises RpcError, and HostError if the profiles cannot be read. Blocks."""
    if read_file(kernel.enabled).strip() != "Y":
        raise invalid("security_context.apparmor", f"AppArmor is not enabled, so there is no profile {name!r}")
    if name not in (line.rpartition(" (")[0] for line in read_text(kernel.profiles).splitlines()):
        raise invalid("security_context.apparmor", f"the profile {name!r} is not loaded")
