"""Generates the Kubernetes API structs in ``src/pykubelet/base/api`` from a file of JSON schema definitions.

Owns the shape of the generated modules: one frozen ``msgspec.Struct`` per definition, attribute names exactly as in
JSON (a trailing underscore where Python keeps the name for itself).
Does not own defaulting or validation (``base/manifests/defaults.py`` and ``base/manifests/validation``).

Shape:

* arrays are ``tuple[T, ...] = ()``, maps ``dict[str, T] = {}``, strings and times ``str = ""``, bytes (base64 on
  the wire) ``bytes = b""``;
* optional integers, booleans and structs are ``T | None = None``; an explicit ``false`` or ``0`` survives a round trip;
* required integers, booleans, strings and arrays have a default factory that the encoder does not take for a default,
  so they are always encoded; required times and quantities are left out while empty, because an empty string is
  neither a valid time nor a valid quantity;
* kinds have non-null ``metadata`` and ``spec``; Pod and Node also a non-null ``status``;
* ``managedFields`` is left out: nothing in a node agent reads it, and it is half of the bytes.

The document of types lies in the package of the local API, which reads it at run time.

Usage: ``python tools/gen_api.py [types.json] [--check]``, and ``--reduce checkout --release v1.38.0`` for the types of another
release (``tools/api/README.md``).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import keyword
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_TYPES = ROOT / "src" / "pykubelet_local_api" / "kinds" / "kubernetes-1.37-types.json"
OUT = ROOT / "src" / "pykubelet" / "base" / "api"

CORE = "io.k8s.api.core.v1."
META = "io.k8s.apimachinery.pkg.apis.meta.v1."
AUTHN = "io.k8s.api.authentication.v1."
AUTHZ = "io.k8s.api.authorization.v1."
CERTS = "io.k8s.api.certificates."
STORAGE = "io.k8s.api.storage.v1."

#: The packages whose definitions are kept of the API server's document.
PACKAGES = frozenset(
    [f"io.k8s.api.{name}.v1" for name in
     ("authentication", "authorization", "certificates", "coordination", "core", "discovery", "events", "node", "policy",
      "rbac", "resource", "scheduling", "storage")]
    + [f"io.k8s.api.{name}" for name in
       ("certificates.v1beta1", "resource.v1alpha3", "resource.v1beta1", "resource.v1beta2")]
    + [f"io.k8s.apimachinery.pkg.{name}" for name in
       ("api.resource", "apis.meta.v1", "runtime", "util.intstr", "version")]
)  # fmt: skip

# Definitions that are not structs: what they become, and whether an empty string is a legal value on the wire.
SCALARS = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": "Quantity",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": "IntOrString",
    META + "Time": "str",
    META + "MicroTime": "str",
    META + "FieldsV1": "Any",
    "io.k8s.apimachinery.pkg.runtime.RawExtension": "Any",
}
ALIASES = """#: A resource amount as written: text, or a bare number from YAML. Parse it with base.api.quantity.
Quantity = str | int | float
#: A port or a count: a number, or a name or percentage.
IntOrString = int | str"""
# Attribute names that would hide the type names later annotations of the same class need.
BUILTINS = {"bool", "bytes", "dict", "float", "int", "str", "tuple"}
#: Go's names of structs of other packages that fields have as values.
VALUE_STRUCTS = {f"metav1.{name}" for name in ("ListMeta", "LabelSelector", "MicroTime", "ObjectMeta", "Time")} | {
    "intstr.IntOrString",
    "resource.Quantity",
    "runtime.RawExtension",
    "v1.ObjectReference",
    "v1.PersistentVolumeSpec",
}
LEFT_OUT = {(META + "ObjectMeta", "managedFields")}
NON_NULL_STATUS = {CORE + "Pod", CORE + "Node"}
#: What `base.kit.values.remember_last` remembers something of.
REMEMBERED = {"Pod"}


@dataclass(frozen=True, slots=True)
class Module:
    """One generated file: its roots (definitions; their closure follows) and the sentence that opens it."""

    name: str
    about: str
    roots: tuple[str, ...]


MODULES = (
    Module(
        "core",
        "Pods, nodes and what a node agent without a cluster needs.",
        tuple(CORE + n for n in ("Pod", "PodList", "Node", "NodeList", "ConfigMap", "Secret", "Service", "Event"))
        + tuple(CORE + n for n in ("ConfigMapList", "SecretList", "ServiceList", "Binding", "PodTemplateSpec"))
        + (
            "io.k8s.api.coordination.v1.Lease",
            "io.k8s.api.node.v1.RuntimeClass",
            "io.k8s.api.node.v1.RuntimeClassList",
        )
        + tuple(META + n for n in ("Status", "DeleteOptions", "LabelSelector", "Condition")),
    ),
    Module(
        "storage",
        "Persistent volumes, claims, attachments and CSI registration objects.",
        tuple(CORE + n for n in ("PersistentVolume", "PersistentVolumeClaim", "PersistentVolumeClaimList"))
        + tuple(STORAGE + n for n in ("CSINode", "CSIDriver", "CSIDriverList", "VolumeAttachment", "StorageClass")),
    ),
    Module(
        "auth",
        "Token requests and the reviews that authenticate and authorize callers.",
        tuple(AUTHN + n for n in ("TokenRequest", "TokenReview")) + (AUTHZ + "SubjectAccessReview",),
    ),
    Module(
        "certificates",
        "Signing requests, trust bundles and pod certificate requests.",
        (
            CERTS + "v1.CertificateSigningRequest",
            CERTS + "v1.ClusterTrustBundle",
            CERTS + "v1.ClusterTrustBundleList",
            CERTS + "v1.PodCertificateRequest",
            CERTS + "v1.PodCertificateRequestList",
        ),
    ),
)

#: Class names of definitions whose own name another API group has too.
RENAMED = {STORAGE + "TokenRequest": "StorageTokenRequest"}


def short(definition: str) -> str:
    """The Python class name of a definition: the last part of its id, unless two API groups use the same name."""
    return RENAMED.get(definition) or definition.rsplit(".", 1)[1]


def refs_of(schema: dict[str, Any]) -> Iterator[str]:
    """Definitions that one property refers to."""
    if "$ref" in schema:
        yield schema["$ref"].rsplit("/", 1)[1]
    for inner in ("items", "additionalProperties"):
        if isinstance(schema.get(inner), dict):
            yield from refs_of(schema[inner])


class Generator:
    """Render definitions as module texts; names that an earlier module has are imported."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self.definitions = definitions
        self.placed: dict[str, str] = {}

    def closure(self, roots: tuple[str, ...]) -> list[str]:
        """Roots and all they need that no module holds yet, each after what it refers to."""
        order: list[str] = []
        seen: set[str] = set()

        def visit(name: str, trail: tuple[str, ...]) -> None:
            if name in SCALARS or name in self.placed or name in seen:
                return
            if name in trail:
                raise ValueError(f"definitions refer to each other: {' -> '.join((*trail, name))}")
            for prop, schema in sorted(self.definitions[name].get("properties", {}).items()):
                if (name, prop) not in LEFT_OUT:
                    for ref in refs_of(schema):
                        visit(ref, (*trail, name))
            seen.add(name)
            order.append(name)

        for root in roots:
            visit(root, ())
        return order

    def type_of(self, schema: dict[str, Any], module: str) -> str:
        """The Python type of a property, without optionality."""
        if "$ref" in schema:
            target = schema["$ref"].rsplit("/", 1)[1]
            if target in SCALARS:
                return SCALARS[target]
            home = self.placed[target]
            return short(target) if home == module else f"{home}.{short(target)}"
        match schema.get("type"):
            case "array":
                return f"tuple[{self.type_of(schema['items'], module)}, ...]"
            case "object":
                extra = schema.get("additionalProperties")
                return f"dict[str, {self.type_of(extra, module) if extra else 'Any'}]"
            case "string":
                return "bytes" if schema.get("format") == "byte" else "str"
            case "integer":
                return "int"
            case "boolean":
                return "bool"
            case "number":
                return "float"
            case other:
                raise ValueError(f"unknown schema type {other!r}")

    def field_line(self, owner: str, prop: str, schema: dict[str, Any], required: bool, module: str) -> str:
        """One attribute of a struct."""
        kind = self.type_of(schema, module)
        time = "$ref" in schema and kind == "str"
        args: list[str] = []
        attribute = prop
        if keyword.iskeyword(prop) or prop in BUILTINS:
            attribute = prop + "_"
            args.append(f'name="{prop}"')
        is_kind = "x-kubernetes-group-version-kind" in self.definitions[owner]
        struct = "$ref" in schema and schema["$ref"].rsplit("/", 1)[1] not in SCALARS
        always = required or (
            is_kind and (prop in ("metadata", "spec") or (prop == "status" and owner in NON_NULL_STATUS))
        )
        if struct:
            default = f"default_factory={kind}" if always else "default=None"
            annotation = kind if always else f"{kind} | None"
        elif kind.startswith("dict["):
            default, annotation = "default_factory=dict", kind
        elif kind.startswith("tuple["):
            default, annotation = ("default_factory=lambda: ()" if required else "default=()"), kind
        elif kind == "bytes":
            default, annotation = ("default_factory=bytes" if required else 'default=b""'), kind
        elif kind == "str":
            default, annotation = ("default_factory=str" if required and not time else 'default=""'), kind
        elif kind == "Quantity":
            default, annotation = ('default=""', kind) if required else ("default=None", "Quantity | None")
        elif kind == "Any":
            default, annotation = "default=None", "Any"
        else:
            factory = "int" if kind == "IntOrString" else kind
            default, annotation = (
                (f"default_factory={factory}", kind) if required else ("default=None", f"{kind} | None")
            )
        if not args and default.startswith("default="):
            return f"    {attribute}: {annotation} = {default.removeprefix('default=')}"
        if not args and default == "default_factory=dict":
            return f"    {attribute}: {annotation} = {{}}"
        return f"    {attribute}: {annotation} = field({', '.join([default, *args])})"

    def struct(self, name: str, module: str) -> str:
        """One class."""
        definition = self.definitions[name]
        required = set(definition.get("required", ()))
        collected = "weakref=True" if short(name) in REMEMBERED else "gc=False"  # msgspec allows only one of both
        lines = [f"class {short(name)}(Struct, frozen=True, kw_only=True, omit_defaults=True, {collected}):"]
        for prop, schema in sorted(definition.get("properties", {}).items()):
            if (name, prop) not in LEFT_OUT:
                lines.append(self.field_line(name, prop, schema, prop in required, module))
        if len(lines) == 1:
            lines.append("    pass")
        return "\n".join(lines)

    def kinds(self, names: list[str]) -> str:
        """The table from class to (apiVersion, kind) for the objects an API server serves."""
        rows = []
        for name in names:
            for gvk in self.definitions[name].get("x-kubernetes-group-version-kind", ())[:1]:
                group, version = gvk["group"], gvk["version"]
                if short(name) == gvk["kind"]:
                    rows.append(f'    {short(name)}: ("{group + "/" if group else ""}{version}", "{gvk["kind"]}"),')
        return "KINDS: dict[type[Struct], tuple[str, str]] = {\n" + "\n".join(rows) + "\n}"

    def module(self, module: Module, version: str) -> str:
        """The whole text of one module."""
        names = self.closure(module.roots)
        doubles = {short(n) for n in names if [short(m) for m in names].count(short(n)) > 1}
        if doubles:
            raise ValueError(f"module {module.name} has two classes of one name: {sorted(doubles)}")
        self.placed.update(dict.fromkeys(names, module.name))
        structs = "\n\n\n".join(self.struct(name, module.name) for name in names)
        kinds = self.kinds(names)
        used = {w for w in ("core",) if f"{w}." in structs and module.name != w}
        lines = ["from __future__ import annotations", ""]
        if "Any" in structs:
            lines += ["from typing import Any", ""]
        lines += ["from msgspec import Struct, field" if " = field(" in structs else "from msgspec import Struct", ""]
        if used:
            lines += ["from pykubelet.base.api import core"]
        scalars = [s for s in ("IntOrString", "Quantity") if f"{s}" in structs]
        if module.name == "core":
            lines += [ALIASES]
        elif scalars:
            lines += [f"from pykubelet.base.api.core import {', '.join(scalars)}"]
        head = "\n".join(lines).rstrip()
        body = f"{head}\n\n\n{structs}\n\n\n#: apiVersion and kind of each object here.\n{kinds}\n"
        digest = hashlib.sha256(body.encode()).hexdigest()
        return (
            f'"""{module.about} Kubernetes {version} types as frozen structs.\n\n'
            "Generated by tools/gen_api.py: do not edit. Names are those of the wire; unknown fields are ignored.\n"
            f'body sha256: {digest}\n"""\n\n{body}'
        )


