"""The host name of a pod, and its `/etc/hosts`. Pure.

Source: Kubernetes docs, "DNS for Services and Pods" (hostname, subdomain, setHostnameAsFQDN, KEP-4762 hostnameOverride)
and "Adding entries to Pod /etc/hosts with HostAliases".
"""

from __future__ import annotations

from pykubelet.act.runtime.render.context import RenderSettings
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.api.core import HostAlias, Pod
from pykubelet.base.api.labels import dns_label_errors, dns_subdomain_errors
from pykubelet.base.kit.values import Value

ETC_HOSTS = "/etc/hosts"
MAX_HOSTNAME = 63
MAX_KERNEL_HOSTNAME = 64

_HEADER = "# Kubernetes-managed hosts file.\n"
_HEADER_HOST_NETWORK = "# Kubernetes-managed hosts file (host network).\n"
_LOCAL = (
    "127.0.0.1\tlocalhost\n"
    "::1\tlocalhost ip6-localhost ip6-loopback\n"
    "fe00::0\tip6-localnet\n"
    "fe00::0\tip6-mcastprefix\n"
    "fe00::1\tip6-allnodes\n"
    "fe00::2\tip6-allrouters\n"
)


class PodName(Value):
    """`hostname`: the short name. `domain`: the rest of the full name, or "". `kernel`: the name that `hostname` prints."""

    hostname: str
    domain: str
    kernel: str


def name_pod(pod: Pod, cluster_domain: str) -> PodName:
    """The pod's host names. Raises ContainerStartError if those in the spec are invalid."""
    spec = pod.spec
    if spec.hostnameOverride:
        problems = dns_subdomain_errors(spec.hostnameOverride)
        if len(spec.hostnameOverride) > MAX_KERNEL_HOSTNAME:
            problems = [f"must be no more than {MAX_KERNEL_HOSTNAME} bytes"]
        _refuse("HostnameOverride", spec.hostnameOverride, "subdomain", problems)
        return PodName(spec.hostnameOverride, "", spec.hostnameOverride)
    if spec.hostname:
        _refuse("Hostname", spec.hostname, "label", dns_label_errors(spec.hostname))
    hostname = _truncated(pod.metadata.name, spec.hostname or pod.metadata.name)
    domain = ""
    if spec.subdomain:
        _refuse("Subdomain", spec.subdomain, "label", dns_label_errors(spec.subdomain))
        domain = f"{spec.subdomain}.{pod.metadata.namespace}.svc.{cluster_domain}"
    if not (domain and spec.setHostnameAsFQDN):
        return PodName(hostname, domain, hostname)
    full = f"{hostname}.{domain}"
    if len(full) > MAX_KERNEL_HOSTNAME:
        raise ContainerStartError(
            f"failed to construct FQDN from pod hostname and cluster domain, FQDN {full} is too long "
            f"({MAX_KERNEL_HOSTNAME} characters is the max, {len(full)} characters requested)"
        )
    return PodName(hostname, domain, full)


def etc_hosts_content(pod: Pod, settings: RenderSettings, pod_ips: tuple[str, ...], node_hosts: str) -> str:
    """The text of the pod's `/etc/hosts`. `node_hosts`: the text of the node's file, for pods with `hostNetwork`."""
    aliases = _alias_lines(pod.spec.hostAliases)
    if pod.spec.hostNetwork:
        return _HEADER_HOST_NETWORK + node_hosts + aliases
    name = name_pod(pod, settings.cluster_domain)
    names = f"{name.hostname}.{name.domain}\t{name.hostname}" if name.domain else name.hostname
    return _HEADER + _LOCAL + "".join(f"{ip}\t{names}\n" for ip in pod_ips) + aliases


def _alias_lines(aliases: tuple[HostAlias, ...]) -> str:
    if not aliases:
        return ""
    lines = "".join(f"{alias.ip}\t{chr(9).join(alias.hostnames)}\n" for alias in aliases)
    return "\n# Entries added by HostAliases.\n" + lines


def _refuse(field: str, value: str, kind: str, problems: list[str]) -> None:
    if problems:
        raise ContainerStartError(f'pod {field} "{value}" is not a valid DNS {kind}: {";".join(problems)}')


def _truncated(pod_name: str, hostname: str) -> str:
    if len(hostname) <= MAX_HOSTNAME:
        return hostname
    kept = hostname[:MAX_HOSTNAME].rstrip("-.")
    if not kept:
        raise ContainerStartError(f'hostname for pod "{pod_name}" was invalid: "{hostname}"')
    return kept
