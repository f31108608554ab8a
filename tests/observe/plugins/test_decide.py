"""The answers to plugins that register, in the reference's words."""

from __future__ import annotations

import pytest

from pykubelet.base.model.plugins import Plugin, PluginType
from pykubelet.observe.plugins.decide import PluginOffer, refusal

HEAD = "RegisterPlugin error -- plugin validation failed with err: "
DRA = f"{HEAD}invalid supported gRPC versions of DRA driver plugin gpu.example.com at endpoint /p/dra.sock: "
CSI = (
    f"{HEAD}validation failed for CSI Driver csi.example.com at endpoint /p/dra.sock: kubernetes.io/csi: "
    'ValidatePlugin for CSI driver "csi.example.com" failed. '
)


def offer(type_: str = "DRAPlugin", name: str = "gpu.example.com", *versions: str) -> PluginOffer:
    return PluginOffer(type_, name, "/r/x.sock", "/p/dra.sock", versions)


@pytest.mark.parametrize(
    ("offered", "reported"),
    [
        (offer("DRAPlugin", "gpu.example.com", "v1.DRAPlugin"), ""),
        (offer("DRAPlugin", "gpu.example.com", "v2.DRAPlugin", "v1beta1.DRAPlugin"), ""),
        (offer(), f"{DRA}empty list of supported gRPC services (aka supported versions)"),
        (
            offer("DRAPlugin", "gpu.example.com", "a", "b"),
            f'{DRA}none of services supported by the plugin (["a" "b"]) are supported by the kubelet '
            '(["v1.DRAPlugin" "v1beta1.DRAPlugin"])',
        ),
        (offer("DevicePlugin", "example.com/gpu", "v1alpha1", "v1beta1"), ""),
        (
            offer("DevicePlugin", "example.com/gpu", "v1alpha1", "v2"),
            f"{HEAD}manager version, v1beta1, is not among plugin supported versions [v1alpha1 v2]",
        ),
        (
            offer("DevicePlugin", "gpu", "v1beta1"),
            f'{HEAD}invalid name of device plugin socket: the ResourceName "gpu" is invalid',
        ),
        (offer("CSIPlugin", "csi.example.com", "1.0.0"), ""),
        (offer("CSIPlugin", "csi.example.com", "0.3", "x", "v1.2.0", "2.0.0"), ""),
        (
            offer("CSIPlugin", "csi.example.com"),
            f"{CSI}Plugin returned an empty list for supported versions",
        ),
        (
            offer("CSIPlugin", "csi.example.com", "2.0.0", "one"),
            f'{CSI}None of the versions specified ["2.0.0" "one"] are supported. err=could not find a highest supported '
            'version from versions ([2.0.0 one]) reported: could not parse "one" as version',
        ),
        (
            offer("CSIPlugin", "csi.example.com", "0.3.0", "v0.2", "2.0.0"),
            f'{CSI}None of the versions specified ["0.3.0" "v0.2" "2.0.0"] are supported. err=highest supported version '
            "reported is 0.3.0, must be v1.x",
        ),
        (
            offer("GpuPlugin", "csi.example.com", "1.0.0"),
            "RegisterPlugin error -- no handler registered for plugin type: GpuPlugin at socket /r/x.sock",
        ),
        (
            offer("", ""),
            "RegisterPlugin error -- no handler registered for plugin type:  at socket /r/x.sock",
        ),
    ],
)
def test_the_answer_to_a_plugin(offered: PluginOffer, reported: str) -> None:
    assert refusal(offered, ()) == reported


@pytest.mark.parametrize("type_", ["DRAPlugin", "CSIPlugin"])
@pytest.mark.parametrize(
    "name",
    [
        "",
        "a" * 64,
        "x,spec.pool.name!=zz",
        "a\nb\x1b]0;x",
        "a/b",
        "..",
        "a b",
        "a=b",
        "\u212aey.example.com",
        ".a",
        "a\n",
    ],
)
def test_a_driver_needs_a_name_that_can_be_part_of_requests_and_paths(type_: str, name: str) -> None:
    problem = refusal(offer(type_, name, "v1.DRAPlugin", "1.0.0"), ())
    assert problem.startswith(HEAD)
    assert "invalid driver name: must be 63 bytes or less" in problem
    assert problem.isprintable() and len(problem) < 600


def test_one_endpoint_is_registered_once_for_a_driver() -> None:
    offered = offer("DRAPlugin", "gpu.example.com", "v1.DRAPlugin")
    other = Plugin(PluginType.DRA, "gpu.example.com", "/r/y.sock", "/p/dra.sock", ("v1.DRAPlugin",), 1.0)
    assert refusal(offered, (other,)) == (
        "RegisterPlugin error -- plugin registration failed with err: "
        "endpoint /p/dra.sock already registered for DRA driver plugin gpu.example.com"
    )
    assert refusal(offered, (offered.registered(1.0),)) == ""


@pytest.mark.parametrize(("present", "wanted", "refused"), [("1.0.0", "1.1.0", False), ("1.1.0", "1.1.0", True)])
def test_a_second_csi_driver_of_a_name_needs_a_higher_version(present: str, wanted: str, refused: bool) -> None:
    other = Plugin(PluginType.CSI, "csi.example.com", "/r/y.sock", "/p/csi.sock", (present,), 1.0)
    answer = refusal(offer("CSIPlugin", "csi.example.com", wanted), (other,))
    assert answer == (
        f'{CSI}Another driver with the same name is already registered with a higher supported version: "{present}"'
        if refused
        else ""
    )
    assert refusal(offer("CSIPlugin", "other.example.com", wanted), (other,)) == ""
