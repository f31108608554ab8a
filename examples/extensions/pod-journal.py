#!/usr/bin/env python3
"""An observer: one line for each transition and phase of a pod, in a file of limited size, for those who study what a node does.

--extension /opt/extensions/pod-journal.py=/etc/pod-journal.yaml
file: /var/log/pod-journal.jsonl      # settings
bytes: 10000000                       # then it is renamed to FILE.1
"""

import json
import os

from pykubelet.extension.process import Process, serve


class PodJournal(Process):
    def start(self):
        self.path, self.most = self.settings["file"], self.settings.get("bytes", 10_000_000)
        self.phases = {}

    def on_transition(self, transition):
        pod = transition["pod"]["metadata"]
        if transition["stage"] == "gone":
            self.phases.pop(pod["uid"], None)
        self.write(pod, at=transition["at"], stage=transition["stage"], reason=transition["reason"])

    def on_status(self, pod, status):
        pod, phase = pod["metadata"], status.get("phase", "")
        if self.phases.get(pod["uid"]) != phase:
            self.phases[pod["uid"]] = phase
            self.write(pod, phase=phase, reason=status.get("reason", ""))

    def write(self, pod, **what):
        line = {"pod": f"{pod['namespace']}/{pod['name']}", "uid": pod["uid"], **what}
        with open(self.path, "a", encoding="utf-8") as journal:
            print(json.dumps(line), file=journal)
        if os.path.getsize(self.path) > self.most:
            os.replace(self.path, f"{self.path}.1")


if __name__ == "__main__":
    serve(PodJournal())
