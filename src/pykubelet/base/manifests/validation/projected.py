"""Validates projected volumes: each source, and that the files of all sources have different paths. Pure."""

from __future__ import annotations

from collections.abc import Callable

from pykubelet.base.api import labels as names
from pykubelet.base.api.core import (
    ClusterTrustBundleProjection,
    ConfigMapProjection,
    DownwardAPIVolumeFile,
    KeyToPath,
    PodCertificateProjection,
    ProjectedVolumeSource,
    SecretProjection,
    ServiceAccountTokenProjection,
    VolumeProjection,
)
from pykubelet.base.api.key_types import KEY_TYPES
from pykubelet.base.manifests.validation.errors import (
    Errors,
    forbidden,
    invalid,
    invalids,
    local_path_errors,
    not_supported,
    owner_errors,
    required,
)
from pykubelet.base.manifests.validation.scheduling import validate_label_selector

_KINDS = ("secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle", "podCertificate")
Items = Callable[[tuple[KeyToPath, ...], str], Errors]
File = Callable[[DownwardAPIVolumeFile, str], Errors]


def validate_projections(source: ProjectedVolumeSource, items: Items, file: File, path: str) -> Errors:
    """All sources of a projected volume. `items` and `file` are the rules for the files of keyed and downward sources."""
    errors: Errors = []
    taken: set[str] = set()
    for i, projection in enumerate(source.sources):
        at = f"{path}.sources[{i}]"
        errors += _validate_projection(projection, items, file, at, path)
        for name, shown in _files_of(projection):
            if name in taken:
                errors.append(invalid(path, shown, "conflicting duplicate paths"))
            taken.add(name)
        if sum(getattr(projection, kind) is not None for kind in _KINDS) > 1:
            errors.append(forbidden(at, "may not specify more than 1 volume type per source"))
    return errors


def _files_of(projection: VolumeProjection) -> list[tuple[str, str]]:
    """The paths of the files that a source creates, each with the value that an error about a conflict shows."""
    files: list[tuple[str, str]] = []
    for keyed in (projection.secret, projection.configMap):
        if keyed is not None:
            files += [(item.path, keyed.name) for item in keyed.items if item.path]
    if projection.downwardAPI is not None:
        files += [(item.path, item.path) for item in projection.downwardAPI.items if item.path]
    if projection.clusterTrustBundle is not None:
        files.append((projection.clusterTrustBundle.path,) * 2)
    certificate = projection.podCertificate
    if certificate is not None:
        given = (certificate.credentialBundlePath, certificate.keyPath, certificate.certificateChainPath)
        files += [(name, name) for name in given if name]
    return files


def _validate_projection(projection: VolumeProjection, items: Items, file: File, path: str, volume_path: str) -> Errors:
    errors: Errors = []
    keyed: tuple[tuple[str, SecretProjection | ConfigMapProjection | None], ...] = (
        ("secret", projection.secret),
        ("configMap", projection.configMap),
    )
    for kind, holder in keyed:
        if holder is not None:
            errors += [] if holder.name else [required(f"{path}.{kind}.name")]
            errors += items(holder.items, f"{path}.{kind}.items")
    if projection.downwardAPI is not None:
        for item in projection.downwardAPI.items:
            errors += file(item, f"{path}.downwardAPI")
    if projection.serviceAccountToken is not None:
        errors += _validate_token(projection.serviceAccountToken, f"{path}.serviceAccountToken", volume_path)
    if projection.clusterTrustBundle is not None:
        errors += _validate_trust_bundle(projection.clusterTrustBundle, f"{path}.clusterTrustBundle")
    if projection.podCertificate is not None:
        errors += _validate_certificate(projection.podCertificate, f"{path}.podCertificate")
    return errors


def _validate_token(token: ServiceAccountTokenProjection, path: str, volume_path: str) -> Errors:
    errors: Errors = []
    seconds = token.expirationSeconds or 0
    if seconds < 600:
        detail = "may not specify a duration less than 10 minutes"
        errors.append(invalid(f"{path}.expirationSeconds", seconds, detail))
    if seconds > 1 << 32:
        detail = "may not specify a duration larger than 2^32 seconds"
        errors.append(invalid(f"{path}.expirationSeconds", seconds, detail))
    if not token.path:
        errors.append(required(f"{volume_path}.path"))
    else:
        errors += local_path_errors(token.path, f"{volume_path}.path")
    return errors + owner_errors(token.user, f"{path}.user")


def _validate_trust_bundle(bundle: ClusterTrustBundleProjection, path: str) -> Errors:
    errors: Errors = []
    if bundle.name and bundle.signerName:
        errors.append(invalid(path, bundle, "only one of name and signerName may be used"))
    elif bundle.name:
        reasons = names.dns_subdomain_errors(bundle.name.rpartition(":")[2])
        for reason in reasons:
            errors.append(invalid(f"{path}.name", bundle.name, f"not a valid clustertrustbundlename: {reason}"))
        if bundle.labelSelector is not None:
            detail = "labelSelector must be unset if name is specified"
            errors.append(invalid(f"{path}.labelSelector", bundle.labelSelector, detail))
    elif bundle.signerName:
        errors += _signer_errors(bundle.signerName, f"{path}.signerName")
        errors += validate_label_selector(bundle.labelSelector, f"{path}.labelSelector")
    else:
        errors.append(required(path, "either name or signerName must be specified"))
    if not bundle.path:
        errors.append(required(f"{path}.path"))
    errors += local_path_errors(bundle.path, f"{path}.path")
    return errors + owner_errors(bundle.user, f"{path}.user")


def _signer_errors(signer: str, path: str) -> Errors:
    domain, slash, name = signer.partition("/")
    if not slash or not domain or not name or "/" in name:
        return [
            invalid(path, signer, "must be a fully qualified domain and path of the form 'example.com/signer-name'")
        ]
    return invalids(path, signer, names.dns_subdomain_errors(domain))


def _validate_certificate(certificate: PodCertificateProjection, path: str) -> Errors:
    errors = (
        _signer_errors(certificate.signerName, f"{path}.signerName")
        if certificate.signerName
        else [required(f"{path}.signerName")]
    )
    if certificate.keyType not in KEY_TYPES:
        errors.append(not_supported(f"{path}.keyType", certificate.keyType, tuple(KEY_TYPES)))
    seconds = certificate.maxExpirationSeconds
    if seconds is not None and not 3600 <= seconds <= 7862400:
        errors.append(invalid(f"{path}.maxExpirationSeconds", seconds, names.range_error(3600, 7862400)))
    files = ("credentialBundlePath", "keyPath", "certificateChainPath")
    if not any(getattr(certificate, field) for field in files):
        detail = "specify at least one of credentialBundlePath, keyPath, and certificateChainPath"
        errors.append(required(path, detail))
    for field in files:
        errors += local_path_errors(getattr(certificate, field), f"{path}.{field}")
    return errors + owner_errors(certificate.user, f"{path}.user")
