"""A tunnel: bytes in messages, whatever they are."""

from __future__ import annotations

import pytest
from net.websocket.bytes_of import masked, messages

from pykubelet.serve.streaming.tunnel import tunnel_for


@pytest.mark.parametrize(
    ("offered", "agreed", "runtime"),
    [
        (["SPDY/3.1+portforward.k8s.io"], "SPDY/3.1+portforward.k8s.io", "portforward.k8s.io"),
        (["x", "SPDY/3.1+v2.k8s.io", "SPDY/3.1+portforward.k8s.io"], "SPDY/3.1+v2.k8s.io", "v2.k8s.io"),
    ],
)
def test_what_is_agreed_on(offered: list[str], agreed: str, runtime: str) -> None:
    tunnel = tunnel_for(offered)
    assert tunnel is not None
    assert (tunnel.protocol, tunnel.runtime_protocol) == (agreed, runtime)


@pytest.mark.parametrize("offered", [[], ["portforward.k8s.io"], ["v4.channel.k8s.io"], ["SPDY/3.1+other"]])
def test_other_streams_need_no_tunnel(offered: list[str]) -> None:
    assert tunnel_for(offered) is None


def test_bytes_go_both_ways() -> None:
    tunnel = tunnel_for(["SPDY/3.1+portforward.k8s.io"])
    assert tunnel is not None
    step = tunnel.from_client(masked(2, b"abc") + masked(9, b"?") + masked(2, b"", final=False) + masked(0, b"def"))
    assert b"".join(step.onward) == b"abcdef"
    assert messages(step.back) == [(0x8A, b"?")]
    assert messages(b"".join(tunnel.from_runtime(b"xyz").onward)) == [(0x82, b"xyz")]
    assert messages(tunnel.close_message("")) == [(0x88, b"\x03\xe8")]
    assert messages(tunnel.close_message("why")) == [(0x88, b"\x03\xe9why")]
    assert tunnel.from_client(masked(8, b"\x0f\xa0")).ended
    assert messages(tunnel.close_message("")) == [(0x88, b"\x0f\xa0")]
