"""What the running program does not load, because it would cost memory on every machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

#: Runs the program, asks it once as its administrator does, and prints what is loaded then. The client does without the codec `idna`.
IDLE = """
import base64, json, os, signal, socket, ssl, sys, threading, time
from pathlib import Path
from pykubelet_local_api.program import main

data, applied = map(Path, sys.argv[1:])

def ask():
    kubeconfig = data / "admin.kubeconfig"
    while not kubeconfig.exists():
        time.sleep(0.05)
    found = json.loads(kubeconfig.read_text())
    for name, key in (("crt", "client-certificate-data"), ("key", "client-key-data")):
        (data / name).write_bytes(base64.b64decode(found["users"][0]["user"][key]))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    tls.load_cert_chain(data / "crt", data / "key")
    port = int(found["clusters"][0]["cluster"]["server"].rpartition(":")[2])
    answer = b""
    while b"made" not in answer:
        with tls.wrap_socket(socket.socket()) as end:
            end.connect(("127.0.0.1", port))
            end.sendall(b"GET /api/v1/namespaces/default/configmaps HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
            answer = b"".join(iter(lambda: end.recv(65536), b""))
    print(*sys.modules, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=ask, daemon=True).start()
options = ["--data-dir", str(data), "--port", "0", "--node-name", "one", "--service-address", ""]
sys.exit(main([*options, "--apply-dir", str(applied)]))
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("idle")
    (folder / "applied").mkdir()
    manifest = '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made", "namespace": "default"}}'
    (folder / "applied" / "made.json").write_text(manifest)
    argv = (sys.executable, "-c", IDLE, str(folder / "data"), str(folder / "applied"))
    return subprocess.run(argv, capture_output=True, check=True, text=True, timeout=120).stdout.split()


@pytest.mark.parametrize(
    "module",
    [
        "_strptime",
        "argparse",
        "cryptography",
        "email",
        "encodings.idna",
        "google.protobuf",
        "pykubelet.edges.host.cgroups.cgroup_stats",
        "pykubelet.app.flags_table",
        "shutil",
        "tempfile",
        "urllib.request",
        "yaml",
    ],
)
def test_a_module_that_takes_memory_is_not_loaded(module: str, loaded: list[str]) -> None:
    assert "pykubelet_local_api.access.tokens" in loaded
    assert module not in loaded


def test_the_help_does_not_ask_for_the_width_of_a_terminal(tmp_path: Path) -> None:
    program = "import sys; from pykubelet_local_api.options import build_parser; print(build_parser().format_help())"
    argv = (sys.executable, "-c", f"{program}; sys.exit('shutil' in sys.modules)")
    assert "--data-dir" in subprocess.run(argv, capture_output=True, check=True, text=True, cwd=tmp_path).stdout
