#!/usr/bin/env python3
"""A source of pods: programs of this machine send messages to a Unix socket, and no API server stands in between.

    {"apply": {"metadata": {"name": "web"}, "spec": {...}}}      start a pod, or replace it
    {"delete": "web"}                                            end it

One JSON object a line, each answered by a line: "ok", or what is wrong. Pods are kept in a file, so that they survive a restart.

    --extension /opt/extensions/message-socket.py=/etc/message-socket.yaml
    socket: /run/message-socket.sock      # settings
    state: /var/lib/message-socket.json
"""

import json
import os
import socketserver
import threading
from pathlib import Path

from pykubelet.extension.process import Process, serve

LONGEST = 256 << 10
MOST_PODS = 100


class MessageSocket(Process):
    def start(self):
        self.path, self.state = self.settings["socket"], Path(self.settings["state"])
        self.pods = json.loads(self.state.read_text()) if self.state.exists() else {}
        self.changing = threading.Lock()

    def watch(self):
        self.send_pods(list(self.pods.values()))
        Path(self.path).unlink(missing_ok=True)
        os.umask(0o077)  # only root may send messages
        with Server(self.path, Messages) as server:
            server.extension = self
            server.serve_forever()

    def take(self, message):
        """Carry out a message. ValueError: it is none."""
        match message:
            case {"apply": {"metadata": {"name": str(name)}} as pod}:
                changed = {**self.pods, name: pod}
            case {"delete": str(name)}:
                changed = {key: pod for key, pod in self.pods.items() if key != name}
            case _:
                raise ValueError('expected {"apply": {a v1 Pod}} or {"delete": "NAME"}')
        if len(changed) > MOST_PODS:
            raise ValueError(f"there are {MOST_PODS} pods already")
        if changed != self.pods:
            part = self.state.with_suffix(".part")
            part.write_text(json.dumps(changed))
            part.replace(self.state)
            self.pods = changed
            self.send_pods(list(changed.values()))


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    extension: MessageSocket


class Messages(socketserver.StreamRequestHandler):
    timeout = 60

    def handle(self):
        while line := self.rfile.readline(LONGEST):
            try:
                with self.server.extension.changing:
                    self.server.extension.take(json.loads(line))
                answer = "ok"
            except ValueError as error:
                answer = f"error: {error}"
            self.wfile.write(f"{answer}\n".encode())


if __name__ == "__main__":
    serve(MessageSocket())
