"""How long certificates hold, as Prometheus reads it."""

from __future__ import annotations

import pytest

from pykubelet.base.model.credentials import CertificateState, Credentials
from pykubelet.base.model.lifecycle import Lifecycles
from pykubelet.base.model.node import NodeView
from pykubelet.base.model.observed import Observed
from pykubelet.base.model.roster import Roster
from pykubelet.base.model.statuses import Statuses
from pykubelet.serve.metrics.kubelet import MetricsInputs, kubelet_families

FILE = "/pki/kubelet-client-current.pem"


@pytest.mark.parametrize(
    ("states", "client", "server"),
    [
        ({}, float("inf"), float("inf")),
        ({"client": CertificateState(FILE, 160.0)}, 60.0, float("inf")),
        ({"client": CertificateState(FILE, None), "serving": CertificateState(FILE, 90.0)}, float("inf"), -10.0),
    ],
)
def test_the_time_certificates_have_left(states: dict[str, CertificateState], client: float, server: float) -> None:
    reported = MetricsInputs(
        Roster(), Lifecycles(), Observed(), Statuses(), NodeView("n", "n"), {}, "v1.36.0", 1, Credentials(states), 100.0
    )
    found = {family.name: list(family.samples) for family in kubelet_families(reported)}
    assert found["kubelet_certificate_manager_client_ttl_seconds"][0].value == client
    assert found["kubelet_certificate_manager_server_ttl_seconds"][0].value == server
