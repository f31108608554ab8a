"""No file is opened, made or removed by a joined path: names that pods, plugins and images choose go through `beneath`.

`edges/host/fs/beneath.py` walks from a directory of the agent without links and without `..`. Everywhere else a call of the file system
gets a path as it is: a constant, or a setting. The modules that join paths of their own are listed below, each with its reason.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from support.product import source_files

#: Modules and packages that join paths themselves, by what they join them of.
JOINS = {
    # files of the kernel, whose names come from the kernel, from constants, or from identifiers that were checked
    "edges/host/cgroups/": "the kernel's cgroups; groups are named after UIDs of pods, which are plain names",
    "edges/host/devices/": "the kernel's devices; words of volumes are matched with a pattern before",
    "edges/host/proc/": "the kernel's files about processes and itself",
    "edges/host/selinux": "the mount table and files about SELinux",
    "provide/cgroups/system_cgroup": "processes, by number",
    "pykubelet_cri_docker/container_limits": "processes, by number",
    "pykubelet_cri_docker/stats/group_files": "processes, by number",
    # the helper itself and its parts
    "edges/host/fs/": "the functions on files themselves",
    # files that the agent names itself
    "provide/images/record_store": "pull records, named after digests that the agent computes",
    "pykubelet_local_api/begin": "the lock of the data folder, a setting",
    "pykubelet_local_api/store/database": "the file of all objects, a setting, and its copy",
    "pykubelet_csi_local/store": "volumes of the driver, whose ids are matched with a pattern by `VolumeStore.path`",
    "provide/volumes/kinds/local": "the directory `pods`, in which nothing but the mount table is looked at",
    "app/": "the agent's own directories, settings and packages",
    "pykubelet_cri_docker/cdi/own_nodes": "device nodes, named after their numbers",
    "act/pods/hooks": "a state file",
    "desired/roster/holders": "a state file",
    "edges/plugins/extension_memory": "a state file",
    "desired/sources/quarantine": "a state file",
    "edges/host/services/run_record": "the record of this run, named after a checksum of the root directory",
    "desired/roster/size_memory": "state files",
    "report/status/memory": "a state file",
    "edges/identity/": "certificates",
    # files that an administrator names, or puts into an administrator's directory
    "desired/sources/manifests": "manifests in the directory of manifests",
    "edges/plugins/credential_config": "files in the directories of the configuration",
    "edges/plugins/flexvolume": "programs in the directory of drivers, by their names there",
    "edges/plugins/sockets": "sockets in the directory of plugins, by their names there",
    "pykubelet_local_api/directory/folder": "files of the applied folder, by their names there",
    "pykubelet_local_api/ask": "the kubeconfig file of the API, in a folder that is a setting",
    "pykubelet_cri_docker/cdi/spec_folders": "CDI spec files in the directories of the administrator, by their names there",
    "pykubelet_cri_docker/network/config_folder": "configurations in the directory of CNI, by their names there",
    "pykubelet_cri_docker/network/plugins": "programs in the directories of CNI plugins, by names without a slash",
}
#: Packages that work with what pods, plugins and images name. They use `beneath`.
FOR_PODS = (
    "act/",
    "provide/",
    "observe/",
    "report/",
    "serve/",
    "desired/",
    "edges/cri/",
    "edges/csi/",
    "edges/probing/",
)
#: Their modules that use functions for any path all the same, by what the path is.
ANY_PATHS = {
    "provide/volumes/kinds/host_path": "of the host, which the pod names as such",
    "provide/volumes/kinds/local": "of the host, which the PersistentVolume names as such",
    "provide/volumes/ownership": "of a local volume",
    "provide/volumes/disks/block_map": "of a device",
    "provide/volumes/subpath": "of a volume, which may be one of the host",
    "act/runtime/lifecycle/sandbox": "of the resolver file, a setting",
    "act/runtime/lifecycle/start": "of the host's hosts file",
    "act/pods/ending": "of the directory of links to logs, a setting",
    "act/pods/hooks": "of a state file, and of the directory of all pods",
    "provide/cgroups/system_cgroup": "of processes",
    "provide/images/record_store": "of pull records",
    "provide/placement/store": "of state files",
    "provide/placement/devices/device_files": "of the device plugins' directory and state file",
    "provide/claims/store": "of a state file",
    "observe/node/runtime": "of the runtime's socket, a setting",
    "observe/eviction/read": "of settings",
    "observe/shutdown/record": "of a state file",
    "report/status/memory": "of a state file",
    "edges/cri/log_parts": "of an open descriptor",
    "edges/cri/wire": "of the runtime's socket, a setting",
    "serve/endpoints/debug": "of a directory of the agent",
    "desired/roster/size_memory": "of state files",
    "desired/sources/file": "of manifests, a setting",
    "desired/sources/manifests": "of manifests",
}
FS = "pykubelet.edges.host.fs"
#: Functions of Python that work on a path, by module.
CALLS = {
    "os": {
        "open", "mkdir", "makedirs", "unlink", "remove", "rmdir", "rename", "replace", "symlink", "link", "stat", "lstat",
        "listdir", "scandir", "readlink", "chmod", "chown", "lchown", "truncate", "mknod", "mkfifo", "walk", "access",
        "utime", "statvfs", "getxattr", "setxattr", "listxattr",
    },
    "os.path": {"exists", "lexists", "isdir", "isfile", "islink", "ismount", "realpath", "getsize", "getmtime", "samefile"},
    "shutil": {"rmtree", "copy", "copy2", "copyfile", "copytree", "move", "chown", "disk_usage"},
    "glob": {"glob", "iglob"},
    "io": {"open"},
    "builtins": {"open"},
}  # fmt: skip
#: Modules of `edges/host/fs` whose functions take any path.
ANY_PATH = ("files", "trees", "mounts", "text_files", "checkpoint", "shown_tree", "subpaths", "subpath_bind", "inotify")


def modules() -> Iterator[tuple[str, ast.Module]]:
    for name, path in source_files().items():
        if not name.startswith("testing/"):
            yield name.removesuffix(".py"), ast.parse(path.read_text())


class Names(ast.NodeVisitor):
    """What the names in a module stand for: `{"make_dirs": "pykubelet.edges.host.fs.files.make_dirs"}`."""

    def __init__(self, tree: ast.Module) -> None:
        self.known = {"open": "builtins.open"}
        self.visit(tree)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.known[alias.asname or alias.name.partition(".")[0]] = (
                alias.name if alias.asname else alias.name.partition(".")[0]
            )

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self.known[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def full(self, node: ast.expr) -> str:
        if isinstance(node, ast.Name):
            return self.known.get(node.id, "")
        if isinstance(node, ast.Attribute) and (left := self.full(node.value)):
            return f"{left}.{node.attr}"
        return ""


def is_file_call(full: str) -> bool:
    module, _, function = full.rpartition(".")
    module = {"posixpath": "os.path"}.get(module, module)
    return function in CALLS.get(module, ()) or (module.startswith(f"{FS}.") and module.rpartition(".")[2] in ANY_PATH)


def is_joined(node: ast.expr, names: Names, variables: dict[str, ast.expr]) -> bool:
    """Whether the expression is a text that is put together from others."""
    if isinstance(node, ast.JoinedStr):
        return any(isinstance(part, ast.FormattedValue) for part in node.values) and not is_descriptor(node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
        return True
    if isinstance(node, ast.Call):
        full = names.full(node.func)
        return full in ("os.path.join", "posixpath.join") or (
            isinstance(node.func, ast.Attribute) and node.func.attr == "format"
        )
    if isinstance(node, ast.Name) and node.id in variables:
        return is_joined(variables[node.id], names, {})
    return False


def is_descriptor(node: ast.JoinedStr) -> bool:
    """Whether the text names an open file: `/proc/self/fd/{number}`."""
    first = node.values[0]
    return isinstance(first, ast.Constant) and str(first.value).startswith("/proc/self/fd/")


def joined_paths(name: str, tree: ast.Module) -> Iterator[str]:
    names = Names(tree)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in [tree, *functions]:
        variables = {
            target.id: node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and is_file_call(names.full(node.func)):
                given = [*node.args, *(keyword.value for keyword in node.keywords)]
                if any(is_joined(argument, names, variables) for argument in given):
                    yield f"{name}:{node.lineno}: {names.full(node.func)}"


def any_path_calls(name: str, tree: ast.Module) -> Iterator[str]:
    """Calls of functions that take any path, but for those on the mount table and below a volume's root."""
    names = Names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call | ast.Attribute | ast.Name):
            full = names.full(node.func if isinstance(node, ast.Call) else node)
            module, _, function = full.rpartition(".")
            is_any = module in (f"{FS}.files", f"{FS}.trees") and function.islower()
            if is_any or (
                isinstance(node, ast.Call) and function in CALLS.get({"posixpath": "os.path"}.get(module, module), ())
            ):
                yield f"{name}:{node.lineno}: {full}"


