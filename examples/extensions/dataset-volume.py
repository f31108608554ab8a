#!/usr/bin/env python3
"""A volume kind: data sets that are fetched for a pod, and unpacked into its volume. `pykubelet explain pod` shows how far that is.

A pod names the archive, a file of `source`; options of the volume:

    volumes:
    - name: corpus
      flexVolume:
        driver: extension/dataset-volume
        readOnly: true
        options: {archive: corpus.zip, sha256: 9f86d081...}      # sha256 may be left out

    --extension /opt/extensions/dataset-volume.py=/etc/dataset-volume.yaml
    source: /mnt/archives           # settings
"""

import hashlib
import os
import shutil
import threading
import zipfile
from pathlib import Path

from pykubelet.extension.process import Process, Wait, serve

#: In the volume's directory until all is there.
PART = ".part"


class DatasetVolume(Process):
    def start(self):
        self.source = Path(self.settings["source"])
        self.jobs = {}  # by path of the volume: what unpacks it
        self.lock = threading.Lock()

    def set_up(self, volume):
        name = volume.options.get("archive", "")
        if not name or "/" in name or name.startswith("."):
            raise ValueError(f"options: archive: {name!r} is no name of a file in {self.source}")
        with self.lock:
            job = self.jobs.get(volume.path)
            if job is None:
                if is_filled(volume.path):  # by this program before the agent, or it, was started again
                    return None
                job = self.jobs[volume.path] = Job(self.source / name, volume)
                job.start()
        if job.is_alive():
            return Wait(f"{job.files} files of {name} are unpacked", again_s=0.5)
        with self.lock:
            self.jobs.pop(volume.path, None)
        if job.error is not None:
            raise job.error
        return None

    def tear_down(self, volume):
        """The agent deletes the files. Nothing may be written to the directory any more."""
        with self.lock:
            job = self.jobs.pop(volume.path, None)
        if job is not None:
            job.is_cancelled = True
            job.join()


def is_filled(path):
    found = os.listdir(path)
    return bool(found) and PART not in found


class Job(threading.Thread):
    def __init__(self, archive, volume):
        super().__init__(daemon=True)
        self.archive, self.path, self.wanted = archive, volume.path, volume.options.get("sha256")
        self.files, self.error, self.is_cancelled = 0, None, False

    def run(self):
        part = Path(self.path, PART)
        try:
            for old in Path(self.path).iterdir():  # of a program that was killed
                shutil.rmtree(old) if old.is_dir() else old.unlink()
            part.mkdir()
            with open(self.archive, "rb") as file:
                if self.wanted and hashlib.file_digest(file, "sha256").hexdigest() != self.wanted:
                    raise ValueError(f"{self.archive} has another sha256")
            with zipfile.ZipFile(self.archive) as archive:
                for name in archive.namelist():
                    if self.is_cancelled:
                        return
                    archive.extract(name, part)  # makes no links, and no name leads out
                    self.files += 1
            for entry in part.iterdir():
                entry.rename(Path(self.path, entry.name))
            part.rmdir()
        except Exception as error:  # noqa: BLE001 - shown to users
            self.error = error


if __name__ == "__main__":
    serve(DatasetVolume())
