#!/bin/sh
# Runs `python -m longlife.MODULE FOLDER ARGUMENTS...` in mount and network namespaces of its own:
# what it mounts, listens at, and links in /var/log is gone with it.
# usage: launch.sh PYTHON MODULE FOLDER ARGUMENTS...
set -e
if [ -z "$LONGLIFE_INSIDE" ]; then
    LONGLIFE_INSIDE=1 exec unshare --mount --net --propagation private sh "$0" "$@"
fi
python=$1 module=$2 folder=$3
shift 3
ip link set lo up
ip address add 192.0.2.10/32 dev lo # the node's
ip address add 10.88.0.0/16 dev lo  # all pods'
mount -t tmpfs longlife /var/log
mount -t tmpfs longlife "$folder"
status=0
"$python" -m "longlife.$module" "$folder" "$@" || status=$?
tail -c 2000000 "$folder/agent.log" >"${folder%/}.log"
cp "$folder/sizes.jsonl" "${folder%/}.sizes.jsonl" 2>/dev/null || true
exit $status
