"""The names of a pod: its resolver configuration, its host name and its `/etc/hosts`. Pure.

Rules of the resolver (source: Kubernetes docs, "DNS for Services and Pods", and KEP-2595 for the limits):
- `None`: only dnsConfig is used. `ClusterFirstWithHostNet`, and `ClusterFirst` without the host's network: the cluster's
  servers, its domains before the host's, and `ndots:5`. Without configured servers, as `Default`, with Events about it.
- `Default`, and `ClusterFirst` with the host's network: the host's file. If resolvConf is "", no lookup leaves the pod. Servers with an
  IPv6 zone (`fe80::1%eth0`) are on a link of the host, which only pods with the host's network have.
- dnsConfig is appended; its options replace options of the same name.
- At most 3 servers, 32 search domains, and 2048 characters in the search line. The rest is dropped, with an Event.

Source of the other names: the same page (hostname, subdomain, setHostnameAsFQDN, KEP-4762 hostnameOverride), and "Adding entries to Pod
/etc/hosts with HostAliases".
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from pykubelet.act.runtime.render.context import RenderSettings
from pykubelet.act.runtime.start_error import ContainerStartError
from pykubelet.base.api.core import HostAlias, Pod, PodDNSConfig
from pykubelet.base.api.labels import dns_label_errors, dns_subdomain_errors
from pykubelet.base.kit.values import Value, replace
from pykubelet.base.model.ids import PodRef
from pykubelet.base.model.kube_events import KubeEvent, warning
from pykubelet.base.model.reasons import (
    CREATE_POD_SANDBOX_ERROR,
    EVENT_CHECK_LIMITS_FOR_RESOLV_CONF,
    EVENT_DNS_CONFIG_FORMING,
    EVENT_MISSING_CLUSTER_DNS,
)
from pykubelet.base.model.roster import pod_ref
from pykubelet.edges.cri import cri_pb2

MAX_NAMESERVERS = 3
MAX_SEARCH_PATHS = 32
MAX_SEARCH_LINE = 2048
MAX_DOMAIN = 253
_CLUSTER_OPTIONS = ("ndots:5",)
_CLUSTER_DOMAINS = 3

_MISSING_CLUSTER_DNS = (
    'kubelet does not have ClusterDNS IP configured and cannot create Pod using "ClusterFirst" policy. '
    'Falling back to "Default" policy.'
)


class Resolver(Value):
    """The `nameserver`, `search` and `options` of a resolv.conf."""

    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


@lru_cache(maxsize=8)
def parse_resolv_conf(text: str) -> Resolver:
    """Parse a resolv.conf. Only the last `search` line counts, and the last option of each name. ContainerStartError for a
    `nameserver` line without an address."""
    servers: list[str] = []
    searches: list[str] = []
    options: dict[str, str] = {}
    for line in text.split("\n"):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if words[0] == "nameserver":
            if len(words) < 2:
                raise ContainerStartError("nameserver list is empty ", CREATE_POD_SANDBOX_ERROR)
            servers.append(words[1])
        elif words[0] == "search":
            # A domain with and without the final dot is the same, and must not count twice.
            searches = [word.removesuffix(".") for word in words[1:] if word != "."]
        elif words[0] == "options":
            options.update((word.partition(":")[0], word) for word in words[1:])
    return Resolver(tuple(servers), tuple(searches), tuple(options.values()))


def dns_config(pod: Pod, settings: RenderSettings) -> tuple[cri_pb2.DNSConfig, tuple[KubeEvent, ...]]:
    """The pod's resolver, and the Events about dropped or missing parts. ContainerStartError if the host's file is unusable."""
    ref = pod_ref(pod)
    events: list[KubeEvent] = []
    resolver = _base(pod, settings, ref, events)
    if pod.spec.dnsConfig is not None:
        resolver = _with_pod_config(resolver, pod.spec.dnsConfig)
    servers = _fitting_servers(resolver.servers, ref, events)
    searches = _fitting_searches(resolver.searches, ref, events)
    return cri_pb2.DNSConfig(servers=servers, searches=searches, options=resolver.options), tuple(events)


def resolv_conf_warnings(path: str, text: str, cluster_domain: str) -> tuple[KubeEvent, ...]:
    """The Event at the start about a host file with too many or too long search domains; at most one."""
    try:
        searches = parse_resolv_conf(text).searches
    except ContainerStartError as error:
        return (warning(EVENT_CHECK_LIMITS_FOR_RESOLV_CONF, error.message),)
    limit = MAX_SEARCH_PATHS - (_CLUSTER_DOMAINS if cluster_domain else 0)
    problem = ""
    if len(searches) > limit:
        problem = f"Resolv.conf file '{path}' contains search line consisting of more than {limit} domains!"
    elif any(len(domain) > MAX_DOMAIN for domain in searches):
        problem = (
            f'Resolv.conf file "{path}" contains a search path which length is more than allowed {MAX_DOMAIN} chars!'
        )
    elif len(" ".join(searches)) > MAX_SEARCH_LINE:
        problem = (
            f"Resolv.conf file '{path}' contains search line which length is more than allowed {MAX_SEARCH_LINE} chars!"
        )
    return (warning(EVENT_CHECK_LIMITS_FOR_RESOLV_CONF, problem),) if problem else ()


def _base(pod: Pod, settings: RenderSettings, ref: PodRef, events: list[KubeEvent]) -> Resolver:
    """The resolver of the dnsPolicy, without dnsConfig."""
    if settings.resolv_conf_error:
        raise ContainerStartError(settings.resolv_conf_error, CREATE_POD_SANDBOX_ERROR)
    try:
        host = parse_resolv_conf(settings.resolv_conf) if settings.resolv_conf is not None else Resolver()
    except ContainerStartError as error:
        text = f"Encountered error while parsing resolv conf file. Error: {error.message}"
        raise ContainerStartError(text, error.reason) from error
    policy = pod.spec.dnsPolicy
    if policy == "None":
        return Resolver()
    if policy != "Default" and not (policy == "ClusterFirst" and pod.spec.hostNetwork):
        if settings.cluster_dns:
            searches = _cluster_searches(pod.metadata.namespace, settings.cluster_domain, host.searches)
            return Resolver(settings.cluster_dns, searches, _CLUSTER_OPTIONS)
        events.append(warning(EVENT_MISSING_CLUSTER_DNS, _MISSING_CLUSTER_DNS))
        events.append(warning(EVENT_MISSING_CLUSTER_DNS, f'pod: "{ref}". {_MISSING_CLUSTER_DNS}', ref))
    if settings.resolv_conf is not None:
        return host if pod.spec.hostNetwork else replace(host, servers=tuple(s for s in host.servers if "%" not in s))
    # Without servers, a resolver queries the local machine. Stating it prevents the runtime's default, the host's file.
    local = tuple("::1" if ":" in ip else "127.0.0.1" for ip in settings.node.ips)
    return Resolver(local or ("127.0.0.1",), (".",))


def _cluster_searches(namespace: str, domain: str, host: tuple[str, ...]) -> tuple[str, ...]:
    if not domain:
        return host
    return _unique((f"{namespace}.svc.{domain}", f"svc.{domain}", domain, *host))


def _with_pod_config(base: Resolver, config: PodDNSConfig) -> Resolver:
    options = {option.partition(":")[0]: option.partition(":")[2] for option in base.options}
    options.update((option.name, option.value) for option in config.options)
    return Resolver(
        _unique((*base.servers, *config.nameservers)),
        _unique((*base.searches, *config.searches)),
        tuple(f"{name}:{value}" if value else name for name, value in options.items()),
    )


def _unique(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))


def _fitting_servers(servers: tuple[str, ...], ref: PodRef, events: list[KubeEvent]) -> tuple[str, ...]:
    if len(servers) <= MAX_NAMESERVERS:
        return servers
    kept = servers[:MAX_NAMESERVERS]
    text = "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: "
    events.append(warning(EVENT_DNS_CONFIG_FORMING, text + " ".join(kept), ref))
    return kept


def _fitting_searches(searches: tuple[str, ...], ref: PodRef, events: list[KubeEvent]) -> tuple[str, ...]:
    # glibc aborts on longer domains.
    kept = [domain for domain in searches[:MAX_SEARCH_PATHS] if len(domain) <= MAX_DOMAIN]
    while len(" ".join(kept)) > MAX_SEARCH_LINE:
        kept.pop()
    if len(kept) != len(searches):
        text = "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: "
        events.append(warning(EVENT_DNS_CONFIG_FORMING, text + " ".join(kept), ref))
    return tuple(kept)


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
