#!/bin/sh
# Runs `python -m hostile.specs.MODULE FOLDER ARGUMENTS...` in mount and network namespaces of its own:
# what it mounts, listens at, and links in /var/log is gone with it.
# usage: launch.sh PYTHON MODULE FOLDER ARGUMENTS...
set -e
if [ -z "$SPECS_INSIDE" ]; then
    SPECS_INSIDE=1 exec unshare --mount --net --propagation private sh "$0" "$@"
fi
python=$1 module=$2 folder=$3
shift 3
ip link set lo up
ip address add 192.0.2.10/32 dev lo # the node's
ip address add 10.88.0.0/16 dev lo  # all pods'
mount -t tmpfs specs /var/log
mount -t tmpfs specs "$folder"
status=0
"$python" -m "hostile.specs.$module" "$folder" "$@" || status=$?
tail -c 2000000 "$folder/agent.log" >"${folder%/}.log"
exit $status
