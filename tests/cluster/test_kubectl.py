"""kubectl through a real API server: logs, exec, attach, cp, port-forward, top's sources, and who is let in."""

from __future__ import annotations

import hashlib
import os
import pty
import select
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.agent import NODE_NAME, Agent, Json, make_container, make_pod
from support.api import NodeApi, endpoint_requests
from support.cluster import Cluster
from testbed import images

TALK = "echo out; echo err >&2; trap 'exit 0' TERM; while :; do sleep 0.1; done"
MIB = 1 << 20


@pytest.fixture
def web(cluster: Cluster, cluster_agent: Agent) -> str:
    cluster.run(
        make_pod("web", make_container("talk", script=TALK), make_container("cat", command=["cat"], stdin=True))
    )
    cluster.wait_ready("web")
    return "web"


def kubectl_command(cluster: Cluster, *words: str) -> list[str]:
    plane = cluster.plane
    return [str(plane.programs.kubectl), "--kubeconfig", str(plane.admin), "--namespace", cluster.namespace, *words]


def test_logs_exec_and_attach(cluster: Cluster, web: str) -> None:
    cluster.wait("its words", lambda: sorted(cluster.kubectl("logs", web, "-c", "talk").split()) == ["err", "out"])
    assert cluster.kubectl("exec", web, "-c", "talk", "--", "sh", "-c", "echo a; echo b") == "a\nb\n"
    assert cluster.kubectl("exec", "-i", web, "-c", "talk", "--", "cat", stdin="hello\n") == "hello\n"
    failing = subprocess.run(
        kubectl_command(cluster, "exec", web, "-c", "talk", "--", "sh", "-c", "exit 7"), capture_output=True, timeout=30
    )
    assert failing.returncode == 7
    with subprocess.Popen(
        kubectl_command(cluster, "attach", "-i", web, "-c", "cat"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as attached:
        assert attached.stdin is not None and attached.stdout is not None
        deadline, output = time.monotonic() + 30, b""
        while not output and time.monotonic() < deadline:  # an answer that is quicker than the attaching is not heard
            attached.stdin.write(b"ping\n")
            attached.stdin.flush()
            if select.select([attached.stdout], [], [], 1)[0]:
                output = attached.stdout.readline()
        attached.kill()
    assert output == b"ping\n"


def test_much_input_to_its_end_and_much_output(cluster: Cluster, web: str, tmp_path: Path) -> None:
    data = os.urandom(MIB) * 30
    source = tmp_path / "source"
    source.write_bytes(data)
    for command, expected in ((("sha256sum",), f"{hashlib.sha256(data).hexdigest()}  -\n".encode()), (("cat",), data)):
        with source.open("rb") as stdin:
            exec_ = kubectl_command(cluster, "exec", "-i", web, "-c", "talk", "--", *command)
            done = subprocess.run(exec_, stdin=stdin, capture_output=True, timeout=120)
        assert done.stdout == expected, done.stderr


def test_unread_input_does_not_hide_the_result(cluster: Cluster, web: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(MIB // 32))  # what a pipe takes: on more, containerd waits for a reader
    for _ in range(5):
        with source.open("rb") as stdin:
            exec_ = kubectl_command(cluster, "exec", "-i", web, "-c", "talk", "--", "sh", "-c", "head -c 3; exit 4")
            done = subprocess.run(exec_, stdin=stdin, capture_output=True, timeout=120)
        assert (done.stdout, done.returncode) == (bytes(3), 4), done.stderr


def test_exec_on_a_terminal(cluster: Cluster, web: str) -> None:
    command = ("exec", "-it", web, "-c", "talk", "--", "sh")
    output, code = on_terminal(cluster, *command, message=b"tty; echo $((6*7)); exit 5\n")
    assert b"/dev/pts/" in output and b"42" in output and code == 5, output


def on_terminal(cluster: Cluster, *words: str, message: bytes) -> tuple[bytes, int]:
    """What kubectl shows a user who types this once, and how it ends."""
    ours, theirs = pty.openpty()
    command = kubectl_command(cluster, *words)
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as shell:
        os.close(theirs)
        os.write(ours, message)
        output, deadline = b"", time.monotonic() + 30
        while time.monotonic() < deadline:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    output += os.read(ours, 65536)
                except OSError:  # kubectl has ended, and all its output is read
                    break
        try:
            code = shell.wait(10)
        except subprocess.TimeoutExpired:
            shell.kill()
            raise AssertionError(output) from None
    os.close(ours)
    return output, code


def test_following_a_log_over_its_rotation(make_cluster_agent: object, cluster: Cluster) -> None:
    agent = make_cluster_agent(containerLogMaxSize="20Ki", containerLogMonitorInterval="3s")  # type: ignore[operator]
    agent.start()
    cluster.wait_node_ready()
    script = 'i=0; while [ $i -lt 4000 ]; do i=$((i+1)); echo "line $i of a log that is rotated"; [ $((i % 40)) = 0 ] && sleep 0.1; done'
    cluster.run(make_pod("chatty", make_container(script=script), restartPolicy="Never"))
    cluster.wait_pod("chatty", "started", lambda pod: pod["status"]["phase"] in ("Running", "Succeeded"))
    text = cluster.kubectl("logs", "-f", "chatty", timeout_s=300)
    numbers = [int(line.split()[1]) for line in text.splitlines()]
    assert numbers[-1] == 4000
    assert numbers == list(range(numbers[0], 4001))


def test_copying_500_mb_both_ways(cluster: Cluster, web: str, tmp_path: Path) -> None:
    there, back = tmp_path / "there", tmp_path / "back"
    try:
        with there.open("wb") as file:
            for _ in range(500):
                file.write(os.urandom(1_000_000))
        cluster.kubectl("cp", str(there), f"{web}:/tmp/file", "-c", "talk", timeout_s=600)
        cluster.kubectl("cp", f"{web}:/tmp/file", str(back), "-c", "talk", timeout_s=600)
        inside = cluster.kubectl("exec", web, "-c", "talk", "--", "sha256sum", "/tmp/file", timeout_s=300).split()[0]
        assert inside == sha256_of(there) == sha256_of(back)
        assert back.stat().st_size == 500_000_000
    finally:
        there.unlink(missing_ok=True)
        back.unlink(missing_ok=True)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def test_debugging_a_container_from_beside(cluster: Cluster, web: str) -> None:
    """On a terminal, and by one who only listens; both see the processes of the container that they look at."""
    if cluster.plane.programs.minor < 23:
        pytest.skip("this API server has no ephemeral containers")
    debug = ("debug", web, f"--image={images.BUSYBOX}", "--target=talk", "--profile=general")
    typed = b"cat /proc/1/cmdline; echo sum $((6*7)); exit 5\n"
    output, _ = on_terminal(cluster, *debug, "--container=looker", "-it", "--", "sh", message=typed)
    assert b"echo out; echo err" in output and b"sum 42" in output, output
    script = "for n in 1 2 3 4 5 6 7 8; do sleep 0.5; cat /proc/1/cmdline; done; exit 6"  # however late one listens
    heard = cluster.kubectl(*debug, "--container=listener", "--attach", "--", "sh", "-c", script)
    assert "echo out; echo err" in heard
    pod = cluster.wait_pod(web, "both have ended", lambda pod: len(endings(pod)) == 2)
    assert endings(pod) == {"looker": 5, "listener": 6}
    assert all(status["ready"] and status["restartCount"] == 0 for status in statuses(pod))
    assert "sum 42" in cluster.kubectl("logs", web, "-c", "looker")


def endings(pod: Json) -> dict[str, int]:
    """The exit codes of ephemeral containers that have ended."""
    ended = ((s["name"], s["state"].get("terminated")) for s in pod["status"].get("ephemeralContainerStatuses", ()))
    return {name: end["exitCode"] for name, end in ended if end}


def test_port_forward_under_many_connections(cluster: Cluster, cluster_agent: Agent) -> None:
    serve = "while :; do nc -l -p 8080 -e sh -c 'read x; echo \"got $x\"' ; done"
    server = "mkdir -p /tmp/www; head -c 300000 /dev/zero > /tmp/www/file; exec httpd -f -p 8080 -h /tmp/www"
    listens = {"tcpSocket": {"port": 8080}, "periodSeconds": 1}
    cluster.run(make_pod("server", make_container(script=f"{server} || {serve}", readinessProbe=listens)))
    cluster.wait_ready("server")
    command = kubectl_command(cluster, "port-forward", "pod/server", ":8080")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as forward:
        assert forward.stdout is not None
        line = forward.stdout.readline()
        assert "Forwarding from 127.0.0.1:" in line, line
        port = int(line.split("127.0.0.1:")[1].split(" ")[0])
        got: list[int] = []

        def fetch() -> None:
            with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
                connection.sendall(b"GET /file HTTP/1.0\r\n\r\n")
                size = 0
                while data := connection.recv(65536):
                    size += len(data)
                got.append(size)

        threads = [threading.Thread(target=fetch) for _ in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        forward.kill()
    assert len(got) == 50 and all(size > 300_000 for size in got)


def test_a_new_api_server_hands_websockets_on_to_the_node(cluster: Cluster, cluster_agent: Agent, web: str) -> None:
    """The node declares that it takes them; an older API server speaks SPDY with it, which the other tests show."""
    if cluster.plane.programs.minor < 36:
        pytest.skip("this API server knows nothing of what nodes declare")
    assert cluster.kubectl("exec", web, "-c", "talk", "--", "echo", "hello") == "hello\n"
    metrics = cluster.kubectl("get", "--raw", f"/api/v1/nodes/{NODE_NAME}/proxy/metrics")
    assert 'kubelet_websocket_streaming_requests_total{subresource="exec"} 1\n' in metrics


def test_who_is_let_in(cluster: Cluster, cluster_agent: Agent, web: str) -> None:
    """The administrator by way of the API server; a service account by what it may do; no other client."""
    through = cluster.kubectl("get", "--raw", f"/api/v1/nodes/{NODE_NAME}/proxy/configz")
    assert '"kind": "KubeletConfiguration"' in through or '"kind":"KubeletConfiguration"' in through
    metrics = cluster.kubectl("get", "--raw", f"/api/v1/nodes/{NODE_NAME}/proxy/metrics/resource")
    assert f'pod="{web}"' in metrics
    assert NodeApi(cluster_agent.port).ask("/pods") == (401, "Unauthorized")
    assert NodeApi(cluster_agent.port, token="nonsense").ask("/pods") == (401, "Unauthorized")


@pytest.fixture
def reader(cluster: Cluster) -> Iterator[str]:
    """The token of a service account that may get the metrics of nodes, and no more."""
    name = f"reader-{cluster.namespace}"
    cluster.kubectl("create", "serviceaccount", "reader")
    cluster.kubectl("create", "clusterrole", name, "--verb=get", "--resource=nodes/metrics,nodes/stats")
    subject = f"--serviceaccount={cluster.namespace}:reader"
    cluster.kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", subject)
    review = {
        "user": f"system:serviceaccount:{cluster.namespace}:reader",
        "resourceAttributes": {"verb": "get", "resource": "nodes", "subresource": "metrics"},
    }

    def may() -> Any:
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return cluster.create(path, {"spec": review})["status"]["allowed"]

    try:
        cluster.wait("it is known what it may do", may)
        yield cluster.kubectl("create", "token", "reader").strip()
    finally:
        cluster.kubectl("delete", "clusterrolebinding", name)
        cluster.kubectl("delete", "clusterrole", name)


def test_a_token_opens_what_its_owner_may_and_with_the_verb_that_he_may(
    cluster: Cluster, cluster_agent: Agent, reader: str
) -> None:
    api = NodeApi(cluster_agent.port, token=reader).wait_listening()
    assert api.ask("/metrics")[0] == api.ask("/metrics/resource")[0] == api.ask("/stats/summary")[0] == 200
    user = f"user=system:serviceaccount:{cluster.namespace}:reader"
    assert api.ask("/stats/summary", "POST") == (
        403,
        f"Forbidden ({user}, verb=create, resource=nodes, subresource(s)=[stats])\n",
    )
    assert api.ask("/pods") == (403, f"Forbidden ({user}, verb=get, resource=nodes, subresource(s)=[pods proxy])\n")
    may = "/metrics", "/stats/summary"
    for method, path in endpoint_requests("web"):
        if not (method == "GET" and path.startswith(may)):
            assert api.ask(path, method)[0] == 403, (method, path)
    for trick in (
        "/../pods",
        "/%2e%2e/pods",
        "%2f..%2fpods",
        "/..%2fconfigz",
        "//pods",
        "/%00/../configz",
        "/cadvisor/../../pods",
    ):
        assert api.ask(may[0] + trick)[0] in (400, 403, 404), trick
    assert NodeApi(cluster_agent.port, token=reader[:-4]).ask("/metrics") == (401, "Unauthorized")


def test_logs_of_the_life_before_and_of_a_part(cluster: Cluster, cluster_agent: Agent) -> None:
    script = "[ -e /keep/been ] && { echo again; exec sleep 1000; }; touch /keep/been; echo first; exit 1"
    again = make_container("main", script=script, volumeMounts=[{"name": "keep", "mountPath": "/keep"}])
    cluster.run(make_pod("twice", again, volumes=[{"name": "keep", "emptyDir": {}}]))
    cluster.wait_pod("twice", "restarted", lambda pod: [s for s in statuses(pod) if s["restartCount"] and s["ready"]])
    cluster.wait("its words", lambda: cluster.kubectl("logs", "twice") == "again\n")
    assert cluster.kubectl("logs", "twice", "--previous") == "first\n"
    assert cluster.kubectl("logs", "twice", "--since=1h") == "again\n"
    assert cluster.kubectl("logs", "twice", "--since-time=2100-01-01T00:00:00Z") == ""
    assert cluster.kubectl("logs", "twice", "--limit-bytes=3") == "aga"
    stamp, _, text = cluster.kubectl("logs", "twice", "--timestamps").partition(" ")
    assert (text, stamp[:2], stamp[-1]) == ("again\n", "20", "Z")


def statuses(pod: Json) -> list[Json]:
    return list(pod["status"].get("containerStatuses", ()))
