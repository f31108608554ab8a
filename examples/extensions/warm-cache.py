#!/usr/bin/env python3
"""A need of pods: data sets are copied to a fast disk before a pod that uses them starts, and removed when no pod uses them.

A pod names them in the annotation `cache.example.com/warm: base,model`, and mounts `CACHE/base` and so on with a hostPath.
`pykubelet explain pod` shows how far the copies are.

    --extension /opt/extensions/warm-cache.py=/etc/warm-cache.yaml
    source: /mnt/archive            # settings: a directory for each data set
    cache: /var/cache/warm
    keep: 2                         # so many that no pod uses are kept
"""

import shutil
import threading
from pathlib import Path

from pykubelet.extension.process import Process, Wait, serve

ANNOTATION = "cache.example.com/warm"


class WarmCache(Process):
    annotation = ANNOTATION

    def start(self):
        self.source, self.cache = Path(self.settings["source"]), Path(self.settings["cache"])
        self.keep = self.settings.get("keep", 2)
        self.cache.mkdir(parents=True, exist_ok=True)
        for part in self.cache.glob(".part-*"):  # of a copy that was cut off
            shutil.rmtree(part)
        self.users = {}  # by data set: the UIDs of the pods that use it
        self.copies = {}  # by data set: the thread that copies it
        self.lock = threading.Lock()

    def prepare(self, pod):
        wanted = names(pod["metadata"]["annotations"][ANNOTATION])
        for name in wanted:
            if not (self.source / name).is_dir():
                raise LookupError(f"there is no data set {name} in {self.source}")
        with self.lock:
            for name in wanted:
                self.users.setdefault(name, set()).add(pod["metadata"]["uid"])
                if not (self.cache / name).exists() and name not in self.copies:
                    self.copies[name] = threading.Thread(target=self.copy, args=(name,), daemon=True)
                    self.copies[name].start()
            there = [name for name in wanted if (self.cache / name).exists()]
        if len(there) < len(wanted):
            return Wait(f"{len(there)} of {len(wanted)} data sets are in the cache", again_s=0.5)
        return None

    def copy(self, name):
        try:
            part = self.cache / f".part-{name}"
            shutil.copytree(self.source / name, part)
            part.rename(self.cache / name)
        finally:
            with self.lock:
                del self.copies[name]

    def release(self, pod):
        with self.lock:
            for users in self.users.values():
                users.discard(pod["metadata"]["uid"])
            unused = [path for path in self.cache.iterdir() if not self.users.get(path.name) and path.name[0] != "."]
            unused.sort(key=lambda path: path.stat().st_mtime)
            for path in unused[: max(0, len(unused) - self.keep)]:
                shutil.rmtree(path)


def names(text):
    """The data sets of an annotation. ValueError: one is no plain name, which could lead out of the directories."""
    found = [name.strip() for name in text.split(",")]
    for name in found:
        if not name or "/" in name or name.startswith("."):
            raise ValueError(f"{ANNOTATION}: {name!r} is no name of a data set")
    return found


if __name__ == "__main__":
    serve(WarmCache())
