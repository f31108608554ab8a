#!/usr/bin/env python3
"""A kind of probe: a container is ready while its queue, a directory of the node, has few messages.

No program in the container is needed, and none is started for the probe:

    readinessProbe:
      exec: {command: ["extension:queue-depth", "orders", "100"]}

    --extension /opt/extensions/queue-depth.py=/etc/queue-depth.yaml
    queues: /var/spool/queues             # settings: a directory for each queue
"""

import os
from pathlib import Path

from pykubelet.extension.process import Process, serve


class QueueDepth(Process):
    def probe(self, pod, container, args):
        name, most = args[0], int(args[1])
        if "/" in name or name.startswith("."):
            raise ValueError(f"{name!r} is no name of a queue")
        with os.scandir(Path(self.settings["queues"]) / name) as messages:
            count = sum(1 for _ in messages)
        return count <= most, f"{count} messages wait in {name}; {most} may"


if __name__ == "__main__":
    serve(QueueDepth())