def reduce_document(document: dict[str, Any], release: str, zeros: dict[str, Any]) -> dict[str, Any]:
    """The definitions of `PACKAGES` in an OpenAPI v2 document of Kubernetes, without descriptions, and `zeros`."""
    found = {k: _plain(v) for k, v in document["definitions"].items() if k.rpartition(".")[0] in PACKAGES}
    kept = {
        k: {rule: [name for name in names if name in found[k].get("properties", {})] for rule, names in v.items()}
        for k, v in zeros.items()
        if k in found
    }
    return {"definitions": found, "info": {"title": "Kubernetes API types", "version": release}, "zeros": kept}


_STRUCT = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^\t(?:(\w+)\s+)?(\S+)\s+`[^`]*\bjson:\"([^\"]*)\"", re.MULTILINE)


def read_zeros(checkout: Path) -> dict[str, Any]:
    """How the API server writes the zero values of each definition's fields, which the OpenAPI document does not have.

    `dropped`: fields whose zero value (`false`, 0, "") is left out, because it does not differ from an absent one.
    `always`: fields that are written even if they are absent. Read in the Go structs below `staging/src/k8s.io`.
    """
    structs: dict[tuple[str, str], str] = {}
    folders = {name: checkout / "staging/src/k8s.io" / _folder(name) for name in PACKAGES}
    for name, folder in folders.items():
        for file in sorted(folder.glob("*.go")):
            if not file.name.endswith("_test.go"):
                structs.update({(name, found[1]): found[2] for found in _STRUCT.finditer(file.read_text())})
    found: dict[str, Any] = {}
    for package, struct in structs:
        dropped, always = _zeros_of(structs, package, struct)
        if dropped or always:
            found[f"{package}.{struct}"] = {"always": sorted(always), "dropped": sorted(dropped)}
    return found


