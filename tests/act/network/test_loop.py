"""The node's chains in a packet filter of a network namespace of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator

import pytest

from pykubelet.act.network.loop import HostChains
from pykubelet.base.kit.supervise import Supervisor

pytestmark = pytest.mark.integration

FIREWALL = [
    "-N KUBE-FIREWALL",
    '-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" '
    "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
]


class Namespace:
    """`within`: the words that enter it."""

    def __init__(self, name: str) -> None:
        self.within = ("ip", "netns", "exec", name)

    def tables(self, *arguments: str, program: str = "iptables") -> list[str]:
        done = subprocess.run([*self.within, program, *arguments], capture_output=True, text=True, check=False)
        return done.stdout.splitlines()

    async def until(self, *arguments: str, first: str, program: str = "iptables") -> list[str]:
        """The rules, as soon as they begin with `first`."""
        for _ in range(200):
            found = await asyncio.to_thread(self.tables, *arguments, program=program)
            if found[:1] == [first]:
                return found
            await asyncio.sleep(0.05)
        raise AssertionError(f"{arguments}: {found}")


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    name = f"pyk-chains-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    yield Namespace(name)
    subprocess.run(["ip", "netns", "del", name], check=True)


async def test_the_chains_are_made_once_and_come_back_after_a_flush(namespace: Namespace) -> None:
    async with Supervisor("test") as supervisor:
        supervisor.start_root("chains", HostChains(period_s=0.1, within=namespace.within).run())
        assert await namespace.until("-S", "KUBE-FIREWALL", first="-N KUBE-FIREWALL") == FIREWALL
        assert namespace.tables("-t", "mangle", "-S", "KUBE-IPTABLES-HINT") == ["-N KUBE-IPTABLES-HINT"]
        await namespace.until(
            "-t", "mangle", "-S", "KUBE-IPTABLES-HINT", first="-N KUBE-IPTABLES-HINT", program="ip6tables"
        )
        assert namespace.tables("-S", "KUBE-FIREWALL", program="ip6tables") == []
        namespace.tables("-A", "INPUT", "-s", "10.9.8.7", "-j", "ACCEPT")
        namespace.tables("-t", "nat", "-X", "KUBE-KUBELET-CANARY")
        await namespace.until("-t", "nat", "-S", "KUBE-KUBELET-CANARY", first="-N KUBE-KUBELET-CANARY")
        rules = ["-P INPUT ACCEPT", "-A INPUT -j KUBE-FIREWALL", "-A INPUT -s 10.9.8.7/32 -j ACCEPT"]
        assert namespace.tables("-S", "INPUT") == rules, "first, once, and beside those of others"
        assert namespace.tables("-S", "OUTPUT") == ["-P OUTPUT ACCEPT", "-A OUTPUT -j KUBE-FIREWALL"]
        for flush in (("-F",), ("-X",)):
            namespace.tables(*flush)
        assert await namespace.until("-S", "KUBE-FIREWALL", first="-N KUBE-FIREWALL") == FIREWALL
        assert namespace.tables("-S", "INPUT") == ["-P INPUT ACCEPT", "-A INPUT -j KUBE-FIREWALL"]


async def test_a_host_without_iptables_is_no_failure(tmp_path: os.PathLike[str]) -> None:
    async with Supervisor("test") as supervisor:
        within = (str(tmp_path / "not-there"),)  # type: ignore[operator]
        task = supervisor.start_root("chains", HostChains(period_s=0.01, within=within).run())
        await asyncio.sleep(0.1)
        assert not task.done()
