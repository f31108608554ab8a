"""The answers to plugins that register, in the reference's words."""

from __future__ import annotations

import pytest

from pykubelet.base.model.plugins import Plugin, PluginType
from pykubelet.observe.plugins.decide import PluginOffer, refusal

HEAD = "RegisterPlugin error -- plugin validation failed with err: "
DRA = f"{HEAD}invalid supported gRPC versions of DRA driver plugin gpu.example.com at endpoint /p/dra.sock: "


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
        (
            offer("CSIPlugin", "csi.example.com", "1.0.0"),
            "RegisterPlugin error -- no handler registered for plugin type: CSIPlugin at socket /r/x.sock",
        ),
        (
            offer("", ""),
            "RegisterPlugin error -- no handler registered for plugin type:  at socket /r/x.sock",
        ),
    ],
)
def test_the_answer_to_a_plugin(offered: PluginOffer, reported: str) -> None:
    assert refusal(offered, ()) == reported


def test_one_endpoint_is_registered_once_for_a_driver() -> None:
    offered = offer("DRAPlugin", "gpu.example.com", "v1.DRAPlugin")
    other = Plugin(PluginType.DRA, "gpu.example.com", "/r/y.sock", "/p/dra.sock", ("v1.DRAPlugin",), 1.0)
    assert refusal(offered, (other,)) == (
        "RegisterPlugin error -- plugin registration failed with err: "
        "endpoint /p/dra.sock already registered for DRA driver plugin gpu.example.com"
    )
    assert refusal(offered, (offered.registered(1.0),)) == ""
