#!/bin/sh
# Runs `python -m longlife.month FOLDER WHICH` in mount and network namespaces of its own:
# what it mounts, listens at, and links in /var/log is gone with it.
# usage: launch.sh PYTHON FOLDER WHICH
set -e
if [ -z "$LONGLIFE_INSIDE" ]; then
    LONGLIFE_INSIDE=1 exec unshare --mount --net --propagation private sh "$0" "$@"
fi
ip link set lo up
ip address add 192.0.2.10/32 dev lo # the node's
ip address add 10.88.0.0/16 dev lo  # all pods'
mount -t tmpfs longlife /var/log
mount -t tmpfs longlife "$2"
status=0
"$1" -m longlife.month "$2" "$3" || status=$?
tail -c 2000000 "$2/agent.log" >"${2%/}.log"
cp "$2/sizes.jsonl" "${2%/}.sizes.jsonl" || true
exit $status
