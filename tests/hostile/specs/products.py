"""Pods in which two things multiply: each with each is far more than the 1.5 MB that an API server admits.

`share`: the part of the largest size, up to 1.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from hostile.specs.pods import ANNOTATIONS, COLLECTIONS, WHOLE, Case, base_pod, element, merged, raw
from hostile.specs.structs import IMAGE, Json

from pykubelet.base.api import core

#: As many as a pod may have.
CONTAINERS, VOLUMES, CLAIMS, SUB_PATHS = 490, 3_990, 990, 1_990
Spec = Callable[[float], Case]
PRODUCTS: dict[str, Spec] = {}
CONTAINER = f'{{"name":"c%d","image":"{IMAGE}"%s}}'


def product(made: Spec) -> Spec:
    PRODUCTS[made.__name__.replace("_", " ")] = made
    return made


def _case(*objects: tuple[type, Json], annotations: Any = None, container: Json | None = None, **spec: Any) -> Case:
    pod = base_pod(**spec)
    if container is not None:
        pod["spec"]["containers"][0].update(container)
    if annotations is not None:
        pod["metadata"]["annotations"] = annotations
    stored = tuple((COLLECTIONS[cls], merged(element(cls), item)) for cls, item in objects)
    return Case("", pod, stored)


def _some(entry: str, most: int, share: float) -> Any:
    """JSON of so many entries, of which `share` is there."""
    return raw("[%s]", entry, max(1, int(most * share)))


def _containers(most: int, share: float, more: str = "") -> Any:
    return _some(CONTAINER.replace("%s", f",{more}" if more else ""), most, share)


def _chain(share: float) -> Iterator[Json]:
    yield {"name": "A0", "value": "0123456789"}
    for number in range(1, max(2, int(1000 * share))):
        yield {"name": f"A{number}", "value": f"$(A{number - 1})" * 10}


@product
def env_with_references_to_env(share: float) -> Case:
    return _case(container={"env": [*_chain(share)]})


@product
def env_with_references_to_one_long_variable(share: float) -> Case:
    long = {"name": "A", "value": "a" * 100_000}
    count = int(50_000 * share)
    others = raw("[%s]", '{"name":"E%d","value":"$(A)"}', count)
    return _case(container={"env": [long, *_decoded(others)]})


@product
def env_with_unclosed_references(share: float) -> Case:
    return _case(container={"env": [{"name": "A", "value": "$(" * int(WHOLE * share / 2)}]})


@product
def arguments_with_references(share: float) -> Case:
    return _case(container={"env": [{"name": "A", "value": "1"}], "args": ["$(A)"] * int(200_000 * share)})


@product
def env_from_with_prefixes(share: float) -> Case:
    keys = raw("{%s}", '"K%d":"v"', 40_000)
    sources = _some('{"prefix":"P%d_","configMapRef":{"name":"settings"}}', 20_000, share)
    return _case((core.ConfigMap, {"data": keys}), container={"envFrom": sources})


@product
def items_of_one_key_of_a_config_map(share: float) -> Case:
    items = _some('{"key":"k","path":"p%d"}', 30_000, share)
    content = {"data": {"k": "v" * int(1_000_000 * share)}}
    return _case((core.ConfigMap, content), volumes=_volumes({"configMap": {"name": "settings", "items": items}}))


@product
def items_of_one_key_of_a_secret(share: float) -> Case:
    items = _some('{"key":"k","path":"p%d"}', 30_000, share)
    content = {"data": {"k": "djEy" * int(250_000 * share)}}
    return _case((core.Secret, content), volumes=_volumes({"secret": {"secretName": "keys", "items": items}}))


@product
def sources_of_one_config_map(share: float) -> Case:
    keys = raw("{%s}", '"K%d":"v"', 40_000)
    sources = _some('{"configMap":{"name":"settings"}}', 9_000, share)
    return _case((core.ConfigMap, {"data": keys}), volumes=_volumes({"projected": {"sources": sources}}))


@product
def volumes_of_one_config_map(share: float) -> Case:
    keys = raw("{%s}", '"K%d":"v"', 40_000)
    volumes = _some('{"name":"v%d","configMap":{"name":"settings"}}', VOLUMES, share)
    return _case((core.ConfigMap, {"data": keys}), volumes=volumes, container=_mounts(VOLUMES, share))


@product
def volumes_with_a_mount_each(share: float) -> Case:
    volumes = _some('{"name":"v%d","emptyDir":{}}', VOLUMES, share)
    return _case(volumes=volumes, container=_mounts(VOLUMES, share))


@product
def volumes_in_memory(share: float) -> Case:
    volumes = _some('{"name":"v%d","emptyDir":{"medium":"Memory"}}', VOLUMES, share)
    return _case(volumes=volumes, container=_mounts(VOLUMES, share))


@product
def volumes_with_many_mounts_below_each_other(share: float) -> Case:
    volumes = [{"name": "v", "downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "metadata.name"}}]}}]
    mounts = [
        {"name": "v", "mountPath": "/d"},
        *({"name": "w", "mountPath": f"/d/{n}"} for n in range(int(9_000 * share))),
    ]
    return _case(volumes=[*volumes, {"name": "w", "emptyDir": {}}], container={"volumeMounts": mounts})


@product
def init_containers_with_volumes(share: float) -> Case:
    volumes = _some('{"name":"v%d","emptyDir":{}}', 3_000, share)
    mounts = ",".join(f'{{"name":"v{n:06}","mountPath":"/m/{n}"}}' for n in range(int(10 * share) + 1))
    return _case(
        volumes=volumes,
        initContainers=_containers(CONTAINERS, share, f'"volumeMounts":[{mounts}]'),
        container={"volumeMounts": []},
    )


@product
def containers_with_volumes(share: float) -> Case:
    volumes = _some('{"name":"v%d","emptyDir":{}}', 3_000, share)
    mounts = ",".join(f'{{"name":"v{n:06}","mountPath":"/m/{n}"}}' for n in range(int(10 * share) + 1))
    return _case(volumes=volumes, containers=_containers(CONTAINERS, share, f'"volumeMounts":[{mounts}]'))


@product
def sub_paths_with_references(share: float) -> Case:
    mounts = _some('{"name":"v","mountPath":"/m/%d","subPathExpr":"$(A)/$(A)/%d"}', SUB_PATHS, share)
    return _case(container={"env": [{"name": "A", "value": "a" * 2000}], "volumeMounts": mounts})


@product
def sub_paths(share: float) -> Case:
    return _case(
        container={"volumeMounts": _some('{"name":"v","mountPath":"/m/%d","subPath":"a/b/%d"}', SUB_PATHS, share)}
    )


@product
def annotations_in_downward_items(share: float) -> Case:
    items = _some(
        '{"path":"p%d","fieldRef":{"apiVersion":"v1","fieldPath":"metadata.annotations[\'a\']"}}', 6_000, share
    )
    return _case(annotations={"a": "v" * ANNOTATIONS}, volumes=_volumes({"downwardAPI": {"items": items}}))


@product
def all_annotations_in_downward_items(share: float) -> Case:
    items = _some('{"path":"p%d","fieldRef":{"apiVersion":"v1","fieldPath":"metadata.annotations"}}', 6_000, share)
    annotations = raw("{%s}", '"example.com/k%d":"v"', 9_000)
    return _case(annotations=annotations, volumes=_volumes({"downwardAPI": {"items": items}}))


@product
def annotations_in_env(share: float) -> Case:
    env = _some(
        '{"name":"E%d","valueFrom":{"fieldRef":{"apiVersion":"v1","fieldPath":"metadata.annotations[\'a\']"}}}',
        10_000,
        share,
    )
    return _case(annotations={"a": "v" * 100_000}, container={"env": env})


@product
def tolerations_of_taints(share: float) -> Case:
    return _case(tolerations=_some('{"key":"k%d","operator":"Equal","value":"v","effect":"NoExecute"}', 18_000, share))


@product
def host_aliases(share: float) -> Case:
    names = ",".join(f'"h{n}"' for n in range(100))
    return _case(hostAliases=_some(f'{{"ip":"10.0.0.1","hostnames":[{names}]}}', 2_000, share))


@product
def sysctls(share: float) -> Case:
    return _case(securityContext={"sysctls": _some('{"name":"net.ipv4.ping_group_range","value":"%d"}', 20_000, share)})


@product
def images_with_pull_secrets(share: float) -> Case:
    auths = ",".join(f'"*.a{n}.invalid/x/y":{{"auth":"dTpw"}}' for n in range(int(2000 * share)))
    data = {
        "type": "kubernetes.io/dockerconfigjson",
        "data": {".dockerconfigjson": _base64(f'{{"auths":{{{auths}}}}}')},
    }
    container = CONTAINER.replace("%s", "").replace(IMAGE, "a.b.c.d.e.%d.invalid/x/y:1")
    return _case(
        (core.Secret, data), imagePullSecrets=[{"name": "keys"}], containers=_some(container, CONTAINERS, share)
    )


@product
def containers_with_probes(share: float) -> Case:
    probe = '{"exec":{"command":["true"]},"periodSeconds":1}'
    return _case(containers=_containers(CONTAINERS, share, f'"readinessProbe":{probe},"livenessProbe":{probe}'))


@product
def containers_with_named_ports(share: float) -> Case:
    ports = ",".join(f'{{"name":"p{n}","containerPort":{n + 1}}}' for n in range(20))
    probe = '"readinessProbe":{"tcpSocket":{"port":"p19"},"periodSeconds":1}'
    return _case(containers=_containers(CONTAINERS, share, f'"ports":[{ports}],{probe}'))


@product
def probes_with_many_headers(share: float) -> Case:
    headers = ",".join(f'{{"name":"X-{n}","value":"v"}}' for n in range(20))
    probe = f'"readinessProbe":{{"httpGet":{{"port":1,"httpHeaders":[{headers}]}},"periodSeconds":1}}'
    return _case(containers=_containers(CONTAINERS, share, probe))


@product
def sidecar_resources_beside_init_containers(share: float) -> Case:
    names = ",".join(f'"example.com/r{n}":"1"' for n in range(int(9_000 * share)))
    first = f'{{"name":"side","image":"{IMAGE}","restartPolicy":"Always","resources":{{"requests":{{{names}}}}}}}'
    others = CONTAINER.replace("%s", ',"resources":{"requests":{"cpu":"1m"}}')
    return _case(initContainers=raw(f"[{first},%s]", others, int(CONTAINERS * share)))


@product
def containers_with_resources(share: float) -> Case:
    names = ",".join(f'"example.com/r{n}":"1"' for n in range(10))
    return _case(containers=_containers(CONTAINERS, share, f'"resources":{{"limits":{{{names}}}}}'))


@product
def resource_claims_of_containers(share: float) -> Case:
    claims = ",".join(f'{{"name":"r{n:06}"}}' for n in range(10))
    own = _some('{"name":"r%d","resourceClaimName":"r%d"}', 9_000, share)
    return _case(resourceClaims=own, containers=_containers(CONTAINERS, share, f'"resources":{{"claims":[{claims}]}}'))


@product
def restart_rules_of_containers(share: float) -> Case:
    values = ",".join(str(n) for n in range(1, 200))
    rules = f'"restartPolicy":"Never","restartPolicyRules":[{{"action":"Restart","exitCodes":{{"operator":"In","values":[{values}]}}}}]'
    return _case(containers=_containers(CONTAINERS, share, rules))


@product
def node_affinity_terms(share: float) -> Case:
    names = '{"key":"kubernetes.io/hostname","operator":"NotIn","values":["a","b"]}'
    systems = '{"key":"kubernetes.io/os","operator":"In","values":["x%d"]}'
    terms = {"nodeSelectorTerms": _some(f'{{"matchExpressions":[{names},{systems}]}}', 8_000, share)}
    return _case(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}})


@product
def host_ports(share: float) -> Case:
    return _case(container={"ports": _some('{"containerPort":8080,"hostPort":8080,"hostIP":"10.0.%d"}', 9_000, share)})


@product
def tokens(share: float) -> Case:
    sources = _some('{"serviceAccountToken":{"path":"t%d","audience":"a%d","expirationSeconds":3600}}', 9_000, share)
    return _case(volumes=_volumes({"projected": {"sources": sources}}))


@product
def pod_certificates(share: float) -> Case:
    """The API server of the tests issues each certificate that is requested, with a chain as long as it may be."""
    names = '"keyPath":"k%d","certificateChainPath":"c%d","credentialBundlePath":"b%d"'
    source = f'{{"podCertificate":{{"signerName":"example.com/s","keyType":"ED25519",{names}}}}}'
    sources = _some(source, 32, share)
    return _case(volumes=_volumes({"projected": {"sources": sources}}), serviceAccountName="s")


@product
def too_many_pod_certificates(share: float) -> Case:
    source = '{"podCertificate":{"signerName":"example.com/s%d","keyType":"ED25519","keyPath":"k%d"}}'
    volumes = _volumes({"projected": {"sources": _some(source, 9_000, share)}})
    return _case(volumes=volumes, serviceAccountName="s")


@product
def secrets_of_volumes(share: float) -> Case:
    volumes = _some('{"name":"v%d","secret":{"secretName":"s%d","optional":true}}', VOLUMES, share)
    return _case(volumes=volumes, container=_mounts(VOLUMES, share))


@product
def env_of_many_objects(share: float) -> Case:
    env = _some(
        '{"name":"E%d","valueFrom":{"configMapKeyRef":{"name":"m%d","key":"k","optional":true}}}', 12_000, share
    )
    return _case(container={"env": env})


@product
def env_of_many_files(share: float) -> Case:
    """The first start already fails, as the files are not there."""
    source = '{"fileKeyRef":{"volumeName":"v","path":"f%d","key":"k"}}'
    return _case(container={"env": _some(f'{{"name":"E%d","valueFrom":{source}}}', 10_000, share)})


@product
def containers_with_env_of_files_with_long_paths(share: float) -> Case:
    source = f'{{"fileKeyRef":{{"volumeName":"v","path":"{"p/" * 1200}","key":"k"}}}}'
    return _case(containers=_containers(CONTAINERS, share, f'"env":[{{"name":"E","valueFrom":{source}}}]'))


@product
def containers_with_long_sub_paths(share: float) -> Case:
    """A name of more than 255 bytes is refused by the file system."""
    mount = f'{{"name":"v","mountPath":"/m","subPath":"{"p" * 2400}"}}'
    return _case(containers=_containers(CONTAINERS, share, f'"volumeMounts":[{mount}]'))


@product
def init_containers_with_env_of_one_object(share: float) -> Case:
    keys = raw("{%s}", '"K%d":"v"', int(40_000 * share))
    containers = _containers(CONTAINERS, share, '"envFrom":[{"configMapRef":{"name":"settings"}}]')
    return _case((core.ConfigMap, {"data": keys}), initContainers=containers)


@product
def supplemental_groups(share: float) -> Case:
    return _case(securityContext={"fsGroup": 1000, "supplementalGroups": [*range(1, int(200_000 * share))]})


@product
def containers_with_long_termination_paths(share: float) -> Case:
    more = f'"terminationMessagePath":"/{"p" * 700}","workingDir":"/{"w" * 300}"'
    return _case(containers=_containers(CONTAINERS, share, more))


@product
def ephemeral_containers(share: float) -> Case:
    return _case(
        ephemeralContainers=_some(f'{{"name":"e%d","image":"{IMAGE}","targetContainerName":"app"}}', 3_000, share)
    )


@product
def generic_ephemeral_volumes(share: float) -> Case:
    claim = '{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}'
    volume = f'{{"name":"v%d","ephemeral":{{"volumeClaimTemplate":{{"spec":{claim}}}}}}}'
    return _case(volumes=_some(volume, CLAIMS, share), container=_mounts(CLAIMS, share))


@product
def volumes_of_one_claim(share: float) -> Case:
    volumes = _some('{"name":"v%d","persistentVolumeClaim":{"claimName":"claim"}}', CLAIMS, share)
    return _case(volumes=volumes, container=_mounts(CLAIMS, share))


@product
def volumes_of_images(share: float) -> Case:
    volumes = _some(f'{{"name":"v%d","image":{{"reference":"{IMAGE}"}}}}', VOLUMES, share)
    return _case(volumes=volumes, container=_mounts(VOLUMES, share))


@product
def host_path_volumes(share: float) -> Case:
    volumes = _some('{"name":"v%d","hostPath":{"path":"/proc/self"}}', VOLUMES, share)
    return _case(volumes=volumes, container=_mounts(VOLUMES, share))


@product
def volumes_of_a_csi_driver(share: float) -> Case:
    volumes = _some('{"name":"v%d","csi":{"driver":"driver.test"}}', VOLUMES, share)
    return _case(volumes=volumes, container=_mounts(VOLUMES, share))


def _volumes(source: Json) -> list[Json]:
    return [{"name": "v", **source}]


def _mounts(most: int, share: float) -> Json:
    return {"volumeMounts": _some('{"name":"v%d","mountPath":"/m/%d"}', most, share)}


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _decoded(value: Any) -> list[Any]:
    found: list[Any] = msgspec.json.decode(value)
    return found
