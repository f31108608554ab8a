#!/bin/sh
# Run a node as an ordinary user: containerd and the agent in a user namespace made by rootlesskit. See docs/rootless.md.
#
# Usage: node.sh FOLDER [FLAG OF THE AGENT ...]
# Everything is in FOLDER. Ctrl-C ends the node with all its containers. With the variables of a test or of a distribution:
#   PYKUBELET  the agent's program              CONTAINERD_BIN  a folder with containerd, its shim and runc
#   CNI_BIN    the folder of the CNI plugins    SANDBOX_IMAGE   the image of sandboxes
#   IMAGES     image archives to import first   CGROUPS         `yes` or `no`; default: whether a cgroup is delegated
#   ROOTLESSKIT_FLAGS  more flags of rootlesskit, such as `-p 127.0.0.1:8080:8080/tcp --port-driver=builtin`
set -eu

delegated() { # whether this process is in a cgroup of version 2 that it may divide, with the controllers that pods need
  group=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)
  [ -w "$group/cgroup.procs" ] || return 1
  for controller in cpu cpuset memory pids; do
    grep -qw "$controller" "$group/cgroup.controllers" 2>/dev/null || return 1
  done
}

if [ "${ROOTLESS_STEP:-}" != inside ]; then
  mkdir -p "$1"
  ROOTLESS_FOLDER=$(cd "$1" && pwd)
  shift
  if [ -z "${CGROUPS:-}" ]; then
    if delegated; then CGROUPS=yes; else CGROUPS=no; fi
  fi
  if [ "$CGROUPS" = yes ]; then cgroups="--cgroupns --evacuate-cgroup2=evac"; else cgroups=; fi
  export ROOTLESS_STEP=inside ROOTLESS_FOLDER CGROUPS
  # copies of these folders are writable here: what programs expect in them is made anew below
  # shellcheck disable=SC2086
  exec rootlesskit --state-dir="$ROOTLESS_FOLDER/rootlesskit" --net=slirp4netns --mtu=65520 --disable-host-loopback \
    --copy-up=/etc --copy-up=/run --copy-up=/var/lib --copy-up=/var/log --propagation=rslave \
    --pidns --utsns --ipcns $cgroups ${ROOTLESSKIT_FLAGS:-} "$0" "$@"
fi

folder=$ROOTLESS_FOLDER
unset ROOTLESS_STEP
PATH=${CONTAINERD_BIN:+$CONTAINERD_BIN:}$PATH:/usr/local/sbin:/usr/sbin:/sbin
export PATH
# of the machine's own runtime and agent: links into folders that belong to root
rm -rf /run/containerd /run/pykubelet /run/netns /run/xtables.lock /var/lib/cni /var/lib/kubelet \
  /var/log/containers /var/log/pods
mkdir -p "$folder/containerd" "$folder/cni" "$folder/manifests"
if [ "$CGROUPS" = yes ]; then no_cgroup=false; else no_cgroup=true; fi
if [ "$CGROUPS" = no ] && containerd --version | grep -q ' v\?2\.'; then
  echo "containerd 2 runs no pods without cgroups: have a cgroup delegated (docs/rootless.md), or use containerd 1.7" >&2
  exit 1
fi
sandbox_image=
[ -z "${SANDBOX_IMAGE:-}" ] || sandbox_image="sandbox_image = \"$SANDBOX_IMAGE\""

cat > "$folder/containerd.toml" <<END
version = 2
root = "$folder/containerd/root"
state = "/run/containerd"
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
$sandbox_image
disable_cgroup = $no_cgroup
disable_apparmor = true
disable_hugetlb_controller = true
tolerate_missing_hugetlb_controller = true
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "${CNI_BIN:-/usr/lib/cni}"
conf_dir = "$folder/cni"
END
[ -n "$(ls "$folder/cni")" ] || cat > "$folder/cni/10-pods.conflist" <<END
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
END
# the first time; change it as you like
[ -e "$folder/kubelet.yaml" ] || cat > "$folder/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: $folder/manifests
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
podLogsDir: $folder/logs
volumePluginDir: $folder/volumeplugins
cgroupDriver: cgroupfs
$([ "$CGROUPS" = yes ] || printf 'cgroupsPerQOS: false\nenforceNodeAllocatable: []\nfailCgroupV1: false\n')
failSwapOn: false
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
END

containerd --config "$folder/containerd.toml" > "$folder/containerd.log" 2>&1 &
until ctr --address /run/containerd/containerd.sock version > /dev/null 2>&1; do
  kill -0 $! 2> /dev/null || { tail "$folder/containerd.log" >&2; exit 1; }
  sleep 0.2
done
for archive in ${IMAGES:-}; do
  ctr --address /run/containerd/containerd.sock --namespace k8s.io images import "$archive"
done

# an agent that is killed is started again, and finds its containers; the end of this script ends them all
trap 'ending=yes; kill -TERM "$agent"' TERM INT
ending=
while :; do
  "${PYKUBELET:-pykubelet}" --config "$folder/kubelet.yaml" --root-dir "$folder/kubelet" \
    --cert-dir "$folder/kubelet/pki" "$@" &
  agent=$!
  code=0
  wait "$agent" || code=$?
  [ -z "$ending" ] || wait "$agent" || code=$?
  if [ -n "$ending" ] || [ $code -lt 128 ]; then exit $code; fi
  sleep 1
done
