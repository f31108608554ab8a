"""The commands `pykubelet pods`, `pykubelet explain POD` and `pykubelet page`, which query the running agent.

They use the agent's root-only socket. Owns: the options, the choice of the pod, and the tables. The content of the answers
comes from `serve/explain` in the agent. Imports only little of the standard library, because a command must answer within
a tenth of a second. Exit codes: 0 answered, 1 not (no agent, no such pod, no permission), 2 wrong command line.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pykubelet.app.amounts import render_amount
from pykubelet.app.placement_map import map_lines, pod_lines
from pykubelet.app.volumes_shown import claim_lines, volume_lines
from pykubelet.base.kit.text import escape_controls

ROOT_DIR = "/var/lib/kubelet"
TIMEOUT_S = 10.0
ANSWER_BYTES = 256 * 1024 * 1024
COLUMNS = ("NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE", "WAITING FOR")
EXTENSION_COLUMNS = ("NAME", "VERSION", "POINTS", "STATE")
#: Columns are not wider than this, because one long name would move them off the screen for all pods.
MAX_WIDTH = 63
NODE = "node"
DAY_S = 86400
Document = Mapping[str, Any]


class AskError(Exception):
    """No answer can be shown. The text states the reason and what to do."""


def pods(argv: Sequence[str]) -> int:
    """`pykubelet pods [-o json]`."""
    return _answered(pods_parser().parse_args(argv), _show_pods)


def pods_parser() -> argparse.ArgumentParser:
    return _parser("pods", "All pods of this node, and what each waits for.")


def explain(argv: Sequence[str]) -> int:
    """`pykubelet explain POD|node [-o json]`."""
    options = explain_parser().parse_args(argv)
    if options.recording:
        return _answered(options, _show_recording)
    return _answered(options, _show_node if options.pod == NODE else _show_pod)


def explain_parser() -> argparse.ArgumentParser:
    parser = _parser("explain", "One pod: what it waits for, since when, who owns the wait, and its recent timeline.")
    parser.add_argument("pod", metavar="POD", help="NAME, NAMESPACE/NAME, the start of a UID, or the word node")
    parser.add_argument(
        "--recording",
        action="store_true",
        help="the newest steps of the pod worker, or of the node's placement, for pykubelet replay",
    )
    return parser


def extensions(argv: Sequence[str]) -> int:
    """`pykubelet extensions [enable NAME]`."""
    return _answered(extensions_parser().parse_args(argv), _show_extensions)


def extensions_parser() -> argparse.ArgumentParser:
    parser = _parser("extensions", "The extensions of the agent: where each takes part, and whether it is off.")
    parser.add_argument("action", nargs="?", choices=("enable",), help="ask an extension again that is off")
    parser.add_argument("name", nargs="?", metavar="NAME", default="", help="the extension's name")
    return parser


def page(argv: Sequence[str]) -> int:
    """`pykubelet page`: print a link that opens the node's web page and is valid once."""
    return _answered(page_parser().parse_args(argv), _show_link)


def page_parser() -> argparse.ArgumentParser:
    return _parser("page", "A link to the node's web page, good once and for five minutes.")


def _parser(command: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"pykubelet {command}", description=description, allow_abbrev=False)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="the form of the answer")
    parser.add_argument("--root-dir", default=ROOT_DIR, help=f"the agent's --root-dir (default {ROOT_DIR})")
    parser.add_argument("--socket", default="", help="the agent's socket (default <root-dir>/pykubelet.sock)")
    return parser