def is_listed(name: str, listed: dict[str, str]) -> bool:
    return any(name == prefix or (prefix.endswith("/") and name.startswith(prefix)) for prefix in listed)


def test_paths_that_are_joined_are_not_given_to_the_file_system() -> None:
    found = {name: [*joined_paths(name, tree)] for name, tree in modules()}
    assert [call for name, calls in found.items() if not is_listed(name, JOINS) for call in calls] == []
    used = [name for name, calls in found.items() if calls]
    assert [listed for listed in JOINS if not any(is_listed(name, {listed: ""}) for name in used)] == []


def test_what_works_for_pods_uses_paths_below_the_agents_directories() -> None:
    found = {name: [*any_path_calls(name, tree)] for name, tree in modules() if name.startswith(FOR_PODS)}
    assert [call for name, calls in found.items() if name not in ANY_PATHS for call in calls] == []
    assert [name for name in ANY_PATHS if not found[name]] == []


@pytest.mark.parametrize(
    "text",
    [
        "import os\ndef f(a, b):\n    os.mkdir(f'{a}/{b}')",
        "import os\ndef f(a, b):\n    os.mkdir(os.path.join(a, b))",
        "import os, posixpath\ndef f(a, b):\n    os.rename(a, posixpath.join(a, b))",
        "def f(a, b):\n    return open(a + '/' + b)",
        "def f(a, b):\n    return open('%s/%s' % (a, b))",
        "def f(a, b):\n    return open('{}/{}'.format(a, b))",
        "def f(a, b):\n    path = f'{a}/{b}'\n    return open(file=path)",
        "import shutil as s\ndef f(a, b):\n    s.rmtree(f'{a}/{b}')",
        "from pykubelet.edges.host.fs import files\ndef f(a, b):\n    files.make_dirs(f'{a}/{b}')",
        "from pykubelet.edges.host.fs.trees import remove_tree as r\ndef f(a, b):\n    r(f'{a}/{b}')",
    ],
)
def test_a_joined_path_is_found(text: str) -> None:
    assert len(set(joined_paths("act/module", ast.parse(text)))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "import os\ndef f(a, n):\n    os.stat(f'/proc/self/fd/{n}')",
        "from pykubelet.edges.host.fs import beneath\ndef f(a, b):\n    beneath.make_dirs(a / b)",
        "def f(a):\n    return open(a)",
    ],
)
def test_other_paths_are_not_found(text: str) -> None:
    assert list(joined_paths("act/module", ast.parse(text))) == []


@pytest.mark.parametrize(
    "text",
    [
        "from pykubelet.edges.host.fs import files\ndef f(plan):\n    files.make_dirs(plan.path)",
        "from pykubelet.edges.host.fs.files import remove_file\ndef f(run, path):\n    run(remove_file, path)",
        "import os\ndef f(plan):\n    os.unlink(plan.path)",
    ],
)
def test_a_function_for_any_path_is_found(text: str) -> None:
    assert [*any_path_calls("act/module", ast.parse(text))] != []
