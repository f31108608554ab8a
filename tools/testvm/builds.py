"""What the parts of `INSTALLED` install in the machine, built outside, because the machine reaches no network.

In the folder that `build` fills: `now/` and `next/`, the Debian packages of this version and of a made-up next one; `wheels/`, ours
and those of its libraries; `image/`, the container image; `kubernetes/`, Kubernetes' Debian packages; `images/`, those of a control
plane; `programs/`, its programs; `reference/`, the kubelet of Kubernetes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from testbed import environment, kubernetes
from testbed.checkout import CHECKOUT
from testbed.debian import run_quiet

from testvm import kubernetes_archive

#: A version after every other that has the same first numbers.
NEXT = "0.999.0"
#: Where they are in the machine.
BUILT = Path("/share/built")
NOW, AFTER, WHEELS, IMAGE, KUBERNETES, IMAGES = "now", "next", "wheels", "image", "kubernetes", "images"
PROGRAMS, REFERENCE = "programs", "reference"
#: Names a kubelet of Kubernetes, for tests that change from one agent to the other.
REFERENCE_VARIABLE = "REFERENCE_KUBELET"
#: The packager's words for each folder.
_BUILDS: Mapping[str, tuple[str, ...]] = {
    NOW: ("deb",),
    AFTER: ("deb", "--version", NEXT),
    WHEELS: ("wheels",),
    IMAGE: ("image",),
}
#: What the parts install; the others install nothing.
INSTALLED: Mapping[str, tuple[str, ...]] = {
    "packages": (NOW, AFTER, WHEELS, IMAGE),
    "monitors": (NOW, KUBERNETES),
    "local-api": (NOW,),
    "kubeadm": (NOW, KUBERNETES, IMAGES),
    "ten": (PROGRAMS,),
    "takeover": (REFERENCE,),
}


def build(folder: Path, parts: Collection[str]) -> None:
    """Fill `folder` anew with what `parts` install, from the checkout as it is. Some minutes."""
    environment.ensure(CHECKOUT)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    python = CHECKOUT / ".venv/bin/python"
    env = os.environ | {"PYTHONPATH": str(CHECKOUT / "tools"), "PYTHONDONTWRITEBYTECODE": "1"}
    wanted = {name for part in parts for name in INSTALLED.get(part, ())}
    for name, words in _BUILDS.items():
        if name in wanted:
            print(f"building the packages: {name}", flush=True)
            run_quiet(python, "-m", "packager", *words, "--out", folder / name, cwd=CHECKOUT, env=env)
    binaries = kubernetes.folder()
    if KUBERNETES in wanted and binaries is not None:
        print("making the packages of Kubernetes", flush=True)
        kubernetes_archive.build(binaries, folder / KUBERNETES)
    if IMAGES in wanted and binaries is not None:
        print("making the images of Kubernetes", flush=True)
        kubernetes.build(binaries, folder / IMAGES)
    if PROGRAMS in wanted and binaries is not None:
        (folder / PROGRAMS).mkdir(parents=True)
        for name in (*kubernetes.SERVERS, "kubectl"):
            shutil.copy(binaries / name, folder / PROGRAMS)
    reference = os.environ.get(REFERENCE_VARIABLE)
    if REFERENCE in wanted and reference:
        (folder / REFERENCE).mkdir(parents=True)
        shutil.copy(reference, folder / REFERENCE / "kubelet")