def _folder(package: str) -> str:
    return package.removeprefix("io.k8s.").replace("apimachinery.pkg.", "apimachinery/pkg/").replace(".", "/")


def _zeros_of(structs: dict[tuple[str, str], str], package: str, struct: str) -> tuple[set[str], set[str]]:
    dropped, always = set[str](), set[str]()
    for _, kind, tag in _FIELD.findall(structs[package, struct]):
        name, *options = tag.split(",")
        if "inline" in options:
            if (package, kind) in structs:
                more = _zeros_of(structs, package, kind)
                dropped, always = dropped | more[0], always | more[1]
        elif name and name != "-" and not kind.startswith("*"):
            is_struct = (package, kind) in structs or kind in VALUE_STRUCTS
            if "omitempty" not in options or (is_struct and "omitzero" not in options):
                always.add(name)
            elif not is_struct and not kind.startswith(("[", "map[")):
                dropped.add(name)
    return dropped, always


def _plain(value: Any) -> Any:
    if isinstance(value, dict):  # a property may have the name description
        return {k: _plain(v) for k, v in value.items() if k != "description" or isinstance(v, dict)}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def render_types(types: dict[str, Any]) -> str:
    """The text of a file of definitions: a line for each value, so that releases can be compared."""
    return json.dumps(types, indent=0, separators=(",", ":"), sort_keys=True) + "\n"


