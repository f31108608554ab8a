"""Faults on order: a runtime or a network that hangs for one pod. A file system that hangs is in `fuse.py`.

Owns a folder of programs that stand before the machine's own: `runc`, and the CNI plugin `bridge`. Both look for a flag
named after what they are asked and for which pod, and wait as long as it is there; otherwise they are the real ones. A flag
is a pipe without a writer: waiting for it costs nothing, so that a fault does not slow the others down by itself. Give the
folder to `containerd.up(bin_dir=...)`. Pods are named as the runtime knows them.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from testbed.host import TestbedError

CNI_BIN = Path("/usr/lib/cni")
_SBIN = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_RUNC = """#!/bin/sh
# containerd's shim runs it in the bundle of the pod's sandbox. CRI-O names the bundle of a container that is to be made;
# what is known of the others is below the root. Docker Engine keeps the pod's name only as the host name
root= seen=config.json previous=
for argument in "$@"; do
  case $argument in --root=*) root=${{argument#--root=}} ;; esac
  case $previous in
    --root) root=$argument ;;
    --bundle) seen="$seen $argument/config.json" ;;
  esac
  if [ -n "$root" ] && [ -e "$root/$argument/state.json" ]; then seen="$seen $root/$argument/state.json"; fi
  previous=$argument
done
for flag in {flags}/runc.*; do
  [ -e "$flag" ] || break
  what=${{flag##*/runc.}}; verb=${{what%%.*}}; pod=${{what#*.}}
  case " $* " in
    *" $verb "*)
      if grep -q "\\(io\\.kubernetes\\.\\(cri\\.sandbox-\\|pod\\.\\)name\\|\\"hostname\\)[\\": =]*$pod\\"" $seen 2>/dev/null; then
        while [ -e "$flag" ]; do read -r _ <"$flag"; done 2>/dev/null
      fi ;;
  esac
done
exec {program} "$@"
"""
_BRIDGE = """#!/bin/sh
for flag in {flags}/cni.*; do
  [ -e "$flag" ] || break
  what=${{flag##*/cni.}}; command=${{what%%.*}}; pod=${{what#*.}}
  if [ "$CNI_COMMAND" = "$command" ]; then
    case ";$CNI_ARGS;" in
      *";K8S_POD_NAME=$pod;"*) while [ -e "$flag" ]; do read -r _ <"$flag"; done 2>/dev/null ;;
    esac
  fi
done
exec {program} "$@"
"""


class Faults:
    """Programs below `folder`. A fault lasts until it is released, however long its victims wait."""

    def __init__(self, folder: Path) -> None:
        self.bin_dir = folder / "bin"
        self._flags = folder / "flags"
        (self.bin_dir / "cni").mkdir(parents=True)
        self._flags.mkdir()
        other = os.environ.get("TESTBED_BIN", "")
        for program in Path(other).iterdir() if other else ():
            (self.bin_dir / program.name).symlink_to(program)
        for plugin in CNI_BIN.iterdir():
            (self.bin_dir / "cni" / plugin.name).symlink_to(plugin)
        runc = shutil.which("runc", path=f"{other}:{_SBIN}" if other else _SBIN)
        if runc is None:
            raise TestbedError("runc is missing: install the Debian package runc")
        self._write(self.bin_dir / "runc", _RUNC, Path(runc))
        self._write(self.bin_dir / "cni" / "bridge", _BRIDGE, CNI_BIN / "bridge")

    def _write(self, path: Path, text: str, program: Path) -> None:
        path.unlink(missing_ok=True)
        path.write_text(text.format(flags=self._flags, program=program))
        path.chmod(0o755)

    def hang_runtime(self, pod: str, verb: str) -> None:
        """From now on `runc <verb>` (create, start, kill, exec, delete) does not return for this pod."""
        os.mkfifo(self._flags / f"runc.{verb}.{pod}")

    def hang_network(self, pod: str, command: str = "ADD") -> None:
        """From now on the CNI plugin does not return for this pod."""
        os.mkfifo(self._flags / f"cni.{command}.{pod}")

    def release(self) -> None:
        """End all faults. A reader of a flag gets its end once nothing can write to it any more."""
        for flag in self._flags.iterdir():
            writer = os.open(flag, os.O_RDWR)
            flag.unlink()
            os.close(writer)