def _answered(options: argparse.Namespace, show: Any) -> int:
    try:
        show(options)
        sys.stdout.flush()
    except AskError as error:
        print(f"Error: {escape_controls(str(error))}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        sys.stderr.close()  # the reader of the output has gone, as in `| head`; suppress Python's message about it
        return 1
    return 0


# Requests to the agent


def _ask(options: argparse.Namespace, path: str, method: str = "GET") -> Any:
    """The decoded answer; None if the agent does not know `path`. Raises AskError if there is no answer.

    Control characters are escaped unless the answer is printed as JSON.
    """
    where = options.socket or f"{options.root_dir}/pykubelet.sock"
    try:
        status, body = _request(where, path, method)
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
        raise AskError(
            f"the agent is not running: nothing listens at {where} (another --root-dir? give it as --root-dir)"
        ) from error
    except PermissionError as error:
        raise AskError(f"permission denied at {where}: only root may ask the agent") from error
    except TimeoutError as error:
        raise AskError(f"the agent at {where} did not answer within {TIMEOUT_S:g} s") from error
    except OSError as error:
        raise AskError(f"cannot ask the agent at {where}: {error}") from error
    if status == 403:
        raise AskError(f"permission denied at {where}: only root may ask the agent")
    if status == 404:
        return None
    if status not in (200, 202):
        raise AskError(f"the agent at {where} answered {status}: {body.decode(errors='replace').strip()}")
    try:
        document = json.loads(body)
        return document if options.output == "json" else _printable(document)
    except ValueError as error:
        raise AskError(f"the agent at {where} gave an answer that is not JSON: {error}") from error


def _printable(document: Any) -> Any:
    """Escape the control characters that containers have put into messages, outputs and Events."""
    if isinstance(document, str):
        return escape_controls(document)
    if isinstance(document, list):
        return [_printable(item) for item in document]
    if isinstance(document, dict):
        return {key: _printable(item) for key, item in document.items()}
    return document


def _request(where: str, path: str, method: str) -> tuple[int, bytes]:
    """Send one request over a unix socket. Raises OSError."""
    from pykubelet.net.http.response import BadResponse, ResponseParser  # not needed for a wrong command line

    response = ResponseParser()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(TIMEOUT_S)
            link.connect(where)
            link.sendall(f"{method} {path} HTTP/1.0\r\n\r\n".encode())
            while not response.complete:
                if part := link.recv(1 << 16):
                    response.feed(part)
                else:
                    response.end()
                if response.waiting_bytes > ANSWER_BYTES:
                    raise OSError("the answer is too large")
    except BadResponse as error:
        raise OSError(str(error)) from error
    return response.status, response.take()


# page


def _show_link(options: argparse.Namespace) -> None:
    document = _ask(options, "/page-link")
    if document is None:
        raise AskError("the node's web page is switched off; start the agent with --cadvisor-port=4194")
    print(json.dumps(document) if options.output == "json" else document["link"])


# extensions


def _show_extensions(options: argparse.Namespace) -> None:
    found = {extension["name"]: extension for extension in _ask(options, "/node")["extensions"]}
    if options.action == "enable":
        if options.name not in found:
            raise AskError(f"no extension named {options.name!r} is loaded: {', '.join(found) or 'there is none'}")
        _ask(options, f"/extensions/{options.name}", "POST")
    elif options.output == "json":
        print(json.dumps(list(found.values()), indent=2))
    else:
        rows = [(e["name"], e["version"] or "-", ",".join(e["points"]), _extension_state(e)) for e in found.values()]
        print("\n".join(_table([EXTENSION_COLUMNS, *rows])) if rows else "no extensions (see --extension)")


def _extension_state(extension: Document) -> str:
    if extension["off"]:
        return f"off: {extension['off']}" + (f"; {extension['error']}" if extension["error"] else "")
    return f"last failure: {extension['error']}" if extension["error"] else "on"


# pods


def _show_pods(options: argparse.Namespace) -> None:
    document = _ask(options, "/pods")
    if options.output == "json":
        print(json.dumps(document, indent=2))
        return
    now = document["time"]
    rows = [_row(pod, now) for pod in document["pods"]]
    print("\n".join(_table([COLUMNS, *rows])) if rows else f"no pods on node {document['node']}")
    _print_notes(document, now)
    if remarks := document["remarks"]:
        print(f"\nRemarks: {len(remarks)}, which `pykubelet explain node` shows")


def _row(pod: Document, now: float) -> tuple[str, ...]:
    waits = "; ".join(_short_wait(wait, now) for wait in pod["waits"]) or "-"
    age = render_age(now - pod["created"]) if pod["created"] else ""
    return (pod["namespace"], pod["name"], pod["ready"], pod["status"], str(pod["restarts"]), age, waits)


def _short_wait(wait: Document, now: float) -> str:
    what = " ".join(part for part in (wait["what"], wait["subject"]) if part)
    reason = f": {wait['reason']}" if wait["reason"] else ""
    return f"{what}{reason} ({render_age(now - wait['since'])}, {wait['owner']})"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows in columns. A cell above `MAX_WIDTH` moves the rest of its own row only."""
    widths = [max((len(row[i]) for row in rows if len(row[i]) <= MAX_WIDTH), default=0) for i in range(len(rows[0]))]
    return ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _print_notes(document: Document, now: float) -> None:
    """Print what concerns the whole node: its own waits, and manifests that cannot be used."""
    if document["waits"]:
        print("\nThe node waits for:")
        _print_waits(document["waits"], now)
    if document["problems"]:
        print("\nManifests that cannot be used:")
        _print_places(document["problems"])


def _print_remarks(remarks: Sequence[Document]) -> None:
    """Print what is odd about files that are used nevertheless."""
    if remarks:
        print("\nRemarks:")
        _print_places(remarks)


def _print_places(places: Sequence[Document]) -> None:
    for place in places:
        print(f"  {_place_text(place)}")


def _place_text(place: Document) -> str:
    field = f" {place['field_path']}:" if place["field_path"] else ""
    document = f" ({place['document']})" if place.get("document") else ""
    return f"{place['origin']}{document}:{field} {place['reason']}"


# explain


def _show_pod(options: argparse.Namespace) -> None:
    known = _ask(options, "/pods")
    chosen = choose(known["pods"], options.pod, known["node"], known["problems"])
    found = [document for pod in chosen if (document := _ask(options, f"/pods/{pod['uid']}")) is not None]
    if not found:
        raise AskError(f'the pod "{options.pod}" has just gone')
    if options.output == "json":
        print(json.dumps(found[0] if len(found) == 1 else found, indent=2))
        return
    for number, document in enumerate(found):
        if number:
            print()
        _print_pod(document)
    if known["waits"]:
        print("\nThe node waits for:")
        _print_waits(known["waits"], known["time"])


def _show_recording(options: argparse.Namespace) -> None:
    options.output = "json"
    if options.pod == NODE:
        document = _ask(options, "/node/recording")
        if document is None:
            raise AskError("nothing was placed yet")
        print(json.dumps(document))
        return
    known = _ask(options, "/pods")
    chosen = choose(known["pods"], options.pod, known["node"], known["problems"])
    for pod in chosen:
        document = _ask(options, f"/pods/{pod['uid']}/recording")
        if document is not None:
            print(json.dumps(document))
            return
    raise AskError(f'the pod "{options.pod}" has no worker now: nothing was recorded')


def choose(known: Sequence[Document], wanted: str, node: str, problems: Sequence[Document] = ()) -> list[Document]:
    """The pods that match NAME, NAMESPACE/NAME or the start of a UID. All of them have the same name and namespace.

    NAME may also be the name in the manifest, without the node's name that the agent appends. Raises AskError if no pod
    matches, with similar names, or if pods with different names match.
    """
    namespace, slash, name = wanted.rpartition("/")
    here = [pod for pod in known if not slash or pod["namespace"] == namespace]
    found = [pod for pod in here if pod["name"] == name] or [pod for pod in here if pod["name"] == f"{name}-{node}"]
    if not found and not slash and wanted:
        found = [pod for pod in known if pod["uid"].startswith(wanted)]
    if not found:
        raise AskError(f'no pod "{wanted}" on this node{_refused(problems, name, node) or _near(known, name)}')
    if len({(pod["namespace"], pod["name"]) for pod in found}) > 1:
        listed = ", ".join(f"{pod['namespace']}/{pod['name']}" for pod in found)
        raise AskError(f'"{wanted}" fits several pods: {listed}')
    return found


def _refused(problems: Sequence[Document], name: str, node: str) -> str:
    """The problem of a manifest or document that is named like the pod: the user probably asks about this one."""
    for problem in problems:
        stem = problem["origin"].rpartition("/")[2].partition(".")[0]
        names = (name, name.removesuffix(f"-{node}"))
        if stem in names or any(problem.get("document", "").endswith(f", Pod {known}") for known in names):
            return f"; its manifest cannot be used: {_place_text(problem)}"
    return ""


def _near(known: Sequence[Document], name: str) -> str:
    import difflib  # needed only for a wrong name

    names = sorted({pod["name"] for pod in known})
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or [n for n in names if name and name in n][:3]
    full = [f"{pod['namespace']}/{pod['name']}" for n in near for pod in known if pod["name"] == n]
    if full:
        return f"; did you mean {' or '.join(dict.fromkeys(full))}?"
    return "; there are none" if not known else "; pykubelet pods lists them"


def _starts_with_agent(pod: Document) -> bool:
    """Whether it is a static pod that the node has ended: it counts as ended only as long as the agent runs."""
    return pod["source"] != "api" and pod["kill_reason"] in ("evicted", "shutdown")


def _print_pod(pod: Document) -> None:
    now = pod["time"]
    print(f"Pod {pod['namespace']}/{pod['name']} ({pod['uid']}), from {pod['source']}")
    age = f", {render_age(now - pod['created'])} old" if pod["created"] else ""
    print(f"{pod['status']}: phase {pod['phase'] or 'unknown'}, ready {pod['ready']}, restarts {pod['restarts']}{age}")
    if (pod["reason"] and pod["reason"] != pod["status"]) or pod["message"]:
        print(f"{pod['reason']}: {pod['message']}")
    placement = pod["placement"]
    if placement is not None and placement["explanation"]:
        print(f"{placement['explanation'][:1].upper()}{placement['explanation'][1:]}")
    if pod["stage"]:
        why = f" ({pod['kill_reason']})" if pod["kill_reason"] else ""
        print(f"Stage {pod['stage']}{why} for {render_age(now - pod['stage_since'])}")
    print("\nWaits for:")
    if pod["stage"] == "finished" and not pod["waits"]:
        before = " before the next start of the agent" if _starts_with_agent(pod) else ""
        print(f"  nothing: the pod has ended, and its containers are not started again{before}")
    else:
        _print_waits(pod["waits"], now)
    if pod["containers"]:
        print("\nContainers:")
        for line in _table([_container_row(container, now) for container in pod["containers"]]):
            print(f"  {line}")
    if pod["volumes"]:
        print("\nVolumes:")
        for line in volume_lines(pod["volumes"], now, render_age):
            print("  " + line.replace("\n", "\n        "))
    if placement is not None and placement["containers"]:
        print("\nPlacement:")
        print("\n".join(pod_lines(placement)))
    _print_remarks(pod["remarks"])
    _print_timeline(pod["timeline"], now)


def _print_waits(waits: Sequence[Document], now: float) -> None:
    if not waits:
        print("  nothing")
    for wait in waits:
        what = " ".join(part for part in (wait["what"], wait["subject"]) if part)
        print(f"  {what}: for {render_age(now - wait['since'])}, owned by {wait['owner']}")
        why = ": ".join(part for part in (wait["reason"], wait["detail"]) if part)
        if why:
            print(f"    why   {_indented(why)}")
        following = _next(wait, now)
        if following:
            print(f"    next  {following}")


def _next(wait: Document, now: float) -> str:
    if wait["next_at"] is None:
        return str(wait["next_step"])
    left = wait["next_at"] - now
    when = f"in {render_age(left)}" if left >= 1 else "now"
    return f"{wait['next_step'] or 'again'} {when}"


def _container_row(container: Document, now: float) -> tuple[str, ...]:
    kind = "" if container["kind"] == "regular" else container["kind"]
    state = _state_text(container, now)
    if container["state"] == "running" and container["kind"] in ("regular", "sidecar"):
        state += ", ready" if container["ready"] else ", not ready"
    last = f"before: {_state_text(container['last'], now)}" if container["last"] else ""
    restarts = f"restarts {container['restarts']}"
    return (container["name"], kind, restarts, state, last)


def _state_text(state: Document, now: float) -> str:
    since = (
        f" {render_age(now - state['since'])}{' ago' if state['state'] == 'terminated' else ''}"
        if state["since"]
        else ""
    )
    code = f" with {state['exit_code']}" if "exit_code" in state else ""
    reason = f" ({state['reason']})" if state["reason"] else ""
    return f"{state['state']}{code}{reason}{since}"


def _print_timeline(timeline: Iterable[Document], now: float) -> None:
    lines = [_timeline_entry(line, now) for line in timeline]
    if lines:
        print("\nTimeline:")
        print("\n".join(lines))


def _timeline_entry(line: Document, now: float) -> str:
    at = time.localtime(line["at"])
    clock = time.strftime("%H:%M:%S" if now - line["at"] < DAY_S else "%Y-%m-%d %H:%M:%S", at)
    what = _indented(line["what"])
    if "event" in line:
        count = f" (x{line['count']})" if line["count"] > 1 else ""
        about = f" {line['object']}" if line["object"] else ""
        return f"  {clock}  {line['type']} {line['event']}{about}{count}: {what}"
    cause = f" ({line['cause']})" if line["cause"] else ""
    return f"  {clock}  {what}{cause}"


def _indented(text: str) -> str:
    return text.strip().replace("\n", "\n        ")


def _show_node(options: argparse.Namespace) -> None:
    document = _ask(options, "/node")
    if options.output == "json":
        print(json.dumps(document, indent=2))
        return
    now, runtime = document["time"], document["runtime"]
    print(f"Node {document['name']} ({', '.join(document['ips']) or 'no address'})")
    print(f"Agent started {render_age(now - document['started'])} ago")
    state = "ready" if runtime["ok"] and not runtime["network_error"] else "not ready"
    name = " ".join(part for part in (runtime["name"], runtime["version"]) if part) or "unknown"
    print(f"Container runtime {name}: {state}, restarts seen {runtime['restarts_seen']}")
    for line in _cluster_lines(document, now):
        print(line)
    for line in _eviction_lines(document.get("eviction"), now):
        print(line)
    if document["placement"] is not None:
        print("\nPlacement:")
        print("\n".join(map_lines(document["placement"])) or "  nothing is placed")
    if document["extensions"]:
        print("\nExtensions:")
        for found in document["extensions"]:
            named = " ".join(part for part in (found["name"], found["version"]) if part)
            print(f"  {named} ({', '.join(found['points'])}; {found['file']}): {_extension_state(found)}")
    if document["plugins"]:
        print("\nPlugins:")
        print("\n".join(plugin_lines(document["plugins"], now)))
    if document["claims"]:
        print("\nClaims of manifests:")
        print("\n".join(claim_lines(document["claims"])))
    for left in document["left_volumes"]:
        print(f"\nVolumes of pod {left['pod']}, which is gone:")
        for line in volume_lines(left["volumes"], now, render_age):
            print("  " + line.replace("\n", "\n        "))
    print("\nWaits for:")
    _print_waits(document["waits"], now)
    _print_notes({"waits": (), "problems": document["problems"]}, now)
    _print_remarks(document["remarks"])
    _print_timeline(document["timeline"], now)


def _cluster_lines(document: Document, now: float) -> Iterable[str]:
    """The lines about the API server and the certificates; none on a standalone node."""
    api = document.get("api")
    if api is None:
        return
    answered = f"last answer {render_age(now - api['ok_at'])} ago" if api["ok_at"] is not None else "never answered"
    state = f"not to be had, {answered}" if api["error"] else answered
    node = f"registered as {api['uid']}" if api["registered"] else "not registered"
    yield f"API server {api['server']}: {state}; {node}"
    for found in document["certificates"]:
        expires = found["expires_at"]
        if expires is None:
            state = "none yet"
        elif expires <= now:
            state = f"expired {render_age(now - expires)} ago"
        else:
            state = f"expires in {render_age(expires - now)}"
        yield f"Certificate ({found['use']}) {found['file']}: {state}"


def plugin_lines(plugins: Sequence[Document], now: float) -> Iterable[str]:
    """The lines about the plugins of the node: since when they are registered, or why they are not."""
    for plugin in plugins:
        if plugin["problem"]:
            yield f"  {plugin['socket']}: {plugin['problem']}"
        else:
            age = render_age(now - plugin["since"])
            yield f"  {plugin['type']} {plugin['name']}: registered {age} ago, {plugin['endpoint']}"


def _eviction_lines(eviction: Document | None, now: float) -> Iterable[str]:
    """The lines about each signal: threshold, trend and users, and the pod that would be evicted next."""
    if eviction is None or not eviction["signals"]:
        return
    yield f"\nEviction{' (dry run: no pod is evicted)' if eviction['dry_run'] else ''}:"
    rows: list[tuple[str, ...]] = [
        ("  SIGNAL", "AVAILABLE", "THRESHOLD", "OF", "PER SECOND", "MET", "MOST USED BY", "NEXT")
    ]
    for signal in eviction["signals"]:
        met = f"{render_age(now - signal['met_since'])}" if signal["met_since"] is not None else "no"
        unit = signal["unit"]
        users = ", ".join(f"{user['pod']} {render_amount(user['used'], unit)}" for user in signal["top"][:1])
        rate = "" if signal["per_s"] is None else render_amount(signal["per_s"], unit, "+")
        values = [render_amount(signal[key], unit) for key in ("available", "threshold", "capacity")]
        victim = signal["next"]["pod"] if signal["next"] is not None else ""
        rows.append((f"  {signal['signal']}{' (soft)' if signal['soft'] else ''}", *values, rate, met, users, victim))
    yield from _table(rows)
    yield from dict.fromkeys(
        f"  {signal['next']['pod']}: {signal['next']['why']}" for signal in eviction["signals"] if signal["next"]
    )
    for would in eviction["would_evict"]:
        yield f"  {render_age(now - would['at'])} ago would have evicted {would['pod']} ({would['signal']}): {would['why']}"


def render_age(seconds: float) -> str:
    """Format a duration in its two largest units: 42s, 3m5s, 2h7m, 4d3h."""
    left = max(0, int(seconds))
    days, hours, minutes = left // DAY_S, left // 3600 % 24, left // 60 % 60
    if days:
        return f"{days}d{hours}h"
    if hours:
        return f"{hours}h{minutes}m"
    return f"{minutes}m{left % 60}s" if minutes else f"{left}s"
