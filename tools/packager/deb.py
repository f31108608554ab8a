"""The Debian packages pykubelet and pykubelet-as-kubelet, for the Python of the Debian on which they are built.

`debian/` has what Debian's tools need; this prepares `debian/tree` and `debian/changelog` in a copy of the checkout and runs them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

from testbed import packages
from testbed.checkout import copy_checkout
from testbed.debian import run_quiet
from testbed.host import TestbedError

from packager import manpage
from packager.versions import debian_version, project_version, set_version
from packager.wheel import clean_environment, commit_time, compile_tree, find_uv, install_tree
from pykubelet.app.completion import SHELLS
from pykubelet.base.model.version import KUBERNETES

#: The interpreter that the package uses: python3.11 on Debian 12, python3.13 on Debian 13. The bytecode in it is for this version.
PYTHON = Path("/usr/bin/python3").resolve()
#: Who is named in the packages, unless the variables of Debian's own tools name who builds them. The project has no mail address.
MAINTAINER = "pykubelet maintainers", "maintainers@pykubelet.invalid"
#: Where the libraries are on the machine of a user.
HOME = "usr/lib/pykubelet"
SITE = f"{HOME}/lib/{PYTHON.name}/site-packages"
PACKAGES = ("pykubelet", "pykubelet-as-kubelet")
HOST_PACKAGES = {
    "python3": PYTHON.exists,
    "debhelper": packages.has("dh"),
    "dpkg-dev": packages.has("dpkg-buildpackage"),
    "git": packages.has("git"),
}
# -I: variables and folders of whoever starts it must not change which modules an agent with all rights loads
_LAUNCHER = f"""#!/{HOME}/bin/python3 -I
import sys

from pykubelet.app.cli import main

sys.exit(main())
"""
_VENV = "home = /usr/bin\ninclude-system-site-packages = false\nversion = {version}\n"
_COMPLETIONS = {"bash": "bash/pykubelet", "zsh": "zsh/_pykubelet", "fish": "fish/pykubelet.fish"}


def build(checkout: Path, out: Path, version: str = "") -> list[Path]:
    """Build both packages into the folder `out`; returns their files. `version`: another than the project's, for tests.

    Raises TestbedError, also without the tools and without root to install them.
    """
    packages.ensure(HOST_PACKAGES)
    uv, epoch_s = find_uv(checkout), commit_time(checkout)
    with tempfile.TemporaryDirectory(prefix="pykubelet-deb-") as temporary:
        source = Path(temporary, "pykubelet")
        copy_checkout(source, checkout)
        if version:
            set_version(source, version)
        wanted = debian_version(version or project_version(source))
        _prepare(source, uv, epoch_s)
        (source / "debian/changelog").write_text(changelog(wanted, epoch_s))
        env = clean_environment()
        env |= {
            "SOURCE_DATE_EPOCH": str(epoch_s),
            "KUBERNETES_VERSION": KUBERNETES.removeprefix("v"),
            "INTERPRETER": PYTHON.name,
        }
        # what it needs is there: see HOST_PACKAGES; the check asks for a compiler too
        run_quiet("dpkg-buildpackage", "--build=binary", "--no-sign", "--no-check-builddeps", cwd=source, env=env)
        built = sorted(path for name in PACKAGES for path in Path(temporary).glob(f"{name}_*.deb"))
        if len(built) != len(PACKAGES):
            raise TestbedError(f"dpkg-buildpackage made {[path.name for path in built]}")
        out.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copy(path, out / path.name)) for path in built]


def changelog(version: str, epoch_s: int) -> str:
    """debian/changelog, of the one version that is built."""
    date = format_datetime(datetime.fromtimestamp(epoch_s, UTC))
    return (
        f"pykubelet ({version}) unstable; urgency=medium\n\n  * See /usr/share/doc/pykubelet/CHANGELOG.md.gz.\n\n"
        f" -- {maintainer()}  {date}\n"
    )


def maintainer() -> str:
    """Name and address: those of the variables DEBFULLNAME and DEBEMAIL, or the project's."""
    name, address = MAINTAINER
    return f"{os.environ.get('DEBFULLNAME', name)} <{os.environ.get('DEBEMAIL', address)}>"


def _prepare(source: Path, uv: Path, epoch_s: int) -> None:
    """Fill debian/tree."""
    tree = source / "debian/tree"
    install_tree(source, tree / SITE, uv, PYTHON)
    compile_tree(tree / SITE, f"/{SITE}", epoch_s, PYTHON)
    (tree / HOME / "pyvenv.cfg").write_text(_VENV.format(version=PYTHON.name.removeprefix("python")))
    launcher = tree / "usr/bin/pykubelet"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(_LAUNCHER)
    launcher.chmod(0o755)
    (tree / "man").mkdir()
    (tree / "man/pykubelet.8").write_text(manpage.render(epoch_s))
    (tree / "man/kubelet.8").write_text(manpage.render_link())
    for shell, name in _COMPLETIONS.items():
        path = tree / "completion" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SHELLS[shell]())
    control = source / "debian/control"
    control.write_text(control.read_text().replace("@MAINTAINER@", maintainer()))
    (source / "debian/pykubelet.links").write_text(f"{PYTHON} {HOME}/bin/python3\n")
    (source / "debian/copyright").write_text(_copyright(source, tree / SITE))


def _copyright(source: Path, site: Path) -> str:
    """debian/copyright: ours, and where the licenses of the libraries are, which come in their own words."""
    rows = []
    for metadata in sorted(site.glob("*.dist-info/METADATA")):
        fields = dict(
            line.split(": ", 1) for line in metadata.read_text().split("\n\n")[0].splitlines() if ": " in line
        )
        license_of = fields.get("License-Expression") or fields.get("License") or "see its files"
        if fields["Name"] != "pykubelet":
            rows.append(f"  {fields['Name']} {fields['Version']}: {license_of}; /{SITE}/{metadata.parent.name}")
    return (source / "debian/copyright.in").read_text() + "\n".join(rows) + "\n"