def generate(types: Path) -> dict[str, str]:
    """Module name to module text for a file of definitions."""
    loaded = json.loads(types.read_text())
    generator = Generator(loaded["definitions"])
    return {module.name: generator.module(module, loaded["info"]["version"]) for module in MODULES}


def main(argv: list[str] | None = None) -> int:
    """Writes the modules, or with --check reports those that are stale (exit code 1)."""
    parser = argparse.ArgumentParser(description="Generate base/api structs from Kubernetes type definitions.")
    parser.add_argument("types", nargs="?", type=Path, default=DEFAULT_TYPES)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when a module is stale")
    parser.add_argument(
        "--reduce", type=Path, metavar="CHECKOUT", help="print the types of a checkout of Kubernetes instead"
    )
    parser.add_argument("--release", default="", help="the release that the document is of")
    args = parser.parse_args(argv)
    if args.reduce is not None:
        document = json.loads((args.reduce / "api/openapi-spec/swagger.json").read_text())
        print(render_types(reduce_document(document, args.release, read_zeros(args.reduce))), end="")
        return 0
    stale = 0
    for name, text in generate(args.types).items():
        path = OUT / f"{name}.py"
        if args.check:
            if not path.exists() or path.read_text() != text:
                print(f"{path}: stale, run tools/gen_api.py", file=sys.stderr)
                stale = 1
        else:
            path.write_text(text)
    return stale


if __name__ == "__main__":
    raise SystemExit(main())
