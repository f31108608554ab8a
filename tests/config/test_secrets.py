"""What may be a password stays out of the text of a configuration, which logs and tracebacks show."""

from __future__ import annotations

from pykubelet.base.kit.values import replace
from pykubelet.config.kubelet import KubeletConfiguration
from pykubelet.config.settings import Settings


def test_the_text_of_the_settings_has_no_password_of_the_manifest_url() -> None:
    config = KubeletConfiguration(
        staticPodURL="https://user:hunter2@example.com/pods",
        staticPodURLHeader={"Authorization": ("Bearer hunter2",)},
        clusterDomain="cluster.example",
    )
    for value in (config, Settings(config), replace(Settings(), config=config)):
        assert "hunter2" not in repr(value) and "hunter2" not in str(value)
        assert "cluster.example" in repr(value)
