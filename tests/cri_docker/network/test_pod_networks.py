"""Networks of pods, with plugins that are scripts: what is called with what, and what stays after failures."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.cni import RESULT, ScriptedPlugins, known, sandbox_network
from support.processes import wait_end

from pykubelet_cri_docker.network.model import Attachment, Bandwidth, CniError, MappedPort
from pykubelet_cri_docker.network.pod_networks import PodNetworks
from pykubelet_cri_docker.network.result_cache import ResultCache

OWN_NS = "/proc/self/ns/net"


@pytest.fixture
def plugins(tmp_path: Path) -> ScriptedPlugins:
    made = ScriptedPlugins(tmp_path, "first", "second")
    made.configure("first", "second")
    return made


@pytest.fixture
def networks(plugins: ScriptedPlugins) -> PodNetworks:
    return PodNetworks(plugins.directories, plugins.namespaces)


async def test_add_calls_the_plugins_in_their_order(plugins: ScriptedPlugins, networks: PodNetworks) -> None:
    result = await networks.add(sandbox_network(ports=(MappedPort(8080, 80),)))
    assert result.pod_ips == ("10.1.0.5",)
    loopback, first, second = plugins.calls()
    assert [loopback.name, first.name, second.name] == ["ADD loopback", "ADD first", "ADD second"]
    assert loopback.variables["CNI_IFNAME"] == "lo"
    assert first.variables["CNI_IFNAME"] == "eth0"
    assert first.variables["CNI_NETNS"] == plugins.namespaces.path("c1")
    assert first.variables["CNI_PATH"] == ":".join(plugins.directories.plugins)
    assert "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;" in first.variables["CNI_ARGS"]
    assert "prevResult" not in first.config and second.config["prevResult"] == RESULT
    assert second.config["runtimeConfig"]["portMappings"][0]["hostPort"] == 8080
    assert await networks.find_result("c1") == result
    assert await networks.find_result("c2") is None


async def test_delete_uses_what_add_was_called_with(plugins: ScriptedPlugins, networks: PodNetworks) -> None:
    await networks.add(sandbox_network(ports=(MappedPort(8080, 80),)))
    assert plugins.kept() == ["test-c1-eth0"]
    plugins.configure("other", name="00-other.conflist")
    plugins.calls()
    await PodNetworks(plugins.directories, plugins.namespaces).delete(sandbox_network())
    second, first = plugins.calls()
    assert [second.name, first.name] == ["DEL second", "DEL first"]
    for call in (second, first):
        assert call.config["prevResult"] == RESULT
        assert call.config["runtimeConfig"]["portMappings"][0]["hostPort"] == 8080
    assert plugins.kept() == []
    assert await networks.find_result("c1") is None


@pytest.mark.parametrize("netns", ["", "/proc/4194305/ns/net"])
async def test_delete_without_a_namespace(plugins: ScriptedPlugins, networks: PodNetworks, netns: str) -> None:
    """It is not kept after a start of the machine. That of the sandbox is not used: its process may be another one by now."""
    await networks.add(sandbox_network())
    plugins.namespaces.release("c1")
    plugins.calls()
    await networks.delete(sandbox_network(netns=netns))
    assert [call.variables["CNI_NETNS"] for call in plugins.calls()] == ["", ""]


async def test_delete_without_a_record_uses_the_present_configuration(
    plugins: ScriptedPlugins, networks: PodNetworks
) -> None:
    await networks.delete(sandbox_network())
    second, first = plugins.calls()
    assert [second.name, first.name] == ["DEL second", "DEL first"]
    assert "prevResult" not in second.config


async def test_delete_where_nothing_can_be_attached(plugins: ScriptedPlugins, networks: PodNetworks) -> None:
    plugins.write("10-test.conflist", "{")
    await networks.delete(sandbox_network())
    plugins.configure("first")
    await networks.delete(sandbox_network("not/a/name"))
    assert plugins.calls() == []


async def test_a_sandbox_that_cannot_have_been_attached_is_deleted(
    plugins: ScriptedPlugins, networks: PodNetworks
) -> None:
    pod = sandbox_network(bandwidth=Bandwidth(ingress="fast"))
    with pytest.raises(CniError, match='pod default/web: ingress bandwidth "fast"'):
        await networks.add(pod)
    await networks.delete(pod)
    assert plugins.calls() == []


async def test_an_old_network_gets_no_result_to_delete(plugins: ScriptedPlugins, networks: PodNetworks) -> None:
    plugins.configure("first", cniVersion="0.3.1")
    plugins.give(RESULT | {"cniVersion": "0.3.1"})
    await networks.add(sandbox_network())
    await networks.check(sandbox_network())
    await networks.delete(sandbox_network())
    *_, delete = plugins.calls()
    assert delete.name == "DEL first" and "prevResult" not in delete.config


async def test_what_is_gone_is_deleted(plugins: ScriptedPlugins, networks: PodNetworks) -> None:
    await networks.add(sandbox_network())
    plugins.namespaces.release("c1")
    plugins.fail("second", "DEL", "failed to open netns: no such file or directory")
    plugins.fail("first", "DEL", "Link not found")
    await networks.delete(sandbox_network(netns=""))
    assert plugins.kept() == []


async def test_a_failed_delete_can_be_repeated(plugins: ScriptedPlugins, networks: PodNetworks) -> None:
    await networks.add(sandbox_network())
    plugins.fail("second", "DEL", "busy")
    plugins.calls()
    with pytest.raises(CniError, match='pod default/web: network "test": plugin type="second" failed \\(del\\): busy'):
        await networks.delete(sandbox_network())
    assert plugins.call_names() == ["DEL second"]
    assert plugins.kept() == ["test-c1-eth0"]
    plugins.on("second", "DEL", "")
    await networks.delete(sandbox_network())
    assert (plugins.call_names(), plugins.kept()) == (["DEL second", "DEL first"], [])


async def test_a_failed_add_is_undone(plugins: ScriptedPlugins, networks: PodNetworks) -> None:
    plugins.fail("second", "ADD", "no address left")
    with pytest.raises(CniError) as caught:
        await networks.add(sandbox_network())
    assert str(caught.value) == (
        'pod default/web: network "test": plugin type="second" failed (add): no address left (code 11)'
    )
    assert caught.value.code == 11
    assert plugins.call_names() == ["ADD loopback", "ADD first", "ADD second", "DEL second", "DEL first"]
    assert plugins.kept() == []


async def test_an_add_that_cannot_be_undone_is_undone_later(plugins: ScriptedPlugins, networks: PodNetworks) -> None:
    plugins.fail("second", "ADD", "no address left")
    plugins.fail("first", "DEL", "busy")
    with pytest.raises(CniError, match="no address left"):
        await networks.add(sandbox_network())
    assert plugins.kept() == ["test-c1-eth0"]
    plugins.on("first", "DEL", "")
    await networks.collect(known())
    assert plugins.kept() == []


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo hello", "the plugin did not print a result in JSON"),
        ('echo \'{"ips": [{"address": "x"}]}\'', 'network "test": the result of the plugins has the address'),
        ("echo '{}'", 'network "test" has given no address to the pod'),
        ("head -c 2000000 /dev/zero", "it printed more than"),
        ("echo broken >&2; kill -9 $$", 'plugin type="second" failed (add): ended by signal 9: broken'),
        ("exit 3", "exit status 3 without a message"),
    ],
)
async def test_plugins_that_do_not_do_their_part(
    plugins: ScriptedPlugins, networks: PodNetworks, script: str, problem: str
) -> None:
    plugins.on("second", "ADD", script)
    with pytest.raises(CniError) as caught:
        await networks.add(sandbox_network())
    assert str(caught.value).startswith("pod default/web: ") and problem in str(caught.value)
    assert len(str(caught.value)) < 2000
    assert plugins.kept() == []


async def test_a_hanging_plugin_is_killed_with_its_children(plugins: ScriptedPlugins, tmp_path: Path) -> None:
    plugins.on("first", "ADD", f"sleep 1000 & echo $! > {tmp_path}/pid; wait")
    with pytest.raises(CniError) as caught:
        await PodNetworks(plugins.directories, plugins.namespaces, deadline_s=2.0).add(sandbox_network())
    assert str(caught.value) == (
        'pod default/web: network "test": plugin type="first" failed (add): '
        "it was killed, because the network did not answer within 2 s"
    )
    wait_end(int((tmp_path / "pid").read_text()))
    assert plugins.call_names()[-2:] == ["DEL second", "DEL first"]


async def test_a_cancelled_add_is_undone(plugins: ScriptedPlugins, networks: PodNetworks, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pid")
    plugins.on("first", "ADD", f"echo $$ > {tmp_path}/pid; sleep 1000")
    task = asyncio.get_running_loop().create_task(networks.add(sandbox_network()))
    pid = int(await asyncio.to_thread((tmp_path / "pid").read_text))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    wait_end(pid)
    assert plugins.call_names()[-2:] == ["DEL second", "DEL first"]
    assert plugins.kept() == []


async def test_a_process_that_ends_amid_add_leaves_a_record(
    plugins: ScriptedPlugins, networks: PodNetworks, tmp_path: Path
) -> None:
    plugins.on("first", "ADD", f"ls {tmp_path}/kept/results > {tmp_path}/seen; cat {tmp_path}/result")
    await networks.add(sandbox_network())
    assert (tmp_path / "seen").read_text() == "test-c1-eth0\n"


async def test_a_missing_plugin_is_named(plugins: ScriptedPlugins, networks: PodNetworks) -> None:
    plugins.remove("second")
    places = " ".join(plugins.directories.plugins)
    problem = f'network "test": failed to find plugin "second" in path [{places}]'
    assert await networks.status() == f"Network plugin returns error: {problem}"
    with pytest.raises(CniError) as caught:
        await networks.add(sandbox_network())
    assert str(caught.value) == f"pod default/web: {problem}"
    assert "ADD first" not in plugins.call_names()


async def test_a_node_without_a_network(plugins: ScriptedPlugins, networks: PodNetworks) -> None:
    assert await networks.status() == ""
    Path(plugins.directories.configs, "10-test.conflist").unlink()
    problem = f"cni plugin not initialized: no network config found in {plugins.directories.configs}"
    assert await networks.status() == f"Network plugin returns error: {problem}"
    with pytest.raises(CniError) as caught:
        await networks.add(sandbox_network())
    assert str(caught.value) == f"pod default/web: {problem}"
    assert plugins.calls() == []


async def test_plugins_report_the_status_of_new_networks(plugins: ScriptedPlugins, networks: PodNetworks) -> None:
    plugins.configure("first", "second", cniVersion="1.1.0")
    assert await networks.status() == ""
    assert plugins.call_names() == ["STATUS first", "STATUS second"]
    plugins.fail("first", "STATUS", "no route", code=50)
    assert await networks.status() == (
        'Network plugin returns error: network "test": plugin type="first" failed (status): no route (code 50)'
    )


async def test_check(plugins: ScriptedPlugins, networks: PodNetworks) -> None:
    await networks.check(sandbox_network())
    await networks.add(sandbox_network())
    plugins.calls()
    await networks.check(sandbox_network())
    first, second = plugins.calls()
    assert [first.name, second.name] == ["CHECK first", "CHECK second"]
    assert first.config["prevResult"] == second.config["prevResult"] == RESULT
    plugins.fail("second", "CHECK", "the rule is gone")
    with pytest.raises(CniError, match=r"pod default/web: .* failed \(check\): the rule is gone"):
        await networks.check(sandbox_network())


async def test_check_can_be_switched_off(plugins: ScriptedPlugins, networks: PodNetworks) -> None:
    plugins.configure("first", disableCheck=True)
    await networks.add(sandbox_network())
    plugins.calls()
    await networks.check(sandbox_network())
    assert plugins.calls() == []


async def test_containers_that_are_gone_are_collected(plugins: ScriptedPlugins, networks: PodNetworks) -> None:
    plugins.configure("first", cniVersion="1.1.0")
    for container_id in ("c1", "c2"):
        await networks.add(sandbox_network(container_id))
    plugins.calls()
    await networks.collect(known("c2"))
    delete, collect = plugins.calls()
    assert (delete.name, delete.variables["CNI_CONTAINERID"]) == ("DEL first", "c1")
    assert delete.variables["CNI_NETNS"] == plugins.namespaces.path("c1")
    assert (collect.name, collect.config["cni.dev/valid-attachments"]) == (
        "GC first",
        [{"containerID": "c2", "ifname": "eth0"}],
    )
    assert plugins.kept() == ["test-c2-eth0"]
    assert plugins.namespaces.containers() == ["c2"]


async def test_a_namespace_is_kept_until_the_network_is_taken_down(
    plugins: ScriptedPlugins, networks: PodNetworks
) -> None:
    """Also beyond the process of the sandbox: plugins find their rules by the addresses in it."""
    await networks.add(sandbox_network())
    plugins.fail("first", "DEL", "busy")
    plugins.calls()
    with pytest.raises(CniError):
        await networks.delete(sandbox_network(netns=""))
    assert plugins.namespaces.containers() == ["c1"]
    plugins.on("first", "DEL", "")
    await networks.delete(sandbox_network(netns=""))
    assert {call.variables["CNI_NETNS"] for call in plugins.calls()} == {plugins.namespaces.path("c1")}
    assert plugins.namespaces.containers() == []


async def test_a_namespace_without_a_record_is_released(plugins: ScriptedPlugins, networks: PodNetworks) -> None:
    plugins.namespaces.pin("c1", OWN_NS)
    await networks.collect(known())
    assert plugins.namespaces.containers() == []


@pytest.mark.parametrize("fields", [{"cniVersion": "1.0.0"}, {"cniVersion": "1.1.0", "disableGC": True}])
async def test_plugins_are_not_called_to_collect(
    plugins: ScriptedPlugins, networks: PodNetworks, fields: dict[str, Any]
) -> None:
    plugins.configure("first", **fields)
    await networks.add(sandbox_network())
    plugins.calls()
    await networks.collect(known())
    assert plugins.call_names() == ["DEL first"]


async def test_attachments_of_other_runtimes_stay_while_their_namespaces_exist(
    plugins: ScriptedPlugins, networks: PodNetworks, tmp_path: Path
) -> None:
    plugins.configure("first", cniVersion="1.1.0")
    (tmp_path / "netns").touch()
    config = (tmp_path / "net.d" / "10-test.conflist").read_bytes()
    theirs = Attachment("test", "theirs", "eth0", str(tmp_path / "netns"), config, (), {})
    ResultCache(plugins.directories.kept).save(theirs)
    await networks.collect(known())
    [collect] = plugins.calls()
    assert collect.config["cni.dev/attachments"] == [{"containerID": "theirs", "ifname": "eth0"}]
    (tmp_path / "netns").unlink()
    await networks.collect(known())
    assert plugins.kept() == []


async def test_operations_on_a_container_wait_for_each_other(
    plugins: ScriptedPlugins, networks: PodNetworks, tmp_path: Path
) -> None:
    """Those on other containers do not wait, and a collection waits for all that have begun."""
    for name in ("begun", "go"):
        os.mkfifo(tmp_path / name)
    plugins.on(
        "first",
        "ADD",
        f"if [ $CNI_CONTAINERID = c1 ]; then echo > {tmp_path}/begun; cat {tmp_path}/go; fi; cat {tmp_path}/result",
    )
    loop = asyncio.get_running_loop()
    add = loop.create_task(networks.add(sandbox_network("c1")))
    await asyncio.to_thread((tmp_path / "begun").read_text)
    delete = loop.create_task(networks.delete(sandbox_network("c1")))
    await networks.add(sandbox_network("c2"))
    collect = loop.create_task(networks.collect(known("c2")))
    assert not any(task.done() for task in (add, delete, collect))
    await asyncio.to_thread((tmp_path / "go").write_text, "")
    await asyncio.gather(add, delete, collect)
    names = plugins.call_names()
    assert names[-2:] == ["DEL second", "DEL first"]
    assert plugins.kept() == ["test-c2-eth0"]


async def test_a_sandbox_that_is_connected_meanwhile_stays(plugins: ScriptedPlugins, networks: PodNetworks) -> None:
    """The list of sandboxes is read while none can be connected."""
    loop, adds = asyncio.get_running_loop(), []

    async def find() -> set[str]:
        adds.append(loop.create_task(networks.add(sandbox_network("new"))))
        await asyncio.sleep(0)
        return set()

    await networks.collect(find)
    assert (await adds[0]).pod_ips == ("10.1.0.5",)
    assert plugins.kept() == ["test-new-eth0"]


async def test_a_damaged_record_does_not_keep_a_pod(
    plugins: ScriptedPlugins, networks: PodNetworks, tmp_path: Path
) -> None:
    await networks.add(sandbox_network())
    (tmp_path / "kept/results/test-c1-eth0").write_text('{"kind": ')
    plugins.calls()
    await networks.delete(sandbox_network())
    assert plugins.call_names() == ["DEL second", "DEL first"]
    assert plugins.kept() == []


async def test_a_record_without_a_configuration(
    plugins: ScriptedPlugins, networks: PodNetworks, tmp_path: Path
) -> None:
    """The present network of the same name is used. If there is none, the record stays."""
    await networks.add(sandbox_network())
    path = tmp_path / "kept/results/test-c1-eth0"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"config": "e30="}))
    plugins.write("00-other.conflist", json.dumps({"name": "other", "plugins": [{"type": "first"}]}))
    with pytest.raises(CniError, match='pod default/web: the record of network "test" has no configuration'):
        await networks.delete(sandbox_network())
    await networks.collect(known())
    assert plugins.kept() == ["test-c1-eth0"]
    plugins.write("00-other.conflist", "{")
    await networks.delete(sandbox_network())
    assert plugins.kept() == []
