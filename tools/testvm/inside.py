"""Runs inside the machine: the parts that were asked for, one after the other, each in a pytest of its own.

Usage: `python3 -m testvm.inside life groups`. Called again after a reboot, it goes on where it was; what is done stands in
the results folder. JUnit files and journals are left there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from testvm.parts import ENVIRONMENT, LIMITS_S, PARTS, POWER_CUT, REBOOT

RESULTS = Path("/share/results")
_STATE = RESULTS / "state.json"
_REBOOTS = Path("/run/testvm-reboots")


def main(names: list[str]) -> int:
    """The worst exit code of all steps; does not return from a step that reboots."""
    steps = [(name, number) for name in names for number in range(len(PARTS[name]))]
    state: dict[str, Any] = json.loads(_STATE.read_text()) if _STATE.exists() else {"done": 0, "code": 0, "seconds": {}}
    for name, number in steps[state["done"] :]:
        began = time.monotonic()
        state["done"] += 1
        if PARTS[name][number] == (REBOOT,):
            _save(state)
            _reboot()
        if PARTS[name][number] == (POWER_CUT,):
            _save(state)
            _cut_power()
        print(f"\n### {name}: {_uptime():.0f} s after the boot", flush=True)
        code = _pytest(name, number)
        state["code"] = state["code"] or code
        seconds = state["seconds"].get(name, 0) + time.monotonic() - began
        state["seconds"][name] = seconds
        print(f"### {name}: {'passed' if code == 0 else f'failed ({code})'}, {seconds:.0f} s", flush=True)
        _save(state)
        with (RESULTS / f"journal-{name}-{number}.txt").open("wb") as journal:
            subprocess.run(["journalctl", "-b", "-o", "short-monotonic"], stdout=journal, check=False)
    return int(state["code"])


def _pytest(name: str, number: int) -> int:
    command = [".venv/bin/pytest", "-p", "no:cacheprovider", "--color=no", "--durations=5"]
    command += ["-o", "junit_family=xunit1"]  # the other family has no `record_property` of tests
    command += [f"--junitxml={RESULTS}/{name}-{number}.xml", *PARTS[name][number]]
    process = subprocess.Popen(command, env=os.environ | ENVIRONMENT.get(name, {}))
    try:
        return process.wait(LIMITS_S[name])
    except subprocess.TimeoutExpired:
        print(f"### {name}: not done within {LIMITS_S[name]} s", flush=True)
    process.send_signal(signal.SIGINT)  # pytest then prints where it was
    try:
        process.wait(120)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return 124


def _save(state: object) -> None:
    _STATE.write_text(json.dumps(state))
    subprocess.run(["sync", "--file-system", str(_STATE)], check=False)  # not the machine's disk, for a power cut


def _reboot() -> None:
    """An ordinary reboot, as by an operator; it ends this process too."""
    _REBOOTS.touch()
    print("### reboot", flush=True)
    subprocess.run(["systemctl", "reboot"], check=False)
    time.sleep(600)
    sys.exit("the machine does not reboot")


def _cut_power() -> None:
    """The machine begins anew at once: no process ends, and nothing is written any more."""
    _REBOOTS.touch()
    print("### power cut", flush=True)
    time.sleep(2)  # so that the host has this line
    for switch in Path("/sys/devices/system/cpu").glob("cpu[1-9]*/online"):
        switch.write_text("0")  # a processor that runs during the reset may have no timer afterwards, in the emulation
    Path("/proc/sysrq-trigger").write_text("b")


def _uptime() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
